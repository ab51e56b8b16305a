"""Numbers of candidates, pairs and drops of every pairing, by method."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tabulate import tabulate

from coevolve.config.suite import Suite, failure_trainings
from coevolve.records.episodes import Agent
from coevolve.records.evaluation import SummaryKey
from coevolve.records.pairs import Drop, DropReason, KindCount, PairingSummary, PairKind
from coevolve.report import drawing
from coevolve.report.drawing import BarRow
from coevolve.report.labels import ReportLabels, kind_label, with_labels, words
from coevolve.report.stats import group_by
from coevolve.storage import files, jsonl

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class PairCount(KindCount):
    """A row of `pairs.json`: the counts of one pair kind in one pairing."""

    method: str
    model: str
    env: str
    seed: int
    iteration: int
    agent: Agent
    kind: PairKind


Summaries = Mapping[SummaryKey, PairingSummary]


def read(paths: Mapping[SummaryKey, Path]) -> dict[SummaryKey, PairingSummary]:
    """The pairing summaries in files."""
    return {key: PairingSummary.from_json(files.read_bytes(path)) for key, path in paths.items()}


def methods_markdown(
    suite: Suite, methods: Iterable[str], summaries: Summaries, drops: Mapping[str, Path], labels: ReportLabels
) -> str:
    """The source of each method, and pairs and drops by iteration; `drops`: files by environment."""
    left_out = {env: len(jsonl.read(path, Drop)) for env, path in drops.items()}
    recipes = {method: suite.recipes[method] for method in methods}
    rows = [f"* {each.label}: {each.source}{_trainings(suite, method, labels)}" for method, each in recipes.items()]
    return "\n".join(["## Methods", "", *rows, "", markdown(summaries, left_out, labels)])


def _trainings(suite: Suite, method: str, labels: ReportLabels) -> str:
    """How often a second agent explores after a training: with one iteration never, as if frozen."""
    agents = suite.recipes[method].agents.items()
    if not any(spec.explores and spec.trains_on for agent, spec in agents if agent != "target"):
        return ""
    counts = {env: failure_trainings(suite, env, method) for env in suite.envs}
    listed = ", ".join(f"{labels.env(env)} {count or '0 (as if frozen)'}" for env, count in counts.items())
    return f". Trainings of its second agent that an exploration follows: {listed}"


def markdown(summaries: Summaries, left_out: Mapping[str, int], labels: ReportLabels) -> str:
    """Pairs and drops as a table, and kinds without a pair; `left_out` counts, by environment, what `data` left out."""
    rows = [
        [
            labels.method(method),
            labels.env(env),
            seed,
            iteration,
            agent,
            kind_label(kind),
            count.candidates,
            count.pairs,
            ", ".join(f"{words(reason)} {dropped}" for reason, dropped in sorted(count.drops.items())) or "none",
        ]
        for (method, _, env, seed, iteration, agent), summary in sorted(summaries.items())
        for kind, count in summary.kinds.items()
    ]
    head = ["method", "environment", "seed", "iteration", "agent", "pair kind", "candidates", "pairs", "dropped"]
    sentences = [
        f"{labels.env(env)}: {count:,} training tasks or experts left out before training."
        for env, count in left_out.items()
    ]
    other = sum(count.other_prompt for summary in summaries.values() for count in summary.kinds.values())
    if other:
        sentences.append(f"In {other:,} pairs the rejected side was played under another text of the task.")
    shown = {kind.value: kind_label(kind) for kind in PairKind} | {reason.value: words(reason) for reason in DropReason}
    empty = [
        f"{labels.method(method)}, {labels.env(env)}, seed {seed}, iteration {iteration}, {agent} agent: "
        f"{with_labels(sentence, shown)}"
        for (method, _, env, seed, iteration, agent), summary in sorted(summaries.items())
        for sentence in summary.empty
    ]
    table = tabulate(rows, head, tablefmt="github")
    return "\n".join(["## Pairs", "", table, "", *(f"* {sentence}" for sentence in sentences + empty), ""])


def draw(rows: Sequence[PairCount], labels: ReportLabels) -> Figure:
    """The figure: pairs and dropped candidates by method, agent, iteration and pair kind, summed over seeds."""
    names = "env", "method", "agent", "iteration", "kind"
    reasons = [reason for reason in DropReason if any(reason in row.drops for row in rows)]
    groups = sorted(group_by(rows, *names).items(), key=lambda each: (labels.order(*each[0][1:4]), each[0][4]))
    charts = {
        labels.env(env): [_bar(group, reasons, labels) for key, group in groups if key[0] == env]
        for env in dict.fromkeys(row.env for row in rows)
    }
    return drawing.bars("Pairs and drops", charts)


def _bar(group: Sequence[PairCount], reasons: Sequence[DropReason], labels: ReportLabels) -> BarRow:
    """The counts of one method, agent, iteration and pair kind, summed over seeds."""
    first, pairs = group[0], sum(row.pairs for row in group)
    dropped = {reason: sum(row.drops.get(reason, 0) for row in group) for reason in reasons}
    lost = [(words(reason), 1 + number, dropped[reason]) for number, reason in enumerate(reasons) if dropped[reason]]
    return BarRow(
        f"{labels.method(first.method)}, {first.agent} agent, iteration {first.iteration}: {kind_label(first.kind)}",
        [[("pairs", 0, pairs), *lost]],
        f"{pairs:,} pairs of {sum(row.candidates for row in group):,} candidates; dropped: "
        + (", ".join(f"{name} {count:,}" for name, _, count in lost) or "none"),
    )


def rows(summaries: Summaries) -> list[dict[str, Any]]:
    """The counts as JSON data, an object for each key and pair kind."""
    names = ("method", "model", "env", "seed", "iteration", "agent")
    return [
        {**dict(zip(names, key, strict=True)), "kind": kind.value, **count.model_dump(mode="json")}
        for key, summary in sorted(summaries.items())
        for kind, count in summary.kinds.items()
    ]
