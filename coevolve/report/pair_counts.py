"""Numbers of candidates, pairs and drops of every pairing, by method."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tabulate import tabulate

from coevolve.config.suite import Suite, failure_trainings
from coevolve.records.evaluation import ResultFile
from coevolve.records.pairs import Drop, DropReason, PairingSummary, PairKind
from coevolve.report import drawing
from coevolve.report.drawing import BarRow
from coevolve.report.labels import ReportLabels, kind_label, with_labels, words
from coevolve.storage import jsonl
from coevolve.storage.files import read_bytes

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


#: A pairing's summary, and what it is of.
Pairing = tuple[ResultFile, PairingSummary]
_KEY = ("method", "model", "env", "seed", "iteration", "agent")


def read(files: Iterable[ResultFile]) -> list[Pairing]:
    """The pairing summaries in files, by method, model, environment, seed, iteration and agent."""
    ordered = sorted(files, key=operator.attrgetter(*_KEY))
    return [(file, PairingSummary.from_json(read_bytes(Path(file.path)))) for file in ordered]


def rows(pairings: Iterable[Pairing]) -> list[dict[str, Any]]:
    """The counts as JSON data, an object for each pairing and pair kind."""
    return [
        {**{name: getattr(of, name) for name in _KEY}, "kind": kind.value, **count.model_dump(mode="json")}
        for of, summary in pairings
        for kind, count in summary.kinds.items()
    ]


def methods_markdown(
    suite: Suite,
    methods: Iterable[str],
    pairings: Sequence[Pairing],
    drops: Iterable[ResultFile],
    labels: ReportLabels,
) -> str:
    """The source of each method, and pairs and drops by iteration; `drops`: those of each environment's `data`."""
    left_out = {file.env: len(jsonl.read(Path(file.path), Drop)) for file in drops}
    recipes = {method: suite.recipes[method] for method in methods}
    sources = [f"* {each.label}: {each.source}{_trainings(suite, method, labels)}" for method, each in recipes.items()]
    return "\n".join(["## Methods", "", *sources, "", markdown(pairings, left_out, labels)])


def _trainings(suite: Suite, method: str, labels: ReportLabels) -> str:
    """How often a second agent explores after a training: with one iteration never, as if frozen."""
    agents = suite.recipes[method].agents.items()
    if not any(spec.explores and spec.trains_on for agent, spec in agents if agent != "target"):
        return ""
    counts = {env: failure_trainings(suite, env, method) for env in suite.envs}
    listed = ", ".join(f"{labels.env(env)} {count or '0 (as if frozen)'}" for env, count in counts.items())
    return f". Trainings of its second agent that an exploration follows: {listed}"


def markdown(pairings: Sequence[Pairing], left_out: Mapping[str, int], labels: ReportLabels) -> str:
    """Pairs and drops as a table, and kinds without a pair; `left_out` counts, by environment, what `data` left out."""
    table = [
        (
            *named,
            of.seed,
            of.iteration,
            of.agent,
            kind_label(kind),
            count.candidates,
            count.pairs,
            _dropped(count.drops),
        )
        for of, summary in pairings
        for named in [(labels.method(of.method), labels.env(of.env))]
        for kind, count in summary.kinds.items()
    ]
    head = ["method", "environment", "seed", "iteration", "agent", "pair kind", "candidates", "pairs", "dropped"]
    sentences = [
        f"{labels.env(env)}: {count:,} training tasks or experts left out before training."
        for env, count in left_out.items()
    ]
    if other := sum(count.other_prompt for _, summary in pairings for count in summary.kinds.values()):
        sentences.append(f"In {other:,} pairs the rejected side was played under another text of the task.")
    texts = {kind.value: kind_label(kind) for kind in PairKind} | {reason.value: words(reason) for reason in DropReason}
    sentences += [
        f"{labels.method(of.method)}, {labels.env(of.env)}, seed {of.seed}, iteration {of.iteration}, "
        f"{of.agent} agent: {with_labels(sentence, texts)}"
        for of, summary in pairings
        for sentence in summary.empty
    ]
    printed = tabulate(table, head, tablefmt="github")
    return "\n".join(["## Pairs", "", printed, "", *(f"* {sentence}" for sentence in sentences), ""])


def _dropped(drops: Mapping[DropReason, int]) -> str:
    return ", ".join(f"{words(reason)} {count}" for reason, count in sorted(drops.items())) or "none"


def draw(counts: Sequence[Mapping[str, Any]], labels: ReportLabels) -> Figure:
    """The figure: pairs and dropped candidates by method, agent, iteration and pair kind, summed over seeds."""
    import pandas as pd

    table = pd.DataFrame(counts, columns=[*_KEY, "kind", "candidates", "pairs", "drops"])
    used = {reason for drops in table.drops for reason in drops}
    reasons = [reason.value for reason in DropReason if reason in used]
    charts: dict[str, list[BarRow]] = {}
    for env, of_env in table.groupby("env", sort=False):
        groups = of_env.groupby(["method", "agent", "iteration", "kind"], sort=False)
        ordered = sorted(groups, key=lambda group: (labels.order(*group[0][:3]), group[0][3]))
        charts[labels.env(str(env))] = [_bar(key, group, reasons, labels) for key, group in ordered]
    return drawing.bars("Pairs and drops", charts)


def _bar(key: tuple[str, str, int, str], of: pd.DataFrame, reasons: Sequence[str], labels: ReportLabels) -> BarRow:
    """The counts of one method, agent, iteration and pair kind, summed over seeds."""
    method, agent, iteration, kind = key
    pairs, dropped = int(of.pairs.sum()), {name: sum(each.get(name, 0) for each in of.drops) for name in reasons}
    lost = [(words(name), 1 + number, dropped[name]) for number, name in enumerate(reasons) if dropped[name]]
    return BarRow(
        f"{labels.method(method)}, {agent} agent, iteration {iteration}: {kind_label(kind)}",
        [[("pairs", 0, pairs), *lost]],
        f"{pairs:,} pairs of {of.candidates.sum():,} candidates; dropped: "
        + (", ".join(f"{name} {count:,}" for name, _, count in lost) or "none"),
    )
