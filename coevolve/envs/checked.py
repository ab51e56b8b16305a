"""An environment whose answers are checked: the code of an environment's package may be anybody's."""

import dataclasses
import inspect
import math
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, SupportsFloat, SupportsInt

from coevolve.envs.base import Env, EnvError, StepResult
from coevolve.errors import UserError, brief
from coevolve.records.episodes import Task

#: Longer actions, in characters, are not executed, unless the environment has another `action_limit`.
ACTION_LIMIT = 16_384
#: An episode with more steps would hardly end.
MAX_STEPS = 100_000
TOO_LONG = "The action was not executed: it has {length:,} characters, and at most {limit:,} are allowed."


class CheckedEnv:
    """`env` behind the interface `coevolve.envs.base.Env`; its errors are `EnvError` or `UserError`.

    An action of more than `env.action_limit` characters (default `ACTION_LIMIT`) is answered by `TOO_LONG`. An
    exception, or an answer of the wrong type, is a `UserError` that names the task, and file and line of the package.
    """

    def __init__(self, env: Env) -> None:
        self._env, self._task = env, ""
        self._limit: int = getattr(env, "action_limit", ACTION_LIMIT)
        self._last = StepResult("", reward=0.0, score=0.0, done=False)
        self.identity = env.identity

    def parse(self, text: str) -> str | None:
        """The action in a policy's text."""
        action = self._call(self._env.parse, text)
        return None if action is None else self._text(self._env.parse, action)

    def start(self, task: Task) -> str:
        """Starts `task`."""
        self._task = f"environment `{task.env}`, task `{task.task_id}`"
        self._last = StepResult("", reward=0.0, score=0.0, done=False)
        return self._text(self._env.start, self._call(self._env.start, task))

    def step(self, action: str | None) -> StepResult:
        """Executes `action`, if it is not too long."""
        if action is not None and len(action) > self._limit:
            answer = TOO_LONG.format(length=len(action), limit=self._limit)
            self._last = dataclasses.replace(self._last, observation=answer)
        else:
            self._last = self._checked(self._call(self._env.step, action))
        return self._last

    def step_limit(self, task: Task) -> int:
        """The maximum number of steps in an episode of `task`."""
        limit = self._call(self._env.step_limit, task)
        if not isinstance(limit, int) or not 1 <= limit <= MAX_STEPS:
            raise self._wrong(self._env.step_limit, f"{limit!r}, not a whole number from 1 to {MAX_STEPS:,}")
        return limit

    def close(self) -> None:
        """Closes the environment."""
        self._call(self._env.close)

    def _checked(self, result: Any) -> StepResult:
        """The result of a step with its parts as the types that they are declared as."""
        if not isinstance(result, StepResult):
            raise self._wrong(self._env.step, f"{result!r}, not a `StepResult`")
        numbers = {"reward": result.reward, "score": result.score}
        for name, value in numbers.items():
            if not isinstance(value, SupportsFloat) or not math.isfinite(value):
                raise self._wrong(self._env.step, f"the {name} {value!r}, not a finite number")
        if not -1.0 <= float(result.reward) <= 1.0:
            raise self._wrong(self._env.step, f"the reward {result.reward!r}, not a number from 0 to 1")
        if not isinstance(result.done, SupportsInt) or result.done not in (False, True):
            raise self._wrong(self._env.step, f"`done` as {result.done!r}, not as True or False")
        observation = self._text(self._env.step, result.observation)
        return StepResult(observation, float(result.reward), float(result.score), bool(result.done))

    def _text(self, method: Callable[..., Any], value: Any) -> str:
        if not isinstance(value, str):
            raise self._wrong(method, f"{value!r}, not a text")
        return value

    def _call(self, method: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return method(*arguments)
        except (EnvError, UserError):
            raise
        except (Exception, SystemExit) as error:
            where = self._innermost(error)
            problem = f"{type(error).__name__}: {brief(error)}"
            raise self._error(f"`{method.__name__}` failed with {problem} ({where})") from error

    def _wrong(self, method: Callable[..., Any], answer: str) -> UserError:
        """The error for a wrong answer, with the line on which the method begins."""
        code = getattr(inspect.unwrap(method), "__code__", None)
        where = f" ({code.co_filename}:{code.co_firstlineno})" if code else ""
        return self._error(f"`{method.__name__}` returned {brief(answer)}{where}")

    def _error(self, problem: str) -> UserError:
        return UserError(f"{self._task or self.identity}: {problem}; correct the environment.")

    def _innermost(self, error: BaseException) -> str:
        """File and line of the innermost call in the environment's package, or else of the innermost call."""
        frames = [(frame.filename, frame.lineno) for frame in traceback.extract_tb(error.__traceback__)]
        folder = Path(sys.modules[type(self._env).__module__].__file__ or "").parent
        of_package = [frame for frame in frames if Path(frame[0]).is_relative_to(folder)]
        return "{}:{}".format(*(of_package or frames)[-1])
