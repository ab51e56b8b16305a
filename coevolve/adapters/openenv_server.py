"""All environments for OpenEnv 0.10.0: `python -m coevolve.adapters.openenv_server --env webshop-small`.

The package is installed in an environment of its own (envs_setup/openenv.lock). Rewards are changes of the episode's
reward, because clients sum them.
"""

from __future__ import annotations

import argparse
from typing import Any

import uvicorn
from openenv.core.env_server import Action, Environment, Observation, State, create_app

from coevolve.adapters.sessions import Session, SessionPool, open_sessions
from coevolve.types import Task


class TurnAction(Action):
    """A policy's turn, as text."""

    text: str


class TextObservation(Observation):
    """What the environment answers. `truncated`: the step limit ended the episode."""

    text: str
    truncated: bool = False


class OpenEnvEnvironment(Environment[TurnAction, TextObservation, State]):
    """One session; the server opens one for each client, and the pool bounds their number."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self, pool: SessionPool) -> None:
        super().__init__()
        self._pool = pool
        self._session: Session | None = None
        self._state = State()

    def reset(
        self, seed: int | None = None, episode_id: str | None = None, split: str = "train", index: int = 0, **_: Any
    ) -> TextObservation:
        """Start task `index` of `split`; `seed` does not matter, episodes are deterministic."""
        self._session = self._session or self._pool.acquire()
        text = self._session.reset(split, index)
        self._state = State(episode_id=episode_id or f"{split}/{index}", step_count=0)
        return TextObservation(text=text)

    def step(self, action: TurnAction, timeout_s: float | None = None, **_: Any) -> TextObservation:
        """Play a turn."""
        if self._session is None:
            raise ValueError("no episode is running; call reset first")
        step = self._session.step(action.text)
        self._state.step_count += 1
        done = step.done or step.truncated
        return TextObservation(text=step.observation, reward=step.reward, done=done, truncated=step.truncated)

    @property
    def state(self) -> State:
        """Episode and number of turns."""
        return self._state

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
        return len(self._pool.tasks[split])

    def get_task(self, split: str, index: int) -> dict[str, Any]:
        """A task."""
        return _task(self._pool.tasks[split][index], index)

    def list_tasks(self, split: str) -> list[dict[str, Any]]:
        """The tasks of a split."""
        return [_task(task, index) for index, task in enumerate(self._pool.tasks[split])]


def _task(task: Task, index: int) -> dict[str, Any]:
    return {"id": task.task_id, "index": index, "split": task.split, "kind": task.kind}


def main() -> None:
    """Serve an environment until the process is ended."""
    parser = argparse.ArgumentParser(description="Serve an environment of the kit to OpenEnv's clients.")
    parser.add_argument("--env", required=True, help="a name of configs/envs, such as webshop-small")
    parser.add_argument("--suite", help="take the environment from this suite")
    parser.add_argument("--sessions", type=int, default=8, help="episodes at once (default: %(default)s)")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    options = parser.parse_args()
    with open_sessions(options.env, options.sessions, suite=options.suite) as pool:
        app = create_app(
            lambda: OpenEnvEnvironment(pool),
            TurnAction,
            TextObservation,
            env_name=options.env,
            max_concurrent_envs=options.sessions,
        )
        uvicorn.run(app, host=options.host, port=options.port, log_level="warning")


if __name__ == "__main__":
    main()
