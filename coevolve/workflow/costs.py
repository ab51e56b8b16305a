"""What a suite will cost on a machine, before anything runs, and what it cost, once its results lie there.

Every constant stands in a config: what a job has to do in `envs.*.expected` and the models, how fast it is done in the
machine's `costs`. Training costs 6 N floating-point operations a token and epoch, a forward pass 2 N (N parameters).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from tabulate import tabulate

from coevolve.config.environments import Expected
from coevolve.config.machine import Machine
from coevolve.config.suite import Suite
from coevolve.errors import UserError
from coevolve.types import PairKind
from coevolve.workflow.plan import Plan
from coevolve.workflow.stage_table import STAGES, Branch, agent_name

TRAIN, FORWARD = 6.0, 2.0
#: Policies are kept in float32; a token takes about this many bytes: its id and text in JSON, or its id and log-prob.
BYTES_A_WEIGHT, BYTES_A_TOKEN = 4, 12


@dataclass(frozen=True)
class Cost:
    """Seconds of wall time, hours of GPUs held, bytes left on disk; `measured`: seconds that the job really took."""

    seconds: float
    gpu_hours: float
    bytes: float
    measured: float | None = None


@dataclass(frozen=True)
class Line:
    """The jobs of one stage or method together; the measured ones apart, with what had been predicted for them."""

    name: str
    jobs: int
    hours: float
    gpu_hours: float
    gigabytes: float
    done: int
    done_predicted_hours: float
    done_measured_hours: float


@dataclass(frozen=True)
class Work:
    """What a job has to do: tokens to train on (epochs multiplied; a forward pass of training is a third of it), to
    read and to write while playing; seconds of the environment's turns.
    """

    train: float = 0.0
    read: float = 0.0
    write: float = 0.0
    turn_seconds: float = 0.0
    kept: float = 0.0


def jobs(plan: Plan, machine: Machine) -> Iterator[tuple[str, str, Cost]]:
    """(stage, method, cost) of every job of a full run; what methods share counts as `shared`."""
    for stage, wildcards in plan.jobs():
        method = Branch.parse(wildcards["branch"]).method if "branch" in wildcards else ""
        owner = method if method in plan.suite.recipes else "shared"
        yield stage, owner, cost(plan, machine, stage, wildcards)


def cost(plan: Plan, machine: Machine, stage: str, wildcards: Mapping[str, str]) -> Cost:
    """What one job will cost, and what it cost if its result is there."""
    constants, needs = machine.costs, machine.needs(stage)
    gathers = stage in ("rollout", "evaluate") and "parts" in plan.inputs(stage, wildcards)
    work = Work() if gathers else _work(plan, stage, wildcards)
    weights = plan.suite.models[wildcards["model"]].weights if "model" in wildcards else 0.0
    devices = constants.flops * needs.processes
    seconds = constants.startup_seconds if work.train or work.read or stage == "untrained" else 0.0
    seconds += TRAIN * weights * work.train / (devices * constants.training)
    seconds += FORWARD * weights * work.read / (devices * constants.reading)
    seconds += FORWARD * weights * work.write / (devices * constants.writing)
    seconds += work.turn_seconds * constants.turn_scale
    keeps = stage == "snapshot" or STAGES[stage].files[0] == "policy.json"
    policy = weights * BYTES_A_WEIGHT if keeps else 0.0
    kept = policy + work.kept * BYTES_A_TOKEN
    measured = made(plan, stage, wildcards).get("seconds")
    return Cost(seconds, seconds * needs.gpus * needs.nodes / 3600, kept, measured)


def lines(found: Iterable[tuple[str, Cost]]) -> list[Line]:
    """Costs by name, in order of first appearance, and `all` of them at the end."""
    costs = list(found)
    names = dict.fromkeys(name for name, _ in costs)
    grouped = {name: [cost for own, cost in costs if own == name] for name in names}
    return [_line(name, group) for name, group in {**grouped, "all": [cost for _, cost in costs]}.items()]


def text(heading: str, rows: Sequence[Line]) -> str:
    """A table of costs: what was predicted, then, of the jobs that are done, what was predicted and measured."""
    columns = [heading, "jobs", "hours", "GPU-hours", "GB", "done", "predicted h", "measured h", "ratio"]
    table = [[*(getattr(row, field.name) for field in fields(row)), _ratio(row)] for row in rows]
    formats = ("", "d", ".2f", ".1f", ".2f", "d", ".3f", ".3f", ".2f")
    return tabulate(table, headers=columns, tablefmt="github", floatfmt=formats, missingval="-")


def _ratio(row: Line) -> float | None:
    """Measured over predicted, of what is done."""
    return row.done_measured_hours / row.done_predicted_hours if row.done_predicted_hours else None


def _line(name: str, costs: list[Cost]) -> Line:
    done = [(cost.seconds, cost.measured) for cost in costs if cost.measured is not None]
    return Line(
        name=name,
        jobs=len(costs),
        hours=sum(cost.seconds for cost in costs) / 3600,
        gpu_hours=sum(cost.gpu_hours for cost in costs),
        gigabytes=sum(cost.bytes for cost in costs) / 1e9,
        done=len(done),
        done_predicted_hours=sum(predicted for predicted, _ in done) / 3600,
        done_measured_hours=sum(measured for _, measured in done) / 3600,
    )


def made(plan: Plan, stage: str, wildcards: Mapping[str, str]) -> dict[str, Any]:
    """What a finished job says of itself; nothing where it left no result, as downloads do."""
    path = Path(plan.folder(stage, wildcards), "provenance.json")
    record: dict[str, Any] = json.loads(path.read_bytes()) if path.exists() else {}
    return record


def _work(plan: Plan, stage: str, wildcards: Mapping[str, str]) -> Work:
    """What a job has to do; nothing worth counting for stages that have no model to run."""
    if "branch" not in wildcards:
        return Work()
    branch = Branch.parse(wildcards["branch"])
    suite = plan.suite.under(branch.method) if branch.method in plan.suite.recipes else plan.suite
    expected = suite.envs[wildcards["env"]].expected
    if expected is None:
        raise UserError(f"envs.{wildcards['env']}: `expected` is missing; say what a cost is reckoned with.")
    played = expected.explore * suite.rollout.k
    if stage in ("sft", "refit"):
        own = played * (1 - expected.failures) if stage == "refit" else 0
        return Work(train=(expected.experts + own) * expected.tokens * suite.sft.epochs)
    if stage == "pretrain":
        pretrain = suite.models[wildcards["model"]].pretrain
        return Work(train=expected.experts * expected.tokens * (pretrain.epochs if pretrain else 0))
    if stage == "pairs":
        return Work(kept=_pair_tokens(suite, branch, wildcards, expected))
    if stage == "reference":
        tokens = _scored_tokens(suite, branch, wildcards, expected)
        return Work(train=tokens * FORWARD / TRAIN, kept=tokens)
    if stage == "train":
        asked = FORWARD / TRAIN if "reference" in plan.inputs(stage, wildcards) else 0
        return Work(train=_pair_tokens(suite, branch, wildcards, expected) * suite.dpo.epochs * (1 + asked))
    if stage == "ppo":
        return _episodes(expected, expected.explore * suite.ppo.epochs, suite.ppo.passes)
    if stage == "grpo":
        return _episodes(expected, expected.explore * suite.grpo.epochs * suite.grpo.group, 1)
    if stage == "steps":
        ways = expected.experts * expected.turns / suite.steps.every
        return _episodes(expected, ways * (1 + 2 * suite.steps.samples) / 2, 0)  # on average half a way is left
    if stage in ("rollout", "evaluate", "shard"):
        return _play(plan, suite, expected, stage, wildcards)
    return Work()


def _pair_tokens(suite: Suite, branch: Branch, wildcards: Mapping[str, str], expected: Expected) -> float:
    """Tokens on both sides of an agent's pairs of one iteration."""
    agent = agent_name(wildcards.get("agent", "target"))
    rollouts = expected.explore * suite.rollout.k
    share = {PairKind.FAILURE_FAILURE: expected.failures**2 / 2}  # choice: half of two failures earn the same
    kinds = suite.recipes[branch.method].agents[agent].trains_on
    return sum(rollouts * share.get(kind, expected.failures) for kind in kinds) * 2 * expected.tokens


