"""All environments for Gymnasium 1.4: importing this module registers `coevolve/Text-v0`."""

import contextlib
from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector.utils import read_from_shared_memory, write_to_shared_memory

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


class SharedTexts(Sequence[str]):
    """The current texts in the memory that `AsyncVectorEnv` shares with its processes; a deep copy is a tuple.

    `codes` [environments, max_length]: each code point plus 1, then a 0. Gymnasium's own `Text` knows only the
    characters of its samples, and shows the texts of the beginning for ever.
    """

    def __init__(self, space: FreeText, memory: Any) -> None:
        self.codes = np.frombuffer(memory.get_obj(), np.int32).reshape(-1, space.max_length)

    def __len__(self) -> int:
        return len(self.codes)

    def __getitem__(self, index: Any) -> Any:
        codes = self.codes[index]
        return (codes[: np.append(codes, 0).argmin()] - 1).tobytes().decode("utf-32-le", "surrogatepass")

    def __deepcopy__(self, memo: dict[int, Any]) -> tuple[str, ...]:
        return tuple(self)


@read_from_shared_memory.register(FreeText)
def _read(space: FreeText, memory: Any, n: int = 1) -> SharedTexts:
    return SharedTexts(space, memory)


@write_to_shared_memory.register(FreeText)
def _write(space: FreeText, index: int, text: str, memory: Any) -> None:
    codes, row = (
        np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.int32),
        SharedTexts(space, memory).codes[index],
    )
    row[: len(codes)] = codes + 1
    row[len(codes) : len(codes) + 1] = 0


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
