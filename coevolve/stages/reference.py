"""Log-probs of the policy that a training is held to, once for all trainings that share it and what it scores."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from coevolve.dag import SOURCES
from coevolve.policies import directory
from coevolve.progress import Progress
from coevolve.prompts import without_example
from coevolve.render import Renderer
from coevolve.stages.asking import example
from coevolve.stages.corpus import rows
from coevolve.stages.job import Job
from coevolve.stages.learning import prepare
from coevolve.train import reference, weights
from coevolve.types import PreferencePair, Trajectory


def run(job: Job, out: Path) -> dict[str, Any]:
    """Score all trajectories that can be paired (or all pairs), cut to the context, and write `scores.safetensors`.

    One process on one device. Weights are those a training starts from, float32 or quantised alike, and on a GPU it
    computes in bfloat16 as the trainers do, so that the first step's loss is ln 2.
    """
    prepare(job)
    policy = job.policy("policy")
    renderer = Renderer(directory.load_tokenizer(policy))
    wanted = reference.distinct(row[: job.model.context] for row in _rows(job, renderer))
    model = weights.load(policy, job.model.lora)
    logps = reference.score(model, wanted, Progress("rows").report)
    reference.write(out / "scores.safetensors", wanted, logps)
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
