"""WebShop as the stages play it: the goals of a prepared shop are the tasks, pages look as in ETO's wrapper."""

from __future__ import annotations

import contextlib
import random
import re
from collections.abc import Iterator
from pathlib import Path

from coevolve import seeds
from coevolve.config.sections import Quirks
from coevolve.envs.base import FORMAT_ERROR, OVER, EnvError, StepResult, cut
from coevolve.envs.webshop.config import WebShopConfig
from coevolve.envs.webshop.prepared import Stock
from coevolve.envs.webshop.session import Session
from coevolve.envs.webshop.timeout import PaidSession
from coevolve.errors import UserError
from coevolve.types import Task

_ACTION = re.compile(r"Action: (.*)", re.DOTALL)


class WebShopEpisodes:
    """One shopper at a time in a shop that others share. Implements `coevolve.envs.base.Env`.

    `start` answers with the bare start page, each step with `Observation:` and the page on a line below. The reward is
    0 until something is bought, or under `webshop_timeout` "page" that of the page (`PaidSession`).
    """

    def __init__(self, stock: Stock, config: WebShopConfig, quirks: Quirks) -> None:
        self._stock = stock
        self._config = config
        self._kind = PaidSession if quirks.webshop_timeout == "page" else Session
        self._session: Session | None = None
        self._last = StepResult(observation=OVER, reward=0.0, score=0.0, done=True)

    @property
    def identity(self) -> str:
        """The catalogue, the goals, and the tagger and the matcher that the reward rests on."""
        return self._stock.identity

    def parse(self, text: str) -> str | None:
        """See `action_in`."""
        return action_in(text)

    def start(self, task: Task) -> str:
        """The start page of a task's goal (`data`: {"goal": number}); raises `UserError` if there is no such goal."""
        stock, number = self._stock, _goal(task, len(self._stock.goals))
        rng = random.Random(seeds.derive(self._config.seed, "webshop", number))
        self._session = self._kind(stock.shop, stock.prices, stock.tagger, stock.goals[number], rng)
        self._last = StepResult(self._cut(self._session.page.text), reward=0.0, score=0.0, done=False)
        return self._last.observation

    def step(self, action: str | None) -> StepResult:
        """Do `action` in the shop; None is answered here, and pays nothing."""
        if self._last.done:
            self._last = StepResult(shown(OVER), self._last.reward, self._last.score, done=True)
        elif action is None:
            self._last = StepResult(shown(FORMAT_ERROR), reward=0.0, score=0.0, done=False)
        else:
            outcome = self._running().step(action)
            page = shown(self._cut(outcome.page.text))
            self._last = StepResult(page, outcome.reward, outcome.reward, outcome.done)
        return self._last

    def step_limit(self, task: Task) -> int:
        """The configured limit, the same for all tasks."""
        return self._config.step_limit

    def close(self) -> None:
        """Forget the episode; the shop is closed by whoever opened it."""
        self._session = None

    def _running(self) -> Session:
        if self._session is None:
            raise EnvError("no episode is running; call start")
        return self._session

    def _cut(self, page: str) -> str:
        return cut(page, self._config.observation_length)


@contextlib.contextmanager
def pool(config: WebShopConfig, quirks: Quirks, prepared: Path, chance: int, n: int) -> Iterator[list[WebShopEpisodes]]:
    """`n` environments for up to `n` threads in the one shop that was prepared; `chance` is the seed of a draw."""
    stock = Stock.open(prepared, config, chance if quirks.webshop_draws == "each_job" else None)
    yield [WebShopEpisodes(stock, config, quirks) for _ in range(n)]


def action_in(text: str) -> str | None:
    """Everything after the first `Action: `, None if there is none; the shop reads its first line."""
    found = _ACTION.search(text.strip())
    return found[1] if found else None


def shown(text: str) -> str:
    """What follows an action, in ETO's form."""
    return f"Observation:\n{text}"


def _goal(task: Task, goals: int) -> int:
    number = task.data.get("goal")
    if not isinstance(number, int) or not 0 <= number < goals:
        raise UserError(f"task `{task.task_id}`: `data` must hold `goal`, a number from 0 to {goals - 1}.")
    return number
