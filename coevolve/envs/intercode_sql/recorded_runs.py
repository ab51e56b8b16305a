"""InterCode's recorded runs: an agent's episodes on the development items in 2023.

A run holds actions, the results of MySQL 8.0.33 through mysql-connector, and rewards (written by
`experiments/eval_n_turn.py` and `experiments/eval_react.py` of princeton-nlp/intercode).
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coevolve.envs.intercode_sql.tasks import SqlItem
from coevolve.errors import UserError
from coevolve.storage import jsonl

#: Prefix of an error's text; the text of another result is a list of rows, or `None`.
ERROR_PREFIX = "Error executing query: "
_EXECUTE = re.compile(r"execute\[(.*)\]", re.DOTALL)


@dataclass(frozen=True)
class RecordedTurn:
    """A turn that reached the server: statement (None: a submission), observation, and reward if one was computed."""

    number: int
    statement: str | None
    observation: str
    reward: float | None


@dataclass(frozen=True)
class RecordedEpisode:
    """An episode on development item `number`; `react`: upstream's ReAct loop recorded it, with truncated results."""

    number: int
    item: SqlItem
    turns: tuple[RecordedTurn, ...]
    react: bool


def read(path: Path, dev: Path) -> list[RecordedEpisode]:
    """The episodes of a recorded run in the file's order, each with its item from the development items `dev`.

    Raises `UserError` for files in another format, or if `dev` holds other items.
    """
    items = jsonl.read_items(dev, SqlItem)
    try:
        return [_episode(record, items) for record in json.loads(path.read_text(encoding="utf-8")).values()]
    except (OSError, LookupError, TypeError, AttributeError, ValueError, RecursionError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise UserError(f"{path}: not a run that InterCode recorded on these items ({reason}).") from None


def _episode(record: dict[str, Any], items: Sequence[SqlItem]) -> RecordedEpisode:
    number = record["task_id"]
    if record["query"] != items[number].question:
        raise ValueError(f"item {number} has another question")
    history = record["turn_history"]
    react = "thoughts" in history
    # A request that the model's provider refused leaves a last action without an observation.
    turns = zip(history["actions"], history["observations"], history["rewards"], strict=False)
    parse = _react_turn if react else _plain_turn
    parsed = (parse(number, *turn) for number, turn in enumerate(turns))
    return RecordedEpisode(number, items[number], tuple(turn for turn in parsed if turn), react)


def _plain_turn(number: int, action: str, observation: str, earned: float) -> RecordedTurn | None:
    """A statement, submitted immediately; None for a text without a statement, which upstream did not execute."""
    executed = observation == "None" or observation.startswith(("[", ERROR_PREFIX))
    return RecordedTurn(number, action, observation, earned) if executed else None


def _react_turn(number: int, action: str, observation: str, earned: float) -> RecordedTurn | None:
    """A submission, or the statement in `execute[...]` up to a semicolon; None for another action."""
    if action == "submit":
        return RecordedTurn(number, None, observation, earned)
    match = _EXECUTE.search(action)
    return RecordedTurn(number, match[1].partition(";")[0], observation, None) if match else None
