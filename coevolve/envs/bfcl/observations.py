"""How BFCL's observations are written and read."""

import re

from coevolve.records.episodes import Turn

#: How the output of a call begins that was not executed, or whose tool answered with an error.
ERRORS = ("Error", '{"error"')
_RESPONSE = re.compile(r"<tool_response>\n(.*?)\n</tool_response>", re.DOTALL)


def written(output: str, in_block: bool) -> str:
    """The output of a call as an observation shows it: as it is, or `in_block`, the one of Hermes."""
    return f"<tool_response>\n{output}\n</tool_response>" if in_block else output


def output(observation: str) -> str:
    """The output in an observation of a single call."""
    block = _RESPONSE.fullmatch(observation)
    return block[1] if block else observation


def is_refused(before: str, turn: Turn) -> bool:
    """Whether the call was not executed, or its tool answered with an error."""
    return output(turn.observation).startswith(ERRORS)
