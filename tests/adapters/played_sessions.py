"""Episodes played directly, as scripts of turns with what came back: what an adapter has to give byte for byte."""

import contextlib

import pytest

from coevolve.adapters.sessions import SessionPool, prepare_environment
from coevolve.envs.registry import domain
from coevolve.envs.workers import environments
from coevolve.errors import UserError

#: A file of configs/envs for each environment.
ENVS = ("webshop-small", "bfcl-small", "sciworld-small", "intercode_sql-small")


def lay_out(root, folder, upstream):
    """The repository's configs and data in a folder, with the databases of InterCodeSQL that the tests have."""
    (folder / "configs").symlink_to(root / "configs")
    (folder / "data/mirror/spider").mkdir(parents=True)
    (folder / "data/sciworld").symlink_to(root / "data/sciworld")
    (folder / "data/mirror/spider/spider_dev.sql").symlink_to(upstream / "intercode/ic_spider_dbs.sql")


def expert_scripts(env, n):
    """Scripts of the experts of the first `n` training tasks, and of some expert on a task of the last split.

    The second script begins with a turn without an action. Skips the test where the environment cannot be played.
    """
    with contextlib.ExitStack() as stack:
        try:
            setup, tasks = prepare_environment(env)
            experts = domain(setup.config).experts(setup, tasks["train"][:n]).trajectories
            session = SessionPool(stack.enter_context(environments(setup, 1)), tasks).acquire()
        except (UserError, ImportError) as error:
            pytest.skip(f"{env} cannot be played here: {error}")
        texts = {expert.task.task_id: [turn.text for turn in expert.turns] for expert in experts}
        other = next(iter(texts.values()))  # of a task whose expert was dropped
        scripts = [("train", index, texts.get(tasks["train"][index].task_id, other)) for index in range(n)]
        scripts[1] = (*scripts[1][:2], ["no action", *scripts[1][2]])
        return [played(session, *script) for script in [*scripts, ([*tasks][-1], 0, other)]], tasks


def played(session, split, index, texts):
    """The script of an episode of those texts."""
    seen = [[session.reset(split, index), 0.0, False]]
    for text in texts:
        step = session.step(text)
        seen.append([step.observation, step.reward, step.done or step.truncated])
        if seen[-1][2]:
            break
    return {"split": split, "index": index, "texts": texts[: len(seen) - 1], "seen": seen, "total": session.total}
