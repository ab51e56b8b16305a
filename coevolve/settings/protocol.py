"""The rules of play that environments, prompts and tables share: the protocol, and its switches."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from coevolve.settings.section import Strict

#: The kit's two protocols, of any environment, and named ones of WebShop (docs/environments/webshop_protocols.md).
Protocol = Literal["paper", "fixed", "eto", "verl_agent", "webshop"]
#: What happens to a prompt beyond the context: the episode ends, or the prompt is cut from the left.
LongPrompt = Literal["end", "cut_left"]
#: Which `Action:` of a text is executed (:func:`coevolve.chat.prompts.stated`).
ActionLabel = Literal["first", "last_line"]


class Quirks(Strict):
    """One switch for each deviation of upstream's code from the paper, numbered as in configs/parts/protocols.yaml."""

    exploration_temperature: float = Field(ge=0.0)  # 1
    overlap: Literal["keep", "remove"]  # 3
    long_prompt: LongPrompt  # 5
    success: Literal["any_ending", "reward_one"]  # 6
    format_error_resets: bool  # 7
    webshop_draws: Literal["each_job", "once"]  # 2
    webshop_timeout: Literal["page", "zero"]  # 8
    sql_wrapper: Literal["lenient", "exact"]  # 9
    sql_reward: Literal["raw", "clipped"]  # 10
    env_error: Literal["zero", "exclude"]  # 12
    action_label: ActionLabel = "first"  # 13; results from before it have no such key
