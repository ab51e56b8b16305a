"""All environments for OpenEnv 0.10.0: `python -m coevolve.adapters.openenv_server --env webshop-small`.

The package is installed in an environment of its own (envs_setup/openenv.lock). Rewards are changes of the episode's
reward, because clients sum them. `coevolve.adapters.openenv_client` is the client.
"""

import argparse
import functools
import os
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any

import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from openenv.core.env_server import Environment, create_app
from openenv.core.env_server.types import ConcurrencyConfig, EnvironmentMetadata

import coevolve
from coevolve.adapters.openenv_client import EpisodeState, TextObservation, TurnAction
from coevolve.adapters.sessions import Session, SessionPool, open_sessions, tasks_of
from coevolve.arguments import positive
from coevolve.envs.base import EnvError
from coevolve.errors import UserError
from coevolve.records.episodes import Task

#: A session that was given up is free once its last step has ended.
WAIT_SECONDS = 2.0
NO_EPISODE = (
    "no episode is running; call reset first, on the same web socket: each HTTP request has its own environment."
)
CLOSED = "this session was not used for a long time and is closed; connect again."


class OpenEnvEnvironment(Environment[TurnAction, TextObservation, EpisodeState]):
    """One session; the server opens one for each client, and the pool bounds their number."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self, name: str, pool: SessionPool) -> None:
        super().__init__()
        self._name, self._pool = name, pool
        self._session: Session | None = None
        self._closed = False
        self._state = EpisodeState(version=coevolve.__version__)

    def reset(
        self, seed: int | None = None, episode_id: str | None = None, split: str = "train", index: int = 0, **_: Any
    ) -> TextObservation:
        """Start task `index` of `split`; `seed` does not matter, episodes are deterministic."""
        if self._closed:
            raise UserError(CLOSED)
        self._session = self._session or self._pool.acquire(WAIT_SECONDS)
        text = self._session.reset(split, index)
        task = {"split": split, "index": index, "task_id": self._pool.tasks[split][index].task_id}
        self._state = EpisodeState(episode_id=episode_id or f"{split}/{index}", version=coevolve.__version__, **task)
        return TextObservation(text=text)

    def step(self, action: TurnAction, timeout_s: float | None = None, **_: Any) -> TextObservation:
        """Play a turn."""
        if self._session is None:
            raise UserError(CLOSED if self._closed else NO_EPISODE)
        step = self._session.step(action.text)
        self._state.step_count, self._state.total = self._session.turns, step.total
        done = step.done or step.truncated
        return TextObservation(text=step.observation, reward=step.reward, done=done, truncated=step.truncated)

    @property
    def state(self) -> EpisodeState:
        """The running episode."""
        return self._state

    def get_metadata(self) -> EnvironmentMetadata:
        """Name of the environment, its implementation, and the version of this package."""
        return EnvironmentMetadata(name=self._name, description=self._pool.identity, version=coevolve.__version__)

    def close(self) -> None:
        """Give the session back; it is the end of this environment."""
        self._closed = True
        if self._session is not None:
            self._pool.release(self._session)
            self._session = None

    def list_splits(self) -> list[str]:
        """Names of the splits."""
        return list(self._pool.tasks)

    def num_tasks(self, split: str) -> int:
        """The number of tasks in a split."""
        return len(self._tasks(split))

    def get_task(self, split: str, index: int) -> dict[str, Any]:
        """A task; raises IndexError for an index that none has, which the server answers with status 400."""
        if index < 0:
            raise IndexError(index)
        return _task(self._tasks(split)[index], index)

    def list_tasks(self, split: str) -> list[dict[str, Any]]:
        """The tasks of a split."""
        return [_task(task, index) for index, task in enumerate(self._tasks(split))]

    def _tasks(self, split: str) -> Sequence[Task]:
        return tasks_of(self._pool.tasks, split)


def make_app(name: str, pool: SessionPool, idle_seconds: float) -> FastAPI:
    """OpenEnv's application: bad requests get status 400 and failures of the environment 503, each with a sentence."""
    app = create_app(
        lambda: OpenEnvEnvironment(name, pool),
        TurnAction,
        TextObservation,
        env_name=name,
        concurrency_config=ConcurrencyConfig(max_concurrent_envs=pool.size, session_timeout=idle_seconds),
    )
    for kind, status in ((UserError, HTTPStatus.BAD_REQUEST), (EnvError, HTTPStatus.SERVICE_UNAVAILABLE)):
        app.add_exception_handler(kind, functools.partial(_answer, status))
    return app


def _answer(status: HTTPStatus, request: Request, error: Exception) -> JSONResponse:
    return JSONResponse({"detail": str(error)}, status)


def _task(task: Task, index: int) -> dict[str, Any]:
    return {"id": task.task_id, "index": index, "split": task.split, "kind": task.kind}


def main() -> None:
    """Serve an environment until the process is ended."""
    parser = argparse.ArgumentParser(description="Serve an environment of the kit to OpenEnv's clients.")
    parser.add_argument(
        "--env",
        default=os.environ.get("COEVOLVE_ENV", "webshop-small"),
        help="a name of configs/envs (default: the variable COEVOLVE_ENV, else webshop-small)",
    )
    parser.add_argument("--suite", help="take the environment from this suite")
    parser.add_argument("--sessions", type=int, default=8, help="episodes at once (default: %(default)s)")
    idle = "free a session that was not used for so many seconds (default: %(default)s)"
    parser.add_argument("--idle-seconds", type=positive, default=3600, help=idle)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    options = parser.parse_args()
    with open_sessions(options.env, options.sessions, suite=options.suite) as pool:
        app = make_app(options.env, pool, options.idle_seconds)
        uvicorn.run(app, host=options.host, port=options.port, log_level="warning")


if __name__ == "__main__":
    main()
