"""The remark under a table on rows with filtered episodes, or with many turns cut, empty or without an action."""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Protocol

from coevolve.records.episodes import StopReason
from coevolve.records.evaluation import TurnFlaw

#: The share of an evaluation's turns from which on its row is named.
LIMIT = 0.1
_WORDS = {TurnFlaw.CUT: "cut at the token limit", TurnFlaw.EMPTY: "empty", TurnFlaw.NO_ACTION: "without an action"}


class _Episode(Protocol):
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


def _remarks(episodes: Collection[_Episode]) -> Iterator[str]:
    """Such as `31 % cut at the token limit`."""
    turns = sum(episode.turns for episode in episodes)
    counts = sum((Counter(episode.flaws) for episode in episodes), Counter[TurnFlaw]())
    if counts.total() > LIMIT * turns:
        yield from (f"{100 * counts[flaw] / turns:.0f} % {word}" for flaw, word in _WORDS.items() if counts[flaw])
    if filtered := sum(episode.stop is StopReason.CONTENT_FILTER for episode in episodes):
        yield f"{filtered} of {len(episodes)} episodes filtered"
