"""InterCodeSQL's implementation of `coevolve.envs.registry.Domain`.

Expert trajectories are those of the kit's scripted expert, GPT-4's recorded runs, or IPR's published ones. The
statements of the first two are executed again, so that their observations are those of the agents' server.
"""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from coevolve.chat.prompts import write_action
from coevolve.envs.base import Setup
from coevolve.envs.experts import Experts, fixed_script, match_experts, play_expert, read_eto
from coevolve.envs.intercode_sql import recorded_runs, tasks
from coevolve.envs.intercode_sql.config import InterCodeSqlConfig
from coevolve.envs.intercode_sql.env import GoldQueries, InterCodeSql, fingerprint
from coevolve.envs.intercode_sql.question_templates import expert_turns, statement_turn
from coevolve.envs.intercode_sql.server import DatabaseServer
from coevolve.envs.task_split import TaskSplit
from coevolve.errors import UserError
from coevolve.records.episodes import Task
from coevolve.records.pairs import Drop, DropReason
from coevolve.storage import files

INSTRUCTION = (
    "Answer a question about a MySQL database. Each turn, write `Thought: ...` and then `Action:` with one statement:\n"
    "Action: \n```sql\nSHOW TABLES\n```\n"
    "The last result is your answer. Once it is right, write `Action: submit`."
)


def select(setup: Setup) -> TaskSplit:
    """The tasks of a suite."""
    return tasks.select(setup.config, setup.quirks.overlap)


def experts(setup: Setup, wanted: Sequence[Task]) -> Experts:
    """At most one trajectory per wanted task; raises `UserError` for a malformed file, or one for other questions."""
    config: InterCodeSqlConfig = setup.config
    source, questions = config.experts, config.items.source
    if (needed := {"scripted": "templates", "recorded": "dev"}.get(source.format, questions)) != questions:
        raise UserError(
            f"{setup.key}.experts: `{source.format}` experts answer `{needed}` questions only; take others."
        )
    if source.file is None:
        return _play_scripts(setup, wanted, {task.task_id: expert_turns(task) for task in wanted})
    path = files.verified(Path(source.file.path), source.file.sha256, f"{setup.key}.experts.file")
    if config.items.dev and source.format == "recorded":
        return _play_scripts(setup, wanted, dict(_recorded_scripts(path, Path(config.items.dev.path))))
    published = read_eto(path, _training_task, lambda text: text.partition("Action:")[2].strip() or None)
    return match_experts(published, wanted, source.min_reward)


@contextlib.contextmanager
def pool(setup: Setup, n: int) -> Iterator[list[InterCodeSql]]:
    """`n` environments on one server, for use from up to `n` threads; the server is closed on exit.

    All gold queries of the suite's items are executed first: the fingerprint of their rows is part of the identity.
    """
    config: InterCodeSqlConfig = setup.config
    dump = files.verified(Path(config.dump.path), config.dump.sha256, "dump")
    with DatabaseServer(config.server, dump) as server, contextlib.ExitStack() as stack:
        gold_queries = stack.enter_context(contextlib.closing(GoldQueries(server)))
        identity = f"{server.identity} (rows {fingerprint(gold_queries, tasks.questions(config)[0])})"
        envs = (InterCodeSql(server, gold_queries, config, setup.quirks, identity) for _ in range(n))
        yield [stack.enter_context(contextlib.closing(env)) for env in envs]


def _play_scripts(setup: Setup, wanted: Sequence[Task], scripts: Mapping[str, Sequence[str]]) -> Experts:
    """Expert trajectories from scripts by task id; scripts with more turns than the step limit are dropped."""
    turns = {task_id: len(script) for task_id, script in scripts.items()}
    overlong = [task for task in wanted if turns.get(task.task_id, 0) > setup.config.step_limit]
    rest = [task for task in wanted if task not in overlong]
    with pool(setup, 1) as (env,):
        trajectories = [
            play_expert(env, task, fixed_script(scripts[task.task_id]), INSTRUCTION, setup.protocol)
            for task in rest
            if task.task_id in scripts
        ]
    matched = match_experts(trajectories, rest, setup.config.experts.min_reward)
    drops = [
        Drop(task_id=task.task_id, reason=DropReason.OVERLONG, detail=f"{turns[task.task_id]} turns")
        for task in overlong
    ]
    return Experts(matched.trajectories, (*drops, *matched.drops))


def _recorded_scripts(path: Path, dev: Path) -> Iterator[tuple[str, list[str]]]:
    """Task ids and turns of the recorded runs with reward 1.0: the executed statements, then `submit`."""
    for episode in recorded_runs.read(path, dev):
        statements = [turn.statement for turn in episode.turns if turn.statement is not None]
        if statements and episode.turns[-1].reward == 1.0:
            yield f"intercode_sql/dev/{episode.number}", [*map(statement_turn, statements), write_action("submit")]


def _training_task(number: str) -> Task | None:
    """The training task with this id in IPR's file, None if the id is not a number."""
    task_id = f"intercode_sql/ipr/{number}"
    return Task(env="intercode_sql", task_id=task_id, split="train") if number.isdecimal() else None
