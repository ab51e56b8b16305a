"""One agent's preference training: eq. 7 for the failure agent, eq. 9 for the target; weights come with each pair."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from torch import Tensor

from coevolve.chat.chat_template import Renderer, TokenizedTrajectory
from coevolve.config.sections import DpoConfig
from coevolve.policies import loading
from coevolve.train import dpo, reference_logps
from coevolve.train.dataset import TokenizedPair
from coevolve.types import PairKind, PreferencePair, TrainReport
from coevolve.workflow.job import Job
from coevolve.workflow.training import training_run

#: Pair kinds with an expert's whole trajectory.
GOLD_KINDS = (PairKind.EXPERT_TARGET, PairKind.EXPERT_FAILURE)


def run(job: Job, out: Path) -> TrainReport:
    """Train from `start` on the pairs, with the reference log-probs in `scores` or with the policy `reference`."""
    training = training_run(job, out)
    renderer = Renderer(loading.load_tokenizer(training.start))
    pairs = job.records("pairs", PreferencePair)
    tokenized = [_tokenize(pair, renderer) for pair in pairs]
    return dpo.run_dpo(
        _with_reference_logps(job, pairs, tokenized) if "scores" in job.inputs else tokenized,
        _compute_matched(job),
        training,
        iteration=job.branch.iteration,
        reference=job.policy("reference") if "reference" in job.inputs else None,
    )


def _compute_matched(job: Job) -> DpoConfig:
    """The suite's settings; a compute-matched control trains for the epochs that give the other method's pair count."""
    config = job.suite.dpo
    if "steps_like" not in job.inputs:
        return config
    pairs, other_pairs = (
        sum(path.read_bytes().count(b"\n") for path in job.inputs[name]) for name in ("pairs", "steps_like")
    )
    if not pairs or not other_pairs:
        return config  # nothing to match
    return config.model_copy(update={"epochs": config.epochs * other_pairs / pairs})


def _with_reference_logps(
    job: Job, pairs: Sequence[PreferencePair], tokenized: Sequence[TokenizedPair]
) -> list[TokenizedPair]:
    """The tokenized pairs with the reference log-probs of both sides, up to the context."""
    scores = reference_logps.read(job.file("scores"))

    def logps(side: TokenizedTrajectory, trajectory_id: str) -> Tensor:
        values = scores.lookup(side.input_ids[: job.model.context])
        if values is None:
            raise RuntimeError(f"{job.file('scores')}: no sequence starts with the tokens of {trajectory_id}")
        return values

    return [
        replace(tokens, reference_logps=(logps(tokens.chosen, p.chosen_id), logps(tokens.rejected, p.rejected_id)))
        for p, tokens in zip(pairs, tokenized, strict=True)
    ]


def _tokenize(pair: PreferencePair, renderer: Renderer) -> TokenizedPair:
    return TokenizedPair(
        chosen=renderer.render(pair.prompt, pair.chosen, pair.chosen_token_ids),
        rejected=renderer.render(pair.prompt, pair.rejected, pair.rejected_token_ids),
        kind=pair.kind,
        lambda_dpo=pair.lambda_dpo,
        lambda_sft=pair.lambda_sft,
        gold=pair.kind in GOLD_KINDS and not any(pair.chosen_token_ids),  # an expert's turns were not sampled
    )
