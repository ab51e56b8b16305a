"""The gold conversations, played here and by upstream's executor."""

from __future__ import annotations

from dataclasses import dataclass

from coevolve.envs.bfcl import scenarios, upstream
from coevolve.envs.bfcl.episode import Episode


@dataclass(frozen=True)
class GoldReport:
    """Numbers of conversations and calls, and a sentence for each difference."""

    episodes: int
    calls: int
    differences: tuple[str, ...]


def replay_gold(category: str, limit: int | None = None) -> GoldReport:
    """Plays the gold calls of a category's first `limit` scenarios, once here and once by upstream."""
    chosen = scenarios.scenarios(category)[:limit]
    calls = sum(len(turn.gold) for scenario in chosen for turn in scenario.turns)
    return GoldReport(len(chosen), calls, tuple(text for scenario in chosen for text in _differences(scenario)))


def _differences(scenario: scenarios.Scenario) -> list[str]:
    episode, differences = Episode(scenario, skip_empty=False), []
    for number, turn in enumerate(scenario.turns):
        for call, expected in zip(turn.gold, upstream.execute(scenario, turn.gold), strict=True):
            if (actual := episode.call(call)) != expected:
                differences.append(f"{scenario.name}, turn {number}: `{call}` gave `{actual}`, upstream `{expected}`")
        episode.end_turn()
    upstream.forget()
    if not episode.success:
        differences.append(f"{scenario.name}: the gold calls earn {episode.prefix_reward}, not 1")
    return differences
