"""A method as a row of a table: who explores, who is trained on which pairs, how often."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from coevolve.methods.settings import PairWeights
from coevolve.records.pairs import STEP_KINDS, PairKind
from coevolve.settings.section import Positive, Strict

#: Keys of a recipe that went, and what stands for them.
RENAMED = {
    "shares_first": "`shares: {method: METHOD, first: NUMBER}`",
    "first_pool": "`shares: {method: METHOD, first: pool}`",
    "steps_like": "`settings: {dpo: {steps_like: METHOD}}`",
    "failure_agent_first": "`learns: failure_agent_first`",
}
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
#: The values of `Learns` with a pool of tasks, and those with preference pairs of whole trajectories.
POOL_LEARNING: tuple[Learns, ...] = ("task_pool", "pool_preference")
PAIR_LEARNING: tuple[Learns, ...] = ("preference", "failure_agent_first", "pool_preference")


class AgentRecipe(Strict):
    """One agent of a method: its base policy, and the pairs it is trained on (none: it stays frozen).

    `explores`: whether it plays the training tasks in each iteration. The name of a method, for a frozen agent: it does
    not play; its episodes are in all iterations those of that method's first one.
    `foreign`: for an environment, another environment; the failure agent that `coevolve` trained there is this
    agent's start policy. `settings`: keys of the suite's sections that this agent overrides, after those of its recipe.
    """

    base: Literal["untrained", "target", "failure"]
    explores: bool | str
    foreign: dict[str, str] = Field(default={})
    trains_on: dict[PairKind, PairWeights] = Field(default={})
    settings: dict[AgentSection, dict[str, Any]] = Field(default={})

    @field_validator("trains_on", mode="before")
    @classmethod
    def _drop_null_kinds(cls, kinds: Any) -> Any:
        """Drop the kinds set to null: the recipe removes them from the recipe that it extends."""
        if not isinstance(kinds, dict):
            return kinds
        return {kind: weights for kind, weights in kinds.items() if weights is not None}


class Shared(Strict):
    """What a method takes from another `method`: all its iterations, so that only their number differs, or the `first`.

    `first` iterations are shared, and this method's settings hold for the others; `pool`: only its first pool of tasks.
    """

    method: str
    first: Positive | Literal["pool"] | None = None


class Recipe(Strict):
    """A method as a row of a table: who explores, who is trained on which pairs with which weights, how often.

    `learns`: what the agents do in one iteration (`coevolve.pipeline.paper`). `settings`: keys of the suite's sections
    that this method overrides. `shares`: what it takes from another method. `model`: the key of the model that this
    row is about, in place of the suite's.
    """

    label: str
    source: str
    iterations: Annotated[int, Field(ge=0)] | None
    learns: Learns = "preference"
    shares: Shared | None = None
    agents: dict[Literal["target", "failure"], AgentRecipe]
    model: str | None = None
    settings: dict[MethodSection, dict[str, Any]] = Field(default={})

    @model_validator(mode="before")
    @classmethod
    def _of_this_version(cls, raw: Any) -> Any:
        """A row that shares whole iterations names only the method; raises `ValueError` for a key that went."""
        if isinstance(raw, dict):
            for key in raw.keys() & RENAMED.keys():
                raise ValueError(f"`{key}` is now {RENAMED[key]}; write that")
            if isinstance(raw.get("shares"), str):
                return {**raw, "shares": {"method": raw["shares"]}}
        return raw

    @model_validator(mode="after")
    def _keys_fit(self) -> Recipe:
        target, failure = self.agents.get("target"), self.agents.get("failure")
        if target is None or target.base == "failure":
            raise ValueError("`agents.target` is required, with `base` `target` or `untrained`: it is evaluated")
        if self.learns == "failure_agent_first" and not (failure and failure.explores and failure.trains_on):
            raise ValueError("`learns: failure_agent_first` requires a failure agent that explores and is trained")
        if "steps_like" in self.settings.get("dpo", {}) and not learns_from_pairs(self):
            raise ValueError(f"`steps_like` requires a method that is trained on pairs, not `learns: {self.learns}`")
        if self.shares and self.shares.first == "pool" and not has_pool(self):
            raise ValueError(f"`first: pool` requires a method with a pool of tasks, not `learns: {self.learns}`")
        if "sft" in self.settings and self.learns != "selected":
            raise ValueError("`settings.sft` requires `learns: selected`: base policies have the suite's `sft`")
        kinds = {*STEP_KINDS}
        with_steps = {name for name, agent in self.agents.items() if kinds & agent.trains_on.keys()}
        if with_steps != ({"target"} if self.learns == "steps" else set()):
            listed = " or ".join(f"`{kind}`" for kind in STEP_KINDS)
            raise ValueError(f"`learns: steps` requires {listed} in `agents.target.trains_on`, and the reverse")
        if with_steps and failure:
            raise ValueError("`learns: steps` has no failure agent; remove `agents.failure`")
        return self


class Ablation(Strict):
    """A separate table that compares the methods which answer one question.

    `default`: a full run makes the table too, and judges the claims about its methods.
    """

    label: str
    source: str
    methods: Annotated[list[str], Field(min_length=1)]
    default: bool = Field(default=False, exclude=True)


def has_pool(recipe: Recipe) -> bool:
    """Whether the method trains on a growing pool of synthetic tasks, instead of the suite's."""
    return recipe.learns in POOL_LEARNING


def learns_from_pairs(recipe: Recipe) -> bool:
    """Whether agents learn from preference pairs, of trajectories or of steps."""
    return recipe.learns in (*PAIR_LEARNING, "steps")


def trains(recipe: Recipe, agent: Literal["target", "failure"]) -> bool:
    """Whether a method trains an agent; methods that learn without pairs train the target only."""
    return bool(recipe.agents[agent].trains_on) if learns_from_pairs(recipe) else agent == "target"


def has_rollouts(recipe: Recipe) -> bool:
    """Whether an agent explores in the stage `rollout`; PPO, GRPO and task pools play inside their training."""
    explores = any(agent.explores for agent in recipe.agents.values())
    return explores and recipe.learns not in ("ppo", "grpo", "task_pool")


def trained_on_pairs(recipe: Recipe) -> bool:
    """Whether an agent is trained on preference pairs; one without pair kinds is frozen."""
    return learns_from_pairs(recipe) and any(agent.trains_on for agent in recipe.agents.values())


def prompting_only(recipe: Recipe) -> bool:
    """Whether the method evaluates the base model without training."""
    return recipe.iterations == 0 and all(agent.base == "untrained" for agent in recipe.agents.values())
