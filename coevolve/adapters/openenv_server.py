"""All environments for OpenEnv 0.10.0: `python -m coevolve.adapters.openenv_server --env webshop-small`.

The package is installed in an environment of its own (envs_setup/openenv.lock). Rewards are changes of the episode's
reward, because clients sum them. `coevolve.adapters.openenv_client` is the client.
"""

import argparse
import os
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any

import uvicorn
from fastapi import HTTPException
from openenv.core.env_server import Environment, create_app
from openenv.core.env_server.types import EnvironmentMetadata

import coevolve
from coevolve.adapters.openenv_client import EpisodeState, TextObservation, TurnAction
from coevolve.adapters.sessions import Session, SessionPool, open_sessions, tasks_of
from coevolve.errors import UserError
from coevolve.records.episodes import Task


class OpenEnvEnvironment(Environment[TurnAction, TextObservation, EpisodeState]):
    """One session; the server opens one for each client, and the pool bounds their number."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self, name: str, pool: SessionPool) -> None:
        super().__init__()
        self._name, self._pool = name, pool
        self._session: Session | None = None
        self._state = EpisodeState(version=coevolve.__version__)

    def reset(
        self, seed: int | None = None, episode_id: str | None = None, split: str = "train", index: int = 0, **_: Any
    ) -> TextObservation:
        """Start task `index` of `split`; `seed` does not matter, episodes are deterministic."""
        self._session = self._session or self._pool.acquire()
        text = self._session.reset(split, index)
        task = {"split": split, "index": index, "task_id": self._pool.tasks[split][index].task_id}
        self._state = EpisodeState(episode_id=episode_id or f"{split}/{index}", version=coevolve.__version__, **task)
        return TextObservation(text=text)

    def step(self, action: TurnAction, timeout_s: float | None = None, **_: Any) -> TextObservation:
        """Play a turn."""
        if self._session is None:
            raise ValueError("no episode is running; call reset first")
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
        """Give the session back."""
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
        """The tasks of a split; an unknown one is answered with status 400 and a sentence."""
        try:
            return tasks_of(self._pool.tasks, split)
        except UserError as error:
            raise HTTPException(HTTPStatus.BAD_REQUEST, str(error)) from None


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
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    options = parser.parse_args()
    with open_sessions(options.env, options.sessions, suite=options.suite) as pool:
        app = create_app(
            lambda: OpenEnvEnvironment(options.env, pool),
            TurnAction,
            TextObservation,
            env_name=options.env,
            max_concurrent_envs=options.sessions,
        )
        uvicorn.run(app, host=options.host, port=options.port, log_level="warning")


if __name__ == "__main__":
    main()
