"""All environments for verifiers 0.4.0: the taskset `coevolve_taskset`, and the env that plays it.

verifiers finds a taskset as a top-level module, so this folder has to be on PYTHONPATH, and the package is installed in
an environment of its own (envs_setup/verifiers.lock). The environment plays the user: it is
stepped in this process, and the episode's reward is recorded once, at the end.
"""

import asyncio
import atexit
import contextlib
import functools
from collections.abc import Iterator
from typing import Any

import verifiers.v1 as vf

import coevolve
from coevolve.adapters.sessions import SessionPool, open_sessions

__all__ = ["CoevolveEnv", "CoevolveTaskset"]
_open = contextlib.ExitStack()
# Before the interpreter ends its daemon threads, which read what the environments' processes answer.
atexit.register(_open.close)


class CoevolveConfig(vf.TasksetConfig):
    """`env` and `suite` as in `open_sessions`; `sessions` episodes at once."""

    env: str = "webshop-small"
    suite: str | None = None
    split: str = "train"
    sessions: int = 8


class CoevolveData(vf.TaskData):
    """A task by its place in its split, with the environment it is of. `version`: that of the kit's package."""

    version: str
    env: str
    suite: str | None
    split: str
    index: int
    sessions: int


class CoevolveTask(vf.Task[CoevolveData, vf.State, vf.TaskConfig]):
    """A task of an environment of the kit."""


class CoevolveEnvConfig(vf.EnvConfig):
    """The agent's section."""

    player: vf.AgentConfig = vf.AgentConfig()


class CoevolveEnv(vf.Env[CoevolveEnvConfig]):
    """The loop of an episode: observations are user messages, replies are turns."""

    async def run(self, task: Any, agents: Any) -> None:
        """Play `task` with the agent `player`."""
        data = task.data
        pool = _pool(data.env, data.suite, data.sessions)
        free = _free_sessions(asyncio.get_running_loop(), pool, data.sessions)
        await free.acquire()  # waits without one of the threads that the sessions need
        session = pool.acquire()
        try:
            text = await asyncio.to_thread(session.reset, data.split, data.index)
            async with agents.player.interaction(task) as interaction:
                segment = await interaction.turn(text)
                while not segment.terminated:
                    step = await asyncio.to_thread(session.step, segment.last_reply)
                    if step.done or step.truncated:
                        break
                    segment = await interaction.turn(step.observation)
            interaction.trace.record_reward("reward", session.total, 1.0)
        finally:
            pool.release(session)
            free.release()


class CoevolveTaskset(vf.Taskset[CoevolveTask, CoevolveConfig]):
    """The tasks of one split of an environment."""

    def load(self) -> Iterator[CoevolveTask]:
        """One task for each of the split's."""
        config = self.config
        names = config.model_dump(include={"env", "suite", "split", "sessions"})
        names["version"] = coevolve.__version__
        for index, task in enumerate(_pool(config.env, config.suite, config.sessions).tasks[config.split]):
            yield CoevolveTask(CoevolveData(name=task.task_id, index=index, **names), config.task)


@functools.cache
def _free_sessions(loop: asyncio.AbstractEventLoop, pool: SessionPool, sessions: int) -> asyncio.Semaphore:
    """Counts the free sessions of a pool for the episodes of an event loop."""
    return asyncio.Semaphore(sessions)


@functools.cache
def _pool(env: str, suite: str | None, sessions: int) -> SessionPool:
    """The sessions of an environment; its servers end with this process."""
    return _open.enter_context(open_sessions(env, sessions, suite=suite))
