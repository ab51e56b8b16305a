"""The calls of user turns, played in an episode."""

from coevolve.envs.bfcl.env import Episode


def golds(scenario):
    return [list(turn.gold) for turn in scenario.turns]


def with_bogus_calls(scenario):
    """The gold calls, with a call of a tool that does not exist in turns without a call."""
    return [turn or ["no_such_tool()"] for turn in golds(scenario)]


def play(scenario, turns, skip_empty=False):
    episode = Episode(scenario, skip_empty)
    for turn in turns:
        for call in turn:
            episode.call(call)
        episode.end_turn()
    return episode