def _scored_tokens(suite: Suite, branch: Branch, wildcards: Mapping[str, str], expected: Expected) -> float:
    """Tokens that a reference policy reads once: of both sides of pairs, or of all on a task with a failure."""
    if wildcards["of"] == "pairs":
        return _pair_tokens(suite, branch, wildcards, expected)
    sources = wildcards["of"].split("_")
    experts = sources.count("experts")
    rollouts = (len(sources) - experts) * suite.rollout.k
    failed = 1 - (1 - expected.failures) ** rollouts
    return expected.explore * failed * (experts + rollouts) * expected.tokens


def _play(plan: Plan, suite: Suite, expected: Expected, stage: str, wildcards: Mapping[str, str]) -> Work:
    evaluates = stage == "evaluate" or wildcards.get("whole") == "eval"
    parts = (plan.shards.evaluate if evaluates else plan.shards.rollout) if stage == "shard" else 1
    whole = expected.evaluate * suite.evaluation.samples if evaluates else expected.explore * suite.rollout.k
    return _episodes(expected, whole / parts, 0)


def _episodes(expected: Expected, episodes: float, passes: float) -> Work:
    """Prompts and observations are read once, actions written token by token; then learned from, so many times."""
    tokens, written = episodes * expected.tokens, episodes * expected.turns * expected.action_tokens
    seconds = episodes * expected.turns * expected.turn_seconds
    return Work(train=tokens * passes, read=tokens - written, write=written, turn_seconds=seconds, kept=tokens)
