"""InterCodeSQL's experts: the kit's own script, GPT-4's recorded runs, or IPR's published file.

The first two are played here, so that their observations are those of the server that the agents meet.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from coevolve.chat.prompts import write_action
from coevolve.config.sections import SourceFile
from coevolve.envs.base import Setup
from coevolve.envs.experts import Experts, Guide, matched, played, read_eto
from coevolve.envs.intercode_sql import recorded
from coevolve.envs.intercode_sql.config import InterCodeSqlConfig
from coevolve.envs.intercode_sql.env import pool
from coevolve.envs.intercode_sql.templates import say, solution
from coevolve.errors import UserError
from coevolve.storage import files
from coevolve.types import Drop, DropReason, Task

INSTRUCTION = (
    "Answer a question about a MySQL database. Each turn, write `Thought: ...` and then `Action:` with one statement:\n"
    "Action: \n```sql\nSHOW TABLES\n```\n"
    "The last result is your answer. Once it is right, write `Action: submit`."
)


def experts(setup: Setup, wanted: Sequence[Task]) -> Experts:
    """One expert of at least the configured reward per wanted task at most; raises `UserError` for a malformed file."""
    config: InterCodeSqlConfig = setup.config
    source = config.experts
    if source.file is None and config.items.source != "templates":
        raise UserError(f"{setup.key}.experts: the script answers questions made from templates only; give a `file`.")
    if source.file is None:
        return _played(setup, wanted, {task.task_id: solution(task) for task in wanted})
    path = files.verified(Path(source.file.path), source.file.sha256, f"{setup.key}.experts.file")
    if source.format == "recorded":
        return _played(setup, wanted, dict(_recorded(path, config.items.dev)))
    return matched(read_eto(path, _task_of_number, _action), wanted, source.min_reward)


def _played(setup: Setup, wanted: Sequence[Task], scripts: Mapping[str, Sequence[str]]) -> Experts:
    """The scripts of the wanted tasks, played; those of more turns than an episode has are dropped."""
    scripted = [task for task in wanted if task.task_id in scripts]
    long = [task for task in scripted if len(scripts[task.task_id]) > setup.config.step_limit]
    with pool(setup.config, setup.quirks, 1) as (env,):
        found = [
            played(env, task, _reader(scripts[task.task_id]), INSTRUCTION, setup.protocol)
            for task in scripted
            if task not in long
        ]
    experts = matched(found, [task for task in wanted if task not in long], setup.config.experts.min_reward)
    drops = tuple(
        Drop(task_id=task.task_id, reason=DropReason.OVERLONG, detail=f"{len(scripts[task.task_id])} turns")
        for task in long
    )
    return Experts(experts.trajectories, (*drops, *experts.drops))


def _reader(script: Sequence[str]) -> Guide:
    """A guide that reads a script out, whatever it is told."""
    return lambda _: (text for text in script)


def _recorded(path: Path, dev: SourceFile | None) -> Iterator[tuple[str, list[str]]]:
    """The runs that earned 1.0 in 2023, in the kit's words: the statements that were run, then `submit`."""
    for episode in recorded.read(path, Path(dev.path) if dev else None):
        statements = [turn.statement for turn in episode.turns if turn.statement is not None]
        if statements and episode.turns[-1].reward == 1.0:
            yield f"intercode_sql/dev/{episode.number}", [*map(say, statements), write_action("submit")]


def _task_of_number(number: str) -> Task | None:
    """The training item that IPR's file numbers so."""
    name = f"intercode_sql/ipr/{number}"
    return Task(env="intercode_sql", task_id=name, split="train") if number.isdecimal() else None


def _action(text: str) -> str | None:
    return text.partition("Action:")[2].strip() or None
