"""The regime of a suite: checks, by environment and seed, of whether it can decide between the methods.

The checks concern the fine-tuned policy, the failures of the exploring agents and the pairs made of them, and two
comparisons with known directions: fine-tuning on more experts should help (headroom), and GRPO should earn more at its
end than at its start, at equal tasks (learnability).
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean

from tabulate import tabulate

from coevolve.config.report import RegimeConfig, ReportConfig
from coevolve.records.base import Record
from coevolve.records.episodes import StopReason
from coevolve.records.evaluation import EvalRecord, ExplorationKey, SummaryKey
from coevolve.records.pairs import DropReason, KindCount, PairingSummary, PairKind
from coevolve.records.tables import Estimate
from coevolve.records.training import TrainReport
from coevolve.report import estimation, exploration, learnability, stats
from coevolve.report.estimation import RewardTable
from coevolve.report.exploration import Exploration
from coevolve.report.labels import ReportLabels
from coevolve.report.learnability import Score
from coevolve.report.measurement import Measurement, final
from coevolve.report.number_text import readable, with_interval


class RegimeCheck(Record):
    """A quantity of one environment and seed (None: all seeds) with its threshold in words.

    `value` is a share, a count or a reward; None: not measured. What is undecided has not passed.
    """

    name: str
    env: str
    seed: int | None = None
    value: float | None
    low: float | None = None
    high: float | None = None
    threshold: str
    passed: bool | None

    @property
    def result(self) -> str:
        """The result in words."""
        if self.passed is None:
            return "not measured"
        undecided = not self.passed and self.high is not None and self.high >= 0.0
        return "passes" if self.passed else "undecided" if undecided else "FAILS"


@dataclass(frozen=True)
class RegimeEvidence:
    """The results that the checks read; `practice`: the scores in training of the method of `learnability`."""

    measurements: Sequence[Measurement]
    explorations: Sequence[Exploration]
    summaries: Mapping[SummaryKey, PairingSummary]
    trainings: Mapping[ExplorationKey, TrainReport]
    practice: Mapping[tuple[str, int], Sequence[Score]] = field(default_factory=dict)


def checks(
    evidence: RegimeEvidence,
    limits: RegimeConfig,
    report: ReportConfig,
    iterations: Mapping[str, int],
    suite_seeds: Sequence[int],
) -> list[RegimeCheck]:
    """All checks of a suite in their order; `iterations` are those of the row `limits.method`, by environment."""
    judged: list[RegimeCheck] = []
    for env, last in iterations.items():
        for seed in suite_seeds:
            judged += _of_sft(evidence, limits, env, seed)
            judged += _of_failures(evidence, limits, env, seed)
            judged += _of_pairs(evidence, limits, env, seed, last)
        judged += [_headroom(evidence, limits, report, env), _learnability(evidence, limits, report, env)]
    return judged


def sentence(judged: Sequence[RegimeCheck], labels: ReportLabels) -> str:
    """How many of the measured checks passed, and the names of the others; `labels` of all methods and environments."""
    names: defaultdict[str, dict[str, None]] = defaultdict(dict)
    for check in judged:
        names[check.result][check.name] = None
    measured = [check.passed for check in judged if check.passed is not None]
    if not measured:
        return "No check of the regime can be measured with the results so far."
    counted = f"{sum(measured)} of {len(measured)} measured checks of the regime pass"
    parts = [("failed", "FAILS"), ("undecided", "undecided"), ("not measured", "not measured")]
    text = "; ".join([counted, *(f"{word}: {', '.join(names[result])}" for word, result in parts if names[result])])
    return f"{labels.in_text(text)}."


def markdown(judged: Sequence[RegimeCheck], labels: ReportLabels) -> str:
    """The sentence, and a table if a check is measured."""
    if all(check.passed is None for check in judged):
        return f"## Regime\n\n{sentence(judged, labels)}\n"
    head = ["environment", "seed", "check", "value", "threshold", "result"]
    rows = [
        [labels.env(c.env), seed, labels.in_text(c.name), _value(c), c.threshold, c.result]
        for c in judged
        for seed in ["all" if c.seed is None else c.seed]
    ]
    table = tabulate(rows, head, "github", disable_numparse=True)
    return f"## Regime\n\n{sentence(judged, labels)}\n\n{table}\n"


def _of_sft(evidence: RegimeEvidence, limits: RegimeConfig, env: str, seed: int) -> Iterator[RegimeCheck]:
    low, high = limits.sft_success
    records = [record for record in _records(evidence, "sft", env) if record.seed == seed]
    value = stats.mean_of(record.reward >= 1.0 for record in records)
    yield _check("success of SFT", value, f"{low:.0%} to {high:.0%}", lambda value: low <= value <= high, env, seed)


def _of_failures(evidence: RegimeEvidence, limits: RegimeConfig, env: str, seed: int) -> Iterator[RegimeCheck]:
    explored = [e for e in evidence.explorations if (e.method, e.env, e.seed) == (limits.method, env, seed)]
    episodes = [episode for each in explored for episode in each.episodes]
    failures = [episode.reward for episode in episodes if episode.is_failure]
    distinct = len({round(reward, 6) for reward in failures}) if episodes else None
    hard = stats.mean_of(reward >= limits.hard_negative for reward in failures)
    cut = stats.mean_of(episode.stop is StopReason.CONTEXT for episode in episodes)
    yield _at_least("distinct rewards of failures", distinct, limits.failure_rewards, env, seed)
    name = f"failures with a reward of {limits.hard_negative:g} or more"
    yield _at_least(name, hard, limits.hard_failures, env, seed)
    most = limits.context_ends
    yield _check("episodes ended by the context", cut, f"below {most:.0%}", lambda value: value < most, env, seed)


def _of_pairs(evidence: RegimeEvidence, limits: RegimeConfig, env: str, seed: int, last: int) -> Iterator[RegimeCheck]:
    """The smallest number of pairs of a kind, share of ranked failures, and number of steps of the failure agent.

    Of a run of which all iterations are finished; in the last one, perhaps the only one, it is not trained.
    """
    counts = {
        (iteration, agent, kind): count
        for (method, _, of_env, of_seed, iteration, agent), summary in evidence.summaries.items()
        if (method, of_env, of_seed) == (limits.method, env, seed)
        for kind, count in summary.kinds.items()
    }
    steps = {
        iteration: report.steps
        for (method, of_env, of_seed, iteration, agent), report in evidence.trainings.items()
        if (method, of_env, of_seed, agent) == (limits.method, env, seed, "failure")
    }
    paired = {iteration for iteration, agent, _ in counts if agent == "target"}
    finished = bool(counts) and paired == set(range(1, last + 1))
    fewest = min(count.pairs for count in counts.values()) if finished else None
    yield _at_least("pairs of each kind and iteration", fewest, limits.pairs, env, seed)
    ranked = [_ranked(count) for (_, _, kind), count in counts.items() if kind is PairKind.FAILURE_FAILURE]
    least = min(ranked, default=0.0) if finished else None
    yield _at_least("two failures of a task that make a pair", least, limits.ranked, env, seed)
    shortest = min(steps.values(), default=0) if finished and len(steps) == last - 1 else None
    yield _at_least("steps of the failure agent's training", shortest, limits.failure_steps, env, seed)


def _ranked(count: KindCount) -> float:
    """The share of two failures of a task that make a pair: they differ, also in reward. 0 where no two failed."""
    both = count.candidates - count.drops.get(DropReason.NOT_A_FAILURE, 0)
    return count.pairs / both if both else 0.0


def _headroom(evidence: RegimeEvidence, limits: RegimeConfig, report: ReportConfig, env: str) -> RegimeCheck:
    """The gain of SFT from more experts."""
    more, base = (_records(evidence, method, env) for method in (limits.headroom, "sft"))
    name = f"headroom: {limits.headroom} minus sft"
    evaluated = [{(record.split, record.task_id, record.seed) for record in records} for records in (more, base)]
    if evaluated[0].isdisjoint(evaluated[1]):
        return _rise(name, env, None, report)
    return _rise(name, env, estimation.difference(RewardTable.of(more), RewardTable.of(base), report), report)


def _learnability(evidence: RegimeEvidence, limits: RegimeConfig, report: ReportConfig, env: str) -> RegimeCheck:
    """The rise of the training reward over the seeds.

    Not measured where the base policy's explorations are missing: steps with other tasks could not be compared.
    """
    practice = {seed: scores for (of_env, seed), scores in evidence.practice.items() if of_env == env}
    before = [_before(evidence, limits.method, env, seed) for seed in practice]
    rises = learnability.rises(list(practice.values()), before) if all(before) else []
    tasks = len({score.task_id for scores in practice.values() for score in scores})
    rise = estimation.of_means(rises, tasks, report.confidence) if rises else None
    return _rise(f"learnability: rise of {limits.learnability}'s training reward", env, rise, report)


def _before(evidence: RegimeEvidence, method: str, env: str, seed: int) -> dict[str, float]:
    """Mean reward by task of the base policy, as the target of a method in iteration 1."""
    rewards: defaultdict[str, list[float]] = defaultdict(list)
    for each in exploration.of(evidence.explorations, method, env, "target"):
        for episode in each.episodes if (each.seed, each.iteration) == (seed, 1) else ():
            rewards[episode.task_id].append(episode.reward)
    return {task: fmean(values) for task, values in rewards.items()}


def _rise(name: str, env: str, rise: Estimate | None, report: ReportConfig) -> RegimeCheck:
    """A rise that should be decided and above 0; with too few seeds for a decision it is not measured."""
    check = RegimeCheck(name=name, env=env, value=rise and rise.mean, threshold="decided, above 0", passed=None)
    if rise is None or rise.n_seeds < estimation.MIN_SEEDS:
        return check
    passed = estimation.decided(rise, report.confidence) > 0
    return check.model_copy(update={"low": rise.low, "high": rise.high, "passed": passed})


def _at_least(name: str, value: float | None, least: float, env: str, seed: int) -> RegimeCheck:
    text = f"at least {least:.0%}" if least < 1 else f"at least {least:g}"
    return _check(name, value, text, lambda value: value >= least, env, seed)


def _check(
    name: str, value: float | None, threshold: str, passes: Callable[[float], bool], env: str, seed: int
) -> RegimeCheck:
    passed = None if value is None else passes(value)
    return RegimeCheck(name=name, env=env, seed=seed, value=value, threshold=threshold, passed=passed)


def _records(evidence: RegimeEvidence, method: str, env: str) -> list[EvalRecord]:
    """The records of a method's last iteration, of all splits."""
    measured = final(evidence.measurements)
    return [record for m in measured if (m.method, m.env) == (method, env) for record in m.records]


def _value(check: RegimeCheck) -> str:
    if check.value is None:
        return "-"
    if check.low is not None and check.high is not None:
        return with_interval(check.value, check.low, check.high, readable)
    return readable(check.value)
