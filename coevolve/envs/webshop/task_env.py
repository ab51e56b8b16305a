"""WebShop as an environment of the kit: tasks are goals of a prepared shop, pages have the format of ETO's wrapper."""

import dataclasses
import random

from coevolve import seeds
from coevolve.chat.prompts import stated
from coevolve.envs.base import FORMAT_ERROR, OVER, EnvError, StepResult, truncate
from coevolve.envs.webshop.config import WebShopConfig
from coevolve.envs.webshop.goals import Goal, SyntheticGoal, synthetic_goal
from coevolve.envs.webshop.page_rewards import PageRewardSession
from coevolve.envs.webshop.prepared_shop import PreparedShop
from coevolve.envs.webshop.session import ShopSession
from coevolve.errors import UserError
from coevolve.records.episodes import Task
from coevolve.settings.protocol import Quirks


def parse_action(text: str) -> str | None:
    """The text after the first `Action: `, None without that label; the session reads its first line."""
    _, label, action = text.strip().partition("Action: ")
    return action if label else None


class WebShopTaskEnv:
    """One environment on a shared shop. Implements `coevolve.envs.base.Env`.

    `start` returns the start page, each step `Observation:` and the page on the next line. Before a purchase the reward
    is 0, or with `webshop_timeout` "page" that of the page (`PageRewardSession`). Nothing earns a reward in an open
    task, whose purchase ends the episode without a page.
    """

    def __init__(self, prepared: PreparedShop, config: WebShopConfig, quirks: Quirks) -> None:
        self.identity = prepared.identity
        self._prepared = prepared
        self._config = config
        self._action_label = quirks.action_label
        self._session_type = PageRewardSession if quirks.webshop_timeout == "page" else ShopSession
        self._session: ShopSession | None = None
        self._open = False  # the task has an instruction and no goal
        self._last = StepResult(observation=OVER, reward=0.0, score=0.0, done=True)

    @property
    def session(self) -> ShopSession:
        """The running episode."""
        if self._session is None:
            raise EnvError("no episode is running; call start")
        return self._session

    def parse(self, text: str) -> str | None:
        """The text after `Action: `, None without that label."""
        return parse_action(stated(text, self._action_label))

    def start(self, task: Task) -> str:
        """The start page of a task's goal (`data`: {"goal": number}), or of a synthetic task's purchase.

        Raises `UserError` for an unknown goal.
        """
        prepared, number = self._prepared, _goal_number(task, len(self._prepared.goals))
        goal, self._open = _goal(task, prepared, number), "request" in task.data and "purchase" not in task.data
        rng = random.Random(seeds.derive(self._config.seed, "webshop", number))
        self._session = self._session_type(prepared.shop, prepared.prices, prepared.tagger, goal, rng)
        self._last = StepResult(self._cut(self._session.page.text), reward=0.0, score=0.0, done=False)
        return self._last.observation

    def step(self, action: str | None) -> StepResult:
        """Apply `action`; None is answered by `FORMAT_ERROR` and has the reward 0."""
        if self._last.done:
            self._last = StepResult(observation_text(OVER), self._last.reward, self._last.score, done=True)
        elif action is None:
            self._last = StepResult(observation_text(FORMAT_ERROR), reward=0.0, score=0.0, done=False)
        else:
            outcome = self.session.step(action)
            # The page after a purchase shows its score.
            page = OVER if self._open and outcome.done else self._cut(outcome.page.text)
            earned = 0.0 if self._open else outcome.reward
            self._last = StepResult(observation_text(page), earned, earned, outcome.done)
        return self._last

    def step_limit(self, task: Task) -> int:
        """The configured limit, the same for all tasks."""
        return self._config.step_limit

    def close(self) -> None:
        """End the episode; the shop stays open."""
        self._session = None

    def _cut(self, page: str) -> str:
        return truncate(page, self._config.observation_length)


def observation_text(text: str) -> str:
    """The observation after an action, in ETO's format."""
    return f"Observation:\n{text}"


def _goal(task: Task, prepared: PreparedShop, number: int) -> Goal:
    """The goal with this number, or that of a synthetic task, which has an instruction of its own."""
    if "request" not in task.data:
        return prepared.goals[number]
    instruction = str(task.data["request"])
    if "purchase" not in task.data:
        return dataclasses.replace(prepared.goals[number], instruction=instruction)
    return synthetic_goal(prepared.shop, SyntheticGoal.from_json(str(task.data["purchase"])), instruction)


def _goal_number(task: Task, goals: int) -> int:
    number = task.data.get("goal")
    if not isinstance(number, int) or not 0 <= number < goals:
        raise UserError(f"task `{task.task_id}`: `data` must hold `goal`, a number from 0 to {goals - 1}.")
    return number
