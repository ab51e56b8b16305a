"""Outcomes of explorations, diversity of failures, drift of log-probs in training, and compute of each method
(section 5.2.1).

Each value is measured on one file (one agent, iteration and seed); printed numbers are means over seeds.
"""

import math
import operator
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, Literal

from pydantic import Field
from tabulate import tabulate

from coevolve.config.machine import Machine, job_resources
from coevolve.envs.registry import is_refused
from coevolve.records.base import Record
from coevolve.records.episodes import Trajectory
from coevolve.records.provenance import Provenance
from coevolve.records.training import TrainReport
from coevolve.report import mechanism
from coevolve.report.exploration import AgentRecord, Exploration, outcomes
from coevolve.report.labels import ReportLabels, words
from coevolve.report.mechanism import Mechanism, RecordTable
from coevolve.report.number_text import readable
from coevolve.report.stats import group_by, mean_of

#: Headings of columns that are not their fields' names.
_HEADS = {"env": "environment", "kind": "pair kind", "other_kind": "other pair kind", "gpu_hours": "GPU-hours"}
OUTCOMES = ("success", "hard_negative", "failure")
#: Number of bins of the rewards of failures.
BINS = 10


class Shares(AgentRecord):
    """Shares of one agent's episodes by outcome (they add up to 1); `between`: of a reward strictly between 0 and 1."""

    threshold: float
    episodes: int
    success: float
    hard_negative: float
    failure: float
    between: float


class Diversity(AgentRecord):
    """Diversity of one agent's failures, as `markdown` describes it; a value is None if no failure has it."""

    failures: int
    distinct: float | None = None
    commonest: float | None = None
    repeated: float | None = None
    invalid: float | None = None
    first_entropy: float | None = None
    distance: float | None = None


class FailureRewards(AgentRecord):
    """Numbers of one agent's failures by reward, in `BINS` equal bins of [0, 1); the first has negative ones, too."""

    counts: tuple[int, ...]


class Drift(AgentRecord):
    """Mean log pi(e | u) in nats of one pair kind's sides in the first and the last epoch of one training."""

    kind: str
    chosen_first: float
    chosen_last: float
    rejected_first: float
    rejected_last: float


class TrajectoryDrift(AgentRecord):
    """`TrajectoryLogps` of one training in nats, means of a trajectory and of a token."""

    trajectories: int
    before: float | None
    after: float
    token_before: float | None
    token_after: float


class Compute(Record):
    """Compute of a method from the start: its jobs, including those shared with other methods."""

    method: str
    jobs: int
    hours: float
    gpu_hours: float
    trained_tokens: int
    sampled_tokens: int


def shares(exploration: Exploration, threshold: float) -> Shares:
    """Outcomes of one agent's episodes; raises ZeroDivisionError without episodes."""
    seen = [outcomes(episode, threshold) for episode in exploration.episodes]
    between = sum(0.0 < episode.reward < 1.0 for episode in exploration.episodes)
    total = len(exploration.episodes)
    return Shares(
        **exploration.names,
        threshold=threshold,
        episodes=total,
        **{name: sum(name in each for each in seen) / total for name in OUTCOMES},
        between=between / total,
    )


def diversity(
    episodes: Iterable[Trajectory], names: Mapping[str, Any], experts: Mapping[str, Sequence[str]]
) -> Diversity:
    """Diversity of one agent's failures, of which only actions are held; `experts`: their actions by task."""
    sequences, firsts = Counter[tuple[str, ...]](), Counter[tuple[str, ...]]()
    repeated, refused, distances = list[bool](), list[bool](), list[float]()
    for episode in episodes:
        if episode.is_failure:
            taken = actions(episode)
            sequences[taken] += 1
            firsts[taken[:1]] += 1
            repeated += [before == after for before, after in pairwise(taken)]
            refused += refusals(episode)
            if (expert := experts.get(episode.task.task_id)) is not None:
                distances.append(edit_distance(taken, expert))
    failures = sequences.total()
    if not failures:
        return Diversity(**names, failures=0)
    return Diversity(
        **names,
        failures=failures,
        distinct=len(sequences) / failures,
        commonest=max(sequences.values()) / failures,
        repeated=mean_of(repeated),
        invalid=mean_of(refused),
        first_entropy=entropy(firsts.values()),
        distance=mean_of(distances),
    )


