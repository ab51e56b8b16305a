"""Whether BFCL's simulators are here and answer as upstream's executor does: `coevolve replay bfcl`."""

import argparse
from collections.abc import Callable, Iterator

from coevolve.arguments import positive
from coevolve.assets.checks import Check, run_check
from coevolve.envs.bfcl import scenarios
from coevolve.envs.bfcl.config import BfclConfig
from coevolve.errors import UserError

HELP = "Replay all gold calls and compare each output with upstream's executor."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `run`."""
    parser.add_argument("--limit", type=positive, metavar="N", help="replay the first N scenarios of each category")


def run(options: argparse.Namespace, write: Callable[[str], None]) -> int:
    """Writes the counts of each category and the first difference; returns 1 if something differs, else 0."""
    status = 0
    for category in scenarios.CATEGORIES:
        episodes, calls, differences = replay_gold(category, options.limit)
        write(f"{category}: {episodes} episodes, {calls} calls, {len(differences)} differences")
        if differences:
            write(f"first difference: {differences[0]}")
        status |= bool(differences) or not episodes
    return status


def replay_gold(category: str, limit: int | None = None) -> tuple[int, int, list[str]]:
    """Plays the gold calls of a category's first `limit` scenarios, once here and once by upstream.

    Returns the numbers of conversations and calls, and a sentence for each difference.
    """
    chosen = scenarios.scenarios(category)[:limit]
    calls = sum(len(turn.gold) for scenario in chosen for turn in scenario.turns)
    return len(chosen), calls, [text for scenario in chosen for text in _differences(scenario)]


def check(config: BfclConfig | None) -> Check:
    """Plays the gold calls of five scenarios."""
    return run_check("BFCL", _played)


def _played() -> str:
    episodes, _, differences = replay_gold("base", 5)
    if differences:
        raise UserError(f"{differences[0]}; run `make -B setup`.")
    return f"{episodes} gold conversations replayed, none differs"


def _differences(scenario: scenarios.Scenario) -> Iterator[str]:
    from coevolve.envs.bfcl import upstream  # both load the simulators
    from coevolve.envs.bfcl.env import Episode

    episode = Episode(scenario, skip_empty=False)
    for number, turn in enumerate(scenario.turns):
        for call, expected in zip(turn.gold, upstream.execute(scenario, turn.gold), strict=True):
            if (actual := episode.call(call)) != expected:
                yield f"{scenario.name}, turn {number}: `{call}` gave `{actual}`, upstream `{expected}`"
        episode.end_turn()
    upstream.forget()
    if not episode.success:
        yield f"{scenario.name}: the gold calls earn {episode.prefix_reward}, not 1"
