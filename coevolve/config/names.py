"""The names that configurations choose from: of objectives, pair kinds, signals and others."""

from enum import StrEnum
from typing import Literal

#: The kit's two protocols, of any environment, and named ones of WebShop (docs/environments/webshop_protocols.md).
Protocol = Literal["paper", "fixed", "eto", "verl_agent", "webshop"]
#: What happens to a prompt beyond the context: the episode ends, or the prompt is cut from the left.
LongPrompt = Literal["end", "cut_left"]
#: Which `Action:` of a text is executed (:func:`coevolve.chat.prompts.stated`).
ActionLabel = Literal["first", "last_line"]
ObjectiveName = Literal["dpo", "dpo_length", "dmpo", "simpo", "ipo", "kto"]
#: A floating-point type of forward and backward passes. None: bfloat16 on a GPU, float32 on a CPU.
ComputeDtype = Literal["float32", "bfloat16"] | None
SignalKind = Literal["forgetting", "boundary", "rare"]
#: Where a round's exploration starts: at signals, at random training tasks, or nowhere (the first tasks stay).
Exploration = Literal["signals", "random", "none"]
#: How agents learn: from pairs, with the failure agent trained before the target, from own successes (RFT), from pairs
#: of steps (IPR, HPL), by PPO, by GRPO, or on a
#: growing pool of synthetic tasks, by rounds of GRPO or on pairs.
Learns = Literal[
    "preference", "failure_agent_first", "selected", "steps", "ppo", "grpo", "task_pool", "pool_preference"
]  # fmt: skip
#: Sections that an agent of a recipe may override: those of its own exploration, pairs and training.
AgentSection = Literal["dpo", "pairing", "rollout"]
#: Sections that a recipe may override: those that no result shared between methods depends on, and `sft` in a row whose
#: target is fine-tuned for it alone.
MethodSection = Literal[
    "sft", "dpo", "pairing", "prompt", "rollout", "evaluation", "selection", "steps", "ppo", "grpo", "task_evolution"
]


class PairKind(StrEnum):
    """What a preference pair compares."""

    EXPERT_TARGET = "expert_target"  # eq. 8 (i)
    EXPERT_FAILURE = "expert_failure"  # eq. 8 (ii)
    FAILURE_FAILURE = "failure_failure"  # eq. 6 and eq. 8 (iii)
    EXPERT_STEP = "expert_step"  # IPR: two trajectories from the same branch point on
    EXPERT_GROUP = "expert_group"  # HPL: two groups of actions from the same branch point on


#: The kinds whose sides begin in the middle of a trajectory.
STEP_KINDS = (PairKind.EXPERT_STEP, PairKind.EXPERT_GROUP)