def failure_rewards(exploration: Exploration) -> FailureRewards:
    """The rewards of one agent's failures."""
    # Rounded, because floating-point products may be just below a bin's end.
    bins = [int(round(BINS * episode.reward, 9)) for episode in exploration.episodes if episode.is_failure]
    counts = Counter(min(max(index, 0), BINS - 1) for index in bins)
    return FailureRewards(**exploration.names, counts=tuple(counts[index] for index in range(BINS)))


def actions(episode: Trajectory) -> tuple[str, ...]:
    """The actions of an episode, turn by turn; empty strings for format errors."""
    return tuple((turn.action or "").strip() for turn in episode.turns)


def refusals(episode: Trajectory) -> list[bool]:
    """Whether each turn had no action, or an action that the environment refused."""
    before = episode.prompt[-1].content if episode.prompt else ""
    refused = []
    for turn in episode.turns:
        refused.append(turn.action is None or is_refused(episode.task.env, before, turn))
        before = turn.observation
    return refused


def entropy(counts: Iterable[int]) -> float:
    """Entropy of a distribution in bits, from how often each value was seen."""
    numbers = [count for count in counts if count]
    total = sum(numbers)
    return -math.fsum(count / total * math.log2(count / total) for count in numbers) + 0.0


def edit_distance(left: Sequence[str], right: Sequence[str]) -> float:
    """Levenshtein's distance between two sequences of actions, over the longer one's length; 0 for two empty ones."""
    row = list(range(len(right) + 1))
    for index, old in enumerate(left, start=1):
        diagonal, row[0] = row[0], index
        for column, new in enumerate(right, start=1):
            diagonal, row[column] = row[column], min(row[column] + 1, row[column - 1] + 1, diagonal + (old != new))
    return row[-1] / max(len(left), len(right), 1)


def drift(training: Provenance, branch: Mapping[str, Any]) -> list[Drift]:
    """Drift of every pair kind in a finished job, a branch's preference training; other jobs have none.

    A training of less than two epochs is divided in halves. A kind that the first or the last part lacks has none.
    """
    notes = training.notes
    if "dpo" not in training.config or not isinstance(notes, TrainReport) or not notes.history:
        return []
    # Not the epochs of the config: a compute-matched control has epochs of its own.
    epochs = notes.steps / math.ceil(notes.rows / training.config["dpo"]["batch_size"])
    steps = max(1, math.ceil(len(notes.history) / max(2.0, epochs)))
    ends = {"first": notes.history[:steps], "last": notes.history[-steps:]}
    kinds = dict.fromkeys(key.rpartition("/")[0] for step in notes.history for key in step if key.endswith("/pairs"))
    return [
        Drift(
            **mechanism.training_names(training, branch),
            kind=kind,
            **{
                f"{side}_{end}": _weighted(part, kind, f"logps/{side}")
                for side in ("chosen", "rejected")
                for end, part in ends.items()
            },
        )
        for kind in kinds
        if all(any(f"{kind}/pairs" in step for step in part) for part in ends.values())
    ]


def trajectory_drift(
    training: Provenance, branch: Mapping[str, Any], sample: Literal["gold", "explored"]
) -> list[TrajectoryDrift]:
    """The log-probs of the sample `gold` or `explored` of a finished job's `TrainReport`; other jobs have none."""
    measured = getattr(training.notes, sample) if isinstance(training.notes, TrainReport) else None
    if measured is None:
        return []
    return [
        TrajectoryDrift(
            **mechanism.training_names(training, branch),
            trajectories=measured.trajectories,
            before=measured.before,
            after=measured.after,
            token_before=None if measured.before is None else measured.before / measured.action_tokens,
            token_after=measured.after / measured.action_tokens,
        )
    ]


def compute(method: str, jobs: Sequence[Provenance], machine: Machine) -> Compute:
    """The sum over a method's finished jobs on a machine."""
    needs = [job_resources(machine, job.stage) for job in jobs]
    gpu_seconds = sum(job.seconds * (of_job.gpus * of_job.nodes) for job, of_job in zip(jobs, needs, strict=True))
    notes = [job.notes for job in jobs]
    return Compute(
        method=method,
        jobs=len(jobs),
        hours=sum(job.seconds for job in jobs) / 3600,
        gpu_hours=gpu_seconds / 3600,
        trained_tokens=sum(each.trained_tokens for each in notes if isinstance(each, TrainReport)),
        sampled_tokens=sum(each.sampled_tokens or 0 for each in notes if not isinstance(each, dict)),
    )


