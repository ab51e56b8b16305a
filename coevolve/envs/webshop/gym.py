"""WebShop for Gymnasium: importing this module registers `coevolve/WebShop-v0`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from coevolve.envs.webshop.env import WebShop
from coevolve.envs.webshop.tagger import Name

ID = "coevolve/WebShop-v0"
#: Longest texts in characters. A page can hold fifty thousand values of options; an action is one line.
PAGE, ACTION = 1 << 20, 1 << 12


class Writing(spaces.Text):
    """Any text of at most `max_length` characters; samples are of letters and digits."""

    def __init__(self, max_length: int) -> None:
        super().__init__(max_length, min_length=0)

    def contains(self, x: Any) -> bool:
        """Whether it is a text and short enough."""
        return isinstance(x, str) and len(x) <= self.max_length


class WebShopEnv(gymnasium.Env[str, str]):
    """Text in, text out: an action is `search[words]` or `click[text]`, an observation is a page.

    `reset` draws a goal, heavier ones more often, or takes `options={"goal": number}`. `info` has the goal's number
    and what can be clicked, after a purchase also the parts of the reward. Arguments are those of `WebShop.open`.
    """

    metadata = gymnasium.Env.metadata | {"render_modes": ["ansi"], "render_fps": 1}

    def __init__(
        self,
        folder: str | Path,
        seed: int = 0,
        human: bool = True,
        tagged_by: Name = "approximate",
        render_mode: str | None = None,
    ) -> None:
        self.observation_space = Writing(PAGE)
        self.action_space = Writing(ACTION)
        self.render_mode = render_mode
        self.shop = WebShop.open(Path(folder), seed, human, tagged_by)
        weights = np.array([goal.weight for goal in self.shop.goals])
        self._shares = weights / weights.sum()
        self._goal, self._page = 0, ""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """The start page of a goal."""
        super().reset(seed=seed)
        chosen = (options or {}).get("goal")
        self._goal = int(self.np_random.choice(len(self._shares), p=self._shares)) if chosen is None else chosen
        self._page, clickables = self.shop.reset(self._goal)
        return self._page, {"goal": self._goal, "clickables": clickables}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """The page after `action`, the reward in [0, 1], whether something was bought, and False: it is never cut."""
        self._page, reward, done, info = self.shop.step(action)
        return self._page, reward, done, False, {"goal": self._goal, **info}

    def render(self) -> str:
        """The page."""
        return self._page


if ID not in gymnasium.registry:
    gymnasium.register(ID, entry_point=f"{__name__}:{WebShopEnv.__name__}")
