"""Log-probs of the policy that a training is held to, once for all trainings that share it and what it scores."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from coevolve.chat.chat_template import Renderer
from coevolve.chat.prompts import without_example
from coevolve.policies import loading
from coevolve.progress import Progress
from coevolve.train import policy_io, reference_logps
from coevolve.types import PreferencePair, Trajectory
from coevolve.workflow.branch import SOURCES
from coevolve.workflow.corpus import rows
from coevolve.workflow.job import Job
from coevolve.workflow.task_prompts import example
from coevolve.workflow.training import prepare


def run(job: Job, out: Path) -> dict[str, Any]:
    """Score all trajectories that can be paired (or all pairs), cut to the context, and write `scores.safetensors`.

    One process on one device. Weights are those a training starts from, float32 or quantised alike, and on a GPU it
    computes in bfloat16 as the trainers do, so that the first step's loss is ln 2.
    """
    prepare(job)
    policy = job.policy("policy")
    renderer = Renderer(loading.load_tokenizer(policy))
    wanted = reference_logps.distinct(row[: job.model.context] for row in _rows(job, renderer))
    model = policy_io.load(policy, job.model.lora)
    logps = reference_logps.score(model, wanted, Progress("rows").report)
    reference_logps.write(out / "scores.safetensors", wanted, logps)
    return {"rows": len(wanted), "tokens": sum(map(len, wanted))}


def _rows(job: Job, renderer: Renderer) -> Iterator[Sequence[int]]:
    """Token ids of what pairs are made of; prompts lack the example that pairs lack."""
    if "pairs" in job.inputs:
        for pair in job.records("pairs", PreferencePair):
            yield renderer.render(pair.prompt, pair.chosen, pair.chosen_token_ids).input_ids
            yield renderer.render(pair.prompt, pair.rejected, pair.rejected_token_ids).input_ids
    unlearned = example(job, "unlearned")
    found = _comparable([t for name in job.inputs.keys() & SOURCES.values() for t in job.records(name, Trajectory)])
    shown = [t.model_copy(update={"prompt": without_example(t.prompt, unlearned)}) for t in found]
    yield from (row.input_ids for row in rows(shown, renderer))


def _comparable(trajectories: Sequence[Trajectory]) -> list[Trajectory]:
    """Those that acted, on tasks where not all earned the same: no rule makes a pair of others."""
    acted = [trajectory for trajectory in trajectories if trajectory.turns]
    earned = defaultdict[str, set[float]](set)
    for trajectory in acted:
        earned[trajectory.task.task_id].add(trajectory.reward)
    return [trajectory for trajectory in acted if len(earned[trajectory.task.task_id]) > 1]
