"""The config section of agent-data mutual evolution (arXiv 2604.15840)."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from coevolve.config.names import Exploration, SignalKind
from coevolve.config.sections import EndpointConfig, Positive, Rate, Strict, UnitInterval


class TaskEvolutionConfig(Strict):
    """Rounds of GRPO on a pool of synthetic tasks, which grows by exploration after each round.

    A round takes `steps` GRPO steps. The first pool has at most `initial_tasks` tasks, from `initial_fragments`
    explorations that start at random training tasks; each later round adds at most `new_tasks` from `fragments`
    explorations, which start where `exploration` says.

    Signals: `signals` lists those that are used. An episode succeeds, and a task is solved, from the reward `success`
    on. `window` is W, the number of last visits of a task; `rare` is theta, in per cent. `score`: what a visit's scores
    are, those of each `trajectory` or the mean reward of its `group`.

    The `explorer` is rule-based, the agent itself, or the model of `endpoint`. Its fragments have at most `turns` turns
    and `actions` executed actions, without those that lead to a rare action. `abstraction`: the instruction of a task
    is written by rules, or by the explorer. `validation`: reference solutions are executed twice. `similarity`: the
    word Jaccard index of two instructions from which on the second is dropped (None: only equal solutions are).
    `replay`: the share of a round's visits that go to tasks of earlier rounds (None: all tasks of the pool are visited
    equally often).
    """

    steps: Positive
    initial_tasks: Positive
    initial_fragments: Positive
    new_tasks: Positive
    fragments: Positive
    exploration: Exploration
    signals: list[SignalKind]
    success: UnitInterval
    window: Annotated[int, Field(ge=2)]
    score: Literal["trajectory", "group"]
    rare: Rate
    explorer: Literal["scripted", "policy", "endpoint"]
    endpoint: EndpointConfig | None = None
    turns: Positive
    actions: Positive
    abstraction: Literal["rules", "model"]
    validation: bool
    similarity: UnitInterval | None
    replay: UnitInterval | None

    @model_validator(mode="after")
    def _explorer_is_complete(self) -> TaskEvolutionConfig:
        if (self.endpoint is None) == (self.explorer == "endpoint"):
            raise ValueError("`explorer: endpoint` needs the section `endpoint`, and no other explorer takes it")
        if self.explorer == "scripted" and self.abstraction == "model":
            raise ValueError("`abstraction: model` needs an explorer with a model: `policy` or `endpoint`")
        return self
