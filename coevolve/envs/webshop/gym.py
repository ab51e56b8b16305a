"""WebShop for Gymnasium: importing this module registers `coevolve/WebShop-v0`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from coevolve.envs.text_space import FreeText
from coevolve.envs.webshop.env import WebShop
from coevolve.envs.webshop.tagger import TaggerName

ID = "coevolve/WebShop-v0"
#: Maximal lengths in characters. A page may have fifty thousand option values; an action is one line.
MAX_PAGE_LENGTH, MAX_ACTION_LENGTH = 1 << 20, 1 << 12


class WebShopGymEnv(gymnasium.Env[str, str]):
    """WebShop with text actions (`search[words]` or `click[text]`) and text observations (pages).

    `reset` draws a goal in proportion to its weight, or takes `options={"goal": number}`. `info` holds the number of
    the goal, the clickable texts and, after a purchase, the parts of the reward. Arguments are those of `WebShop.open`.
    """

    metadata = gymnasium.Env.metadata | {"render_modes": ["ansi"], "render_fps": 1}

    def __init__(
        self,
        folder: str | Path,
        seed: int = 0,
        human: bool = True,
        tagged_by: TaggerName = "approximate",
        render_mode: str | None = None,
    ) -> None:
        self.observation_space = FreeText(MAX_PAGE_LENGTH)
        self.action_space = FreeText(MAX_ACTION_LENGTH)
        self.render_mode = render_mode
        self.shop = WebShop.open(Path(folder), seed, human, tagged_by)
        weights = np.array([goal.weight for goal in self.shop.goals])
        self._probabilities = weights / weights.sum()
        self._goal, self._page = 0, ""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """The start page of a goal."""
        super().reset(seed=seed)
        chosen = (options or {}).get("goal")
        self._goal = (
            int(self.np_random.choice(len(self._probabilities), p=self._probabilities)) if chosen is None else chosen
        )
        self._page, clickables = self.shop.reset(self._goal)
        return self._page, {"goal": self._goal, "clickables": clickables}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """The page after `action`, the reward in [0, 1], whether a purchase was made, False, and `info`."""
        self._page, reward, done, info = self.shop.step(action)
        return self._page, reward, done, False, {"goal": self._goal, **info}

    def render(self) -> str:
        """The current page."""
        return self._page


if ID not in gymnasium.registry:
    gymnasium.register(ID, entry_point=f"{__name__}:{WebShopGymEnv.__name__}")
