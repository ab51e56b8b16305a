"""The result of `coevolve why` as text for a terminal."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from coevolve import escaping
from coevolve.records.evaluation import EpisodeNotes
from coevolve.records.pairs import PairingSummary
from coevolve.records.provenance import Provenance
from coevolve.report import view
from coevolve.report.number_text import readable, with_interval
from coevolve.report.provenance_chain import Chain, Result
from coevolve.report.why import CellTrace, Evidence
from coevolve.storage import policy_dir

#: Number of records shown of each file; `--json` has them all.
SHOWN = 3


def text(answer: CellTrace, home: str) -> str:
    """The cell, its records, the tree of results behind it with paths relative to `home`, and inconsistencies."""
    head = [answer.printed.name, *(f"  {name:9} {value}" for name, value in _head(answer, home)), ""]
    records = [line for evidence in answer.evidence for line in _records(evidence)]
    seen, tree = set[str](), list[str]()
    for folder in dict.fromkeys(Path(evidence.file).parent.as_posix() for evidence in answer.evidence):
        tree += _branch(answer.chain, folder, home, ("", ""), seen) if folder not in seen else []
    made = ["", f"made from, under {home}:", *tree, ""] if tree else []
    return "\n".join(map(escaping.line, [*head, *records, *made, *answer.chain.checked(answer.broken)]))


def _head(answer: CellTrace, home: str) -> Iterator[tuple[str, str]]:
    cell, table, estimate = answer.printed.cell, answer.printed.table, answer.printed.cell.estimate
    measured = "not run"
    if estimate:
        sizes = f"tasks x seeds: {estimate.n_tasks} x {estimate.n_seeds}, {estimate.n} episodes"
        measured = f"{with_interval(estimate.mean, estimate.low, estimate.high)}, {table.unit}; {sizes}"
    yield "measured", measured
    yield "paper", "prints no such cell" if cell.paper is None else f"{cell.paper:.1f}: {answer.place}"
    yield from (("says", sentence) for sentence in answer.said)
    yield from (("note", note) for note in answer.footnotes)
    yield "setting", f"suite {table.suite}, model {table.model}, protocol {cell.protocol}"
    yield from (("made by", each) for each in _makers(answer.chain))
    yield "printed", answer.printed.file
    if answer.evidence:
        splits = {record.split for evidence in answer.evidence for record in evidence.records}
        split = splits.pop() if len(splits) == 1 else ""
        yield "look", view.link(f"{home}/view/index.html", cell.sources, split)


def _makers(chain: Chain) -> list[str]:
    """Commit, container, versions and hardware of the results, the most frequent first, with counts if they differ."""
    counts = Counter(_maker(result.provenance) for result in chain.results)
    return [f"{maker} ({count} results)" if len(counts) > 1 else maker for maker, count in counts.most_common()]


def _maker(provenance: Provenance) -> str:
    state = {True: ", changed", False: "", None: ", changes unknown"}[provenance.dirty]
    container = f"container {provenance.container}" if provenance.container else "no container"
    named = ", ".join(
        f"{name} {provenance.versions[name]}" for name in ("python", "torch") if name in provenance.versions
    )
    hardware = provenance.hardware or "hardware unknown"
    return f"commit {provenance.commit[:12] or 'unknown'}{state}; {container}; {named}; {hardware}"


def _records(evidence: Evidence) -> Iterator[str]:
    mean = "" if evidence.mean is None else f", mean reward {readable(evidence.mean)}"
    yield f"{evidence.file}: {len(evidence.records)} records{mean}"
    for record in evidence.records[:SHOWN]:
        reward = f"reward {readable(record.reward)}"
        yield f"  {record.task_id}  {reward}  {record.stop.value}  episode {record.trajectory_id}"
    if len(evidence.records) > SHOWN:
        yield f"  and {len(evidence.records) - SHOWN} more"


def _branch(chain: Chain, folder: str, home: str, margins: tuple[str, str], seen: set[str]) -> Iterator[str]:
    """A result's line and the tree of its inputs, after these margins; one that was shown before is not expanded."""
    first, rest = margins
    if folder in seen:
        yield f"{first}{_short(folder, home)} (above)"
        return
    seen.add(folder)
    result = chain.of(folder)
    if result is None:
        yield f"{first}{_short(folder, home)}: no provenance"
        return
    yield f"{first}{_short(folder, home)}: {_line(result)}"
    below = list({each.made_by or each.path: each for each in result.inputs}.values())
    for number, each in enumerate(below, start=1):
        last = number == len(below)
        inner = f"{rest}{'`- ' if last else '|- '}", f"{rest}{'   ' if last else '|  '}"
        if each.made_by:
            yield from _branch(chain, each.made_by, home, inner, seen)
        else:
            yield f"{inner[0]}{_short(each.path, home)}: from outside, sha256 {each.sha256[:12]}"


def _short(path: str, home: str) -> str:
    """A path relative to the suite's folder; a path outside it starts with a dot."""
    return path.removeprefix(f"{home}/") if path.startswith(f"{home}/") else f"./{path}"


def _line(result: Result) -> str:
    made = result.provenance
    digests = f"code {made.code_digest[:8]}", f"config {made.config_digest[:8]}"
    reused = [f"reused from {made.reused_from}"] if made.reused_from else []
    return ", ".join([made.stage, *_contents(result), *digests, *reused])


def _contents(result: Result) -> Iterator[str]:
    """A result's policy hash, pair counts or mean reward."""
    policy = Path(result.folder, "policy.json")
    if policy.exists():
        yield f"policy {policy_dir.read_ref(policy).sha256[:12]}"
    match result.provenance.notes:
        case PairingSummary(kinds=kinds):
            yield " + ".join(f"{count.pairs} {kind}" for kind, count in kinds.items())
        case EpisodeNotes(episodes=episodes, mean_reward=mean):
            yield f"{episodes} episodes, mean reward {readable(mean)}"
