"""ScienceWorld as an environment: the real simulator, without its outputs that agents do not read."""

import dataclasses
from importlib import metadata

from coevolve.chat.prompts import parse_action, stated
from coevolve.envs.base import FORMAT_ERROR, OVER, EnvError, StepResult
from coevolve.envs.sciworld import tasks
from coevolve.envs.sciworld.jvm import Reading, Simulator, World, check_simplification, simplifications_for
from coevolve.errors import UserError
from coevolve.records.episodes import Task
from coevolve.settings.protocol import ActionLabel

#: An action is one line of at most this many characters: the simulator takes seconds over a very long one.
ACTION_LENGTH = 300
#: The simulator adds rounded shares of a goal up; from here on the sum is meant to be 1.
FULL_SCORE = 0.995


class SciWorld:
    """One environment: a world inside a `simulator` that may hold others. Implements `coevolve.envs.base.Env`.

    `start` returns the task description, a newline and the observation of `look around`, the first action of every
    episode, which does not count as a step. The reward is the largest raw score so far (quirk 7).
    """

    identity = f"ScienceWorld {metadata.version('scienceworld')}"

    def __init__(
        self,
        simulator: Simulator,
        simplification: str,
        *,
        format_error_resets: bool = False,
        step_limit: int | None = None,
        action_label: ActionLabel = "first",
    ) -> None:
        check_simplification(simplification)
        self._simulator = simulator
        self._simplification = simplification
        self._format_error_resets = format_error_resets
        self._step_limit = step_limit
        self._action_label = action_label
        self._world: World | None = None
        self._last = StepResult(observation=OVER, reward=0.0, score=0.0, done=True)

    def parse(self, text: str) -> str | None:
        """The rest of the line after `Action:`."""
        return parse_action(stated(text, self._action_label))

    def start(self, task: Task) -> str:
        """Load `task` (`data`: {"task": type, "variation": number}); raises `UserError` for an unknown task."""
        try:
            return self._begin(*_address(task))
        except EnvError:
            if self._world is None:
                raise
            # The JVM ended after the last episode, so this episode has not failed.
            self._world = None
            return self._begin(*_address(task))

    def step(self, action: str | None) -> StepResult:
        """Executes the first line of `action`; None leads to an observation without a call of the simulator."""
        if self._last.done:
            self._last = dataclasses.replace(self._last, observation=OVER)
        elif action is None:
            reward = 0.0 if self._format_error_resets else self._last.reward
            self._last = dataclasses.replace(self._last, observation=FORMAT_ERROR, reward=reward)
        elif self._world is None:
            raise EnvError("no episode is running; call start")
        else:
            self._last = self._result(self._simulator.step(self._world, first_line(action)))
        return self._last

    def step_limit(self, task: Task) -> int:
        """The configured limit, else ETO's for the task's type."""
        return self._step_limit or tasks.step_limit(_address(task)[0])

    def close(self) -> None:
        """Drops the world; the simulator is closed by its owner."""
        if self._world is not None:
            self._simulator.drop(self._world)
        self._world = None

    def _begin(self, kind: str, variation: int) -> str:
        world = self._world
        if world is None or not self._simulator.holds(world):
            self._world = None
            world = self._simulator.new_world()
        try:
            description = self._simulator.load(world, kind, variation, simplifications_for(kind, self._simplification))
        except UserError:
            self._simulator.drop(world)
            self._world = None
            raise
        seen = self._simulator.step(world, "look around")
        self._world = world
        self._last = StepResult(observation=seen.observation, reward=0.0, score=seen.score, done=False)
        return f"{description}\n{seen.observation}"

    def _result(self, reading: Reading) -> StepResult:
        done = reading.completed or reading.score < 0
        reward = min(max(self._last.reward, reading.score), 1.0)
        if done and reward >= FULL_SCORE:
            reward = 1.0
        return StepResult(observation=reading.observation, reward=reward, score=reading.score, done=done)


def first_line(action: str) -> str:
    """The first line of `action`, cut to 300 characters that UTF-8 can encode."""
    line = action.strip().split("\n", 1)[0]
    return line[:ACTION_LENGTH].encode("utf-8", "replace").decode("utf-8")


def _address(task: Task) -> tuple[str, int]:
    """Type and variation; raises `UserError` for what the simulator would answer with the world it had before."""
    kind, variation = task.data.get("task"), task.data.get("variation")
    if not isinstance(kind, str) or not isinstance(variation, int) or variation < 0:
        raise UserError(f"task `{task.task_id}`: `data` must hold `task` (a type) and `variation` (0 or more).")
    return kind, variation