class Analysis(Mechanism):
    """All that is measured of a suite, as in `analysis.json`; older files lack some of it.

    `remark`: on explorations with many turns cut, empty or without an action.
    """

    shares: tuple[Shares, ...] = ()
    diversity: tuple[Diversity, ...] = ()
    failure_rewards: tuple[FailureRewards, ...] = ()
    drift: tuple[Drift, ...] = ()
    gold: tuple[TrajectoryDrift, ...] = ()
    explored: tuple[TrajectoryDrift, ...] = ()
    compute: tuple[Compute, ...] = ()
    remark: str = Field(default="", exclude_if=operator.not_)


def markdown(measured: Analysis, labels: ReportLabels) -> str:
    """All but the histograms as tables; their numbers are means over the files (one agent, iteration and seed)."""
    agent = ("method", "env", "agent", "iteration")
    first = [each for each in measured.shares if each.threshold == measured.shares[0].threshold]
    parts: dict[str, RecordTable] = {
        "How explorations ended": (
            "Shares of a method's episodes, by the reward from which a failure counts as a hard negative; `between`: a "
            "reward strictly between 0 and 1, of which a binary reward has none.",
            measured.shares,
            ("method", "env", "threshold"),
        ),
        "How explorations ended, by agent and iteration": (measured.remark, first, (*agent, "threshold")),
        "Diversity of failures": (
            "`distinct`: different action sequences over failures. `commonest`: share of the commonest one. "
            "`repeated`: actions equal to the one before. `invalid`: turns without an action or with one that was not "
            "taken. `first entropy`: of first actions, bits. `distance`: edits between the actions and the expert's, "
            "over the longer of the two.",
            measured.diversity,
            agent,
        ),
        "Log-probability of chosen and rejected sides": (
            "log pi(e | u) in nats, means over the pairs of the first and of the last epoch (of less than two epochs: "
            "of the first and of the last half).",
            measured.drift,
            (*agent, "kind"),
        ),
        "Gold log-probability": (
            "log pi(e | u) in nats of experts, under the policy before and after the training: means of a trajectory "
            "and of an action token, over a sample of the training's experts.",
            measured.gold,
            agent,
        ),
        "Log-probability of explored episodes": (
            "The same of the target's own episodes that experts were preferred to.",
            measured.explored,
            agent,
        ),
        **mechanism.tables(measured),
        "What each method takes from nothing": (
            "All jobs that its evaluations rest on: shared ones, and for a row that takes as many steps as another "
            "method that one's too, as its pairs are counted. Hours of jobs that ran side by side add up.",
            measured.compute,
            ("method",),
        ),
    }
    return "\n".join(
        "\n\n".join(filter(None, [f"## {title}", text, _table(records, by, labels)])) + "\n"
        for title, (text, records, by) in parts.items()
    )


def _table(records: Sequence[Record], by: Sequence[str], labels: ReportLabels) -> str:
    """Means over the records that agree in the `by` fields, in order of first appearance."""
    if not records:
        return "None."
    names = [name for name in type(records[0]).model_fields if name not in (*by, "seed", "agent", "iteration")]
    groups, shown = group_by(records, *by), labels.words()
    rows = [
        [*(shown.get(value, value) for value in key), *(_mean_text(group, name) for name in names)]
        for key, group in groups.items()
    ]
    head = [_HEADS.get(name, words(name)) for name in (*by, *names)]
    aligned = ["left" if isinstance(value, str) else "right" for value in next(iter(groups))]
    aligned += ["right"] * len(names)
    return tabulate(rows, head, tablefmt="github", disable_numparse=True, colalign=aligned)


def _mean_text(records: Sequence[Record], name: str) -> str:
    """The mean of a field over the records that have it; "-" if none has."""
    mean = mean_of(value for record in records if (value := getattr(record, name)) is not None)
    return "-" if mean is None else readable(mean)


def _weighted(history: Sequence[Mapping[str, float]], kind: str, name: str) -> float:
    steps = [step for step in history if f"{kind}/pairs" in step]
    sums = math.fsum(step[f"{kind}/{name}"] * step[f"{kind}/pairs"] for step in steps)
    return sums / sum(step[f"{kind}/pairs"] for step in steps)
