"""One agent's preference training: eq. 7 for the failure agent, eq. 9 for the target; weights come with each pair."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from coevolve.chat.chat_template import Renderer
from coevolve.config.sections import DpoConfig
from coevolve.policies import loading
from coevolve.train import dpo, reference_logps
from coevolve.train.rows import PairRow, TokenRow
from coevolve.types import PreferencePair
from coevolve.workflow.job import Job
from coevolve.workflow.training import notes, prepare


def run(job: Job, out: Path) -> dict[str, Any]:
    """Train from `start` on the pairs, held to `scores` of a reference policy or to the `reference` itself."""
    prepare(job)
    start = job.policy("start")
    renderer = Renderer(loading.load_tokenizer(start))
    pairs = job.records("pairs", PreferencePair)
    rows = [_row(pair, renderer) for pair in pairs]
    report = dpo.run_dpo(
        _scored(job, pairs, rows) if "scores" in job.inputs else rows,
        start=start,
        reference=job.policy("reference") if "reference" in job.inputs else None,
        config=_as_many_steps(job),
        iteration=job.branch.iteration,
        lora=job.model.lora,
        context=job.model.context,
        seed=job.seed,
        out=out,
        work=job.work,
    )
    return notes(report)


def _as_many_steps(job: Job) -> DpoConfig:
    """The suite's settings; of a compute-matched control, epochs until it saw as many pairs as another method did."""
    dpo = job.suite.dpo
    if "steps_like" not in job.inputs:
        return dpo
    own, others = (sum(_count(path) for path in job.inputs[name]) for name in ("pairs", "steps_like"))
    # Without pairs on one of the sides there is nothing to match.
    return dpo.model_copy(update={"epochs": dpo.epochs * others / own}) if own and others else dpo


def _count(path: Path) -> int:
    return path.read_bytes().count(b"\n")


def _scored(job: Job, pairs: Sequence[PreferencePair], rows: Sequence[PairRow]) -> list[PairRow]:
    """The rows with the reference policy's log-probs of both sides, as far as the context reaches."""
    scores = reference_logps.read(job.file("scores"))

    def of(side: TokenRow, trajectory_id: str) -> Tensor:
        found = scores.of(side.input_ids[: job.model.context])
        if found is None:
            raise RuntimeError(f"{job.file('scores')}: no row begins as trajectory {trajectory_id} does")
        return found

    return [
        replace(row, reference=(of(row.chosen, pair.chosen_id), of(row.rejected, pair.rejected_id)))
        for pair, row in zip(pairs, rows, strict=True)
    ]


def _row(pair: PreferencePair, renderer: Renderer) -> PairRow:
    return PairRow(
        chosen=renderer.render(pair.prompt, pair.chosen, pair.chosen_token_ids),
        rejected=renderer.render(pair.prompt, pair.rejected, pair.rejected_token_ids),
        kind=pair.kind,
        lambda_dpo=pair.lambda_dpo,
        lambda_sft=pair.lambda_sft,
    )
