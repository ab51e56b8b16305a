"""All environments for Gymnasium 1.4: importing this module registers `coevolve/Text-v0`."""

import contextlib
from typing import Any

import gymnasium
from gymnasium.error import CustomSpaceError
from gymnasium.vector.utils import create_shared_memory

from coevolve.adapters.sessions import open_sessions, tasks_of

ID = "coevolve/Text-v0"
#: Maximal lengths in characters.
MAX_OBSERVATION, MAX_TURN = 1 << 20, 1 << 16


class FreeText(gymnasium.spaces.Text):
    """Texts of at most `max_length` characters of any kind; samples consist of letters and digits."""

    def __init__(self, max_length: int) -> None:
        super().__init__(max_length, min_length=0)

    def contains(self, x: Any) -> bool:
        """Whether `x` is a text of at most `max_length` characters."""
        return isinstance(x, str) and len(x) <= self.max_length


@create_shared_memory.register(FreeText)
def _unshared(space: FreeText, n: int = 1, ctx: Any = None) -> None:
    """Gymnasium's shared memory of texts has only the characters of a space's samples."""
    raise CustomSpaceError("texts of any kind are not shared; give `shared_memory=False`")


class TextEnv(gymnasium.Env[str, str]):
    """An environment of the kit: actions are a policy's turns, observations are texts.

    `reset` draws a task of `split`, or takes `options={"split": NAME, "index": NUMBER}`. A step's reward is the change
    of the episode's reward: the return is the reward that the kit reports. Arguments are those of `open_sessions`.
    """

    def __init__(self, env: str, split: str = "train", **options: Any) -> None:
        self.observation_space, self.action_space = FreeText(MAX_OBSERVATION), FreeText(MAX_TURN)
        self._split, self._stack = split, contextlib.ExitStack()
        self.session = self._stack.enter_context(open_sessions(env, 1, **options)).acquire()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """The first observation of a task, and its id."""
        super().reset(seed=seed)
        split = (options or {}).get("split", self._split)
        index = (options or {}).get("index")
        if index is None:
            index = int(self.np_random.integers(len(tasks_of(self.session.tasks, split))))
        text = self.session.reset(split, index)
        assert self.session.task is not None
        return text, {"split": split, "index": index, "task_id": self.session.task.task_id}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """The next observation, the change of the reward, whether the episode ended or was truncated, and `info`.

        Raises `coevolve.envs.base.EnvError` as `Session.step` does.
        """
        step = self.session.step(action)
        return step.observation, step.reward, step.done, step.truncated, {"total": step.total, "action": step.action}

    def close(self) -> None:
        """Ends servers and processes."""
        self._stack.close()


if ID not in gymnasium.registry:
    gymnasium.register(ID, entry_point=f"{__name__}:{TextEnv.__name__}")
