"""Remarks under a table: rows with filtered episodes, with many flawed turns, or with almost no reward."""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Protocol

from coevolve.records.episodes import StopReason
from coevolve.records.evaluation import TurnFlaw
from coevolve.report.labels import STOPS

#: The share of an evaluation's turns from which on its row is named.
LIMIT = 0.1
#: The share of an evaluation's episodes without reward above which their endings are named.
ZEROS = 0.9
_WORDS = {TurnFlaw.CUT: "cut at the token limit", TurnFlaw.EMPTY: "empty", TurnFlaw.NO_ACTION: "without an action"}


class _Episode(Protocol):
    @property
    def reward(self) -> float: ...
    @property
    def stop(self) -> StopReason: ...
    @property
    def turns(self) -> int: ...
    @property
    def flaws(self) -> Mapping[TurnFlaw, int]: ...


def remark(rows: Iterable[tuple[str, Collection[_Episode]]]) -> str:
    """Names such rows, each with its evaluated episodes; empty if there is none."""
    named = [f"{name}: {', '.join(texts)}" for name, episodes in rows if (texts := [*_remarks(episodes)])]
    sentence = (
        "More than a tenth of the turns were cut, empty or without an action, or a content filter ended episodes."
    )
    return f"{sentence} {'; '.join(named)}." if named else ""


def unrewarded(rows: Iterable[tuple[str, Collection[_Episode]]]) -> str:
    """Names the rows of which more than `ZEROS` of the episodes earn 0, each with the endings of these; else empty."""
    named = []
    for name, episodes in rows:
        zeros = [episode for episode in episodes if not episode.reward]
        if len(zeros) > ZEROS * len(episodes):
            ends = Counter(STOPS[episode.stop] for episode in zeros).most_common()
            turns, idle = sum(e.turns for e in zeros), sum(e.flaws.get(TurnFlaw.NO_ACTION, 0) for e in zeros)
            without = f", {idle} of {turns} turns without an action" if idle else ""
            named.append(f"{name}, {len(zeros)}: {', '.join(f'{end} {count}' for end, count in ends)}{without}")
    sentence = "More than nine of ten episodes earned nothing; their endings:"
    return f"{sentence} {'; '.join(named)}." if named else ""


def _remarks(episodes: Collection[_Episode]) -> Iterator[str]:
    """Such as `31 % cut at the token limit`."""
    turns = sum(episode.turns for episode in episodes)
    counts = sum((Counter(episode.flaws) for episode in episodes), Counter[TurnFlaw]())
    if counts.total() > LIMIT * turns:
        yield from (f"{100 * counts[flaw] / turns:.0f} % {word}" for flaw, word in _WORDS.items() if counts[flaw])
    if filtered := sum(episode.stop is StopReason.CONTENT_FILTER for episode in episodes):
        yield f"{filtered} of {len(episodes)} episodes filtered"
