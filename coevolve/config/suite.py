"""The type of a suite, and what its sections must be together.

A stage receives a restricted suite (`coevolve.config.restriction`): it can read only the sections that it declares, and
its config digest covers exactly these (`coevolve.pipeline.plan`).
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, NonNegativeInt, model_validator

from coevolve.agent_data.config import TaskEvolutionConfig
from coevolve.config import sections
from coevolve.config.baselines import EvaluationConfig, GrpoConfig, PpoConfig, SelectionConfig, StepsConfig
from coevolve.config.derived.methods import for_method, models_of, supports
from coevolve.config.derived.protocol import exploration_temperature
from coevolve.config.derived.recipes import has_rollouts, prompting_only, trained_on_pairs
from coevolve.config.kinds import EnvConfig
from coevolve.config.names import Protocol
from coevolve.config.sections import Positive, Strict
from coevolve.errors import suggestion

#: A name that becomes part of a path; of a model, an environment or a download it can have points and dashes.
Name = Annotated[str, Field(pattern=r"^\w+$")]
DottedName = Annotated[str, Field(pattern=r"^\w[\w.-]*$")]
#: Folders of a suite's results that are not a model's.
FOLDERS = ("ablations", "data", "gold", "logs", "paper", "prepared", "task_growth")
#: The protocols of every environment. Another one has a file of settings in configs/envs.
GENERAL_PROTOCOLS = ("paper", "fixed")
#: Folders of `results/` that are not a suite's.
COMMITTED = ("evidence", "reference")


class Suite(Strict):
    """A whole run of the kit: everything that determines its results, and nothing about the machine.

    `looks`: numbers of seeds after which the results are looked at; left out: once, after all seeds that the file has.
    `iterations`: the number of iterations per environment. It is not a key of `envs`, so that adding an iteration does
    not change the digests of earlier ones. `without`: environments of the file that this run leaves out, such as one
    whose server this machine does not have.
    """

    suite: Name
    protocol: Protocol
    protocols: dict[Protocol, sections.Quirks]
    seeds: Annotated[list[NonNegativeInt], Field(min_length=1, max_length=256)]  # a plan of more takes minutes
    looks: list[Positive] = Field(default_factory=list)
    models: dict[DottedName, sections.ModelConfig]
    sources: dict[DottedName, sections.Source] = Field(default_factory=dict)
    envs: Annotated[dict[DottedName, EnvConfig], Field(min_length=1)]
    iterations: dict[str, Positive]
    without: list[str] = Field(default_factory=list, exclude_if=lambda names: not names)
    methods: Annotated[list[str], Field(min_length=1)]
    recipes: dict[Name, sections.Recipe]
    ablations: dict[Name, sections.Ablation] = Field(default_factory=dict)
    sft: sections.SftConfig
    dpo: sections.DpoConfig
    prompt: sections.PromptConfig
    rollout: sections.RolloutConfig
    sampler: sections.SamplerConfig
    pairing: sections.PairingConfig
    evaluation: EvaluationConfig
    selection: SelectionConfig
    steps: StepsConfig
    ppo: PpoConfig
    grpo: GrpoConfig
    task_evolution: TaskEvolutionConfig
    report: sections.ReportConfig
    regime: sections.RegimeConfig
    gradients: sections.GradientsConfig

    @model_validator(mode="after")
    def _methods_are_recipes(self) -> Suite:
        lists = {f"ablations.{name}.methods": ablation.methods for name, ablation in self.ablations.items()}
        for key, methods in {"methods": self.methods, **lists}.items():
            for method in methods:
                self._require_recipe(key, method)
            labels = [self.recipes[method].label for method in methods]
            if repeated := [method for method, label in zip(methods, labels, strict=True) if labels.count(label) > 1]:
                problem = f"`{repeated[0]}` and `{repeated[1]}` have the same label; give one another, or leave one out"
                raise ValueError(f"{key}: {problem}")
        for key in ("method", "headroom", "learnability"):
            self._require_recipe(f"regime.{key}", getattr(self.regime, key))
        if unsupported := [method for method in self.methods if not supports(self, method)]:
            raise ValueError(
                f"methods: `{unsupported[0]}` needs an environment, method or model that this suite does not have"
            )
        return self

    @model_validator(mode="after")
    def _sections_are_complete(self) -> Suite:
        if len(set(self.seeds)) < len(self.seeds):
            raise ValueError("seeds: a seed is listed twice; each gives a training of its own")
        if self.looks != sorted(set(self.looks)):
            raise ValueError("looks: numbers of seeds, each larger than the one before")
        if not models_of(self):
            raise ValueError("models: a suite has at least one model that is not that of a row (`recipes.*.model`)")
        if missing := self.envs.keys() - self.iterations.keys():
            raise ValueError(f"iterations: `{missing.pop()}` is missing")
        if unknown := sorted(self.iterations.keys() - self.envs.keys()):
            hint = suggestion(unknown[0], self.envs) or f"; it has {', '.join(self.envs)}."
            raise ValueError(f"iterations: this suite has no environment `{unknown[0]}`{hint}")
        if self.protocol not in self.protocols:
            raise ValueError(f"protocols: `{self.protocol}` is missing")
        for name, env in self.envs.items():
            if self.protocol != env.protocol and (env.protocol or self.protocol not in GENERAL_PROTOCOLS):
                allowed = (
                    f"`{env.protocol}` alone" if env.protocol else f"the protocols {' and '.join(GENERAL_PROTOCOLS)}"
                )
                raise ValueError(f"protocol: the settings of `envs.{name}` are for {allowed}; see configs/envs")
        if self.suite in COMMITTED:
            raise ValueError(f"suite: `results/{self.suite}` has committed results; give the suite another name")
        if taken := sorted(self.models.keys() & FOLDERS):
            raise ValueError(f"models: `{taken[0]}` is the folder of other results; give the model another name")
        if "base" in self.recipes:
            raise ValueError("recipes: `base` is the folder of shared results; give the row another name")
        return self

    @model_validator(mode="after")
    def _recipes_are_consistent(self) -> Suite:
        for method, recipe in self.recipes.items():
            if "trained" in recipe.settings.get("prompt", {}):
                raise ValueError(f"recipes.{method}.settings.prompt.trained: all methods share their training data")
            for agent in recipe.agents:
                for_method(self, method, agent)
            if recipe.shares_first and not recipe.shares:
                raise ValueError(f"recipes.{method}.shares_first: name the row with `shares`")
            others = {"shares": recipe.shares, "steps_like": recipe.steps_like, "first_pool": recipe.first_pool}
            for key, other in others.items():
                if other is not None:
                    self._require_recipe(f"recipes.{method}.{key}", other)
            self._require_frozen_explorers(method)
            if recipe.shares and (owner := self.recipes[recipe.shares].shares):
                raise ValueError(f"recipes.{method}.shares: `{recipe.shares}` itself `shares` `{owner}`; name that row")
            if recipe.shares and not recipe.shares_first and self._settings(method) != self._settings(recipe.shares):
                raise ValueError(
                    f"recipes.{method}.settings: all iterations are those of `{recipe.shares}`; remove them"
                )
        shown = next((f"envs.{name}" for name, env in self.envs.items() if env.single_message), None)
        for method in self.methods:  # a row that is not run may differ from an overridden one
            models = [self.models[name] for name in models_of(self, method)]
            if not prompting_only(self.recipes[method]) and any(model.endpoint for model in models):
                raise ValueError(f"methods: `{method}` trains, and an endpoint cannot be trained; take `in_context`")
            if shown and (for_method(self, method).prompt.examples or not prompting_only(self.recipes[method])):
                problem = f"`{method}` trains or has examples, but `{shown}` shows one message a step"
                raise ValueError(f"methods: {problem}; take `untrained`, or set `{shown}.prompt: null`")
            other = self.recipes[method].steps_like
            if other and not trained_on_pairs(self.recipes[other]):
                raise ValueError(f"recipes.{method}.steps_like: `{other}` is not trained on pairs; name a row that is")
            if not has_rollouts(self.recipes[method]):
                continue
            rows = [for_method(self, method, agent) for agent in self.recipes[method].agents]
            chosen = [row.pairing.failures.per_task for row in rows if row.pairing.failures]
            if chosen and max(row.rollout.k for row in rows) <= min(chosen):
                problem = f"`{method}` has no more episodes of a task than that, so it would leave none out"
                raise ValueError(f"pairing.failures.per_task: {problem}; raise `rollout.k`")
            for row in rows:
                if row.rollout.k > 1 and not exploration_temperature(row):
                    equal = f"`{method}` explores greedily, and its {row.rollout.k} episodes of a task would be equal"
                    raise ValueError(f"rollout.k: {equal}; set `rollout.temperature`")
        return self

    def _require_frozen_explorers(self, method: str) -> None:
        """An agent whose `explores` names a method has the policy that plays there in the first iteration."""
        for name, agent in self.recipes[method].agents.items():
            if not isinstance(agent.explores, str):
                continue
            key = f"recipes.{method}.agents.{name}.explores"
            self._require_recipe(key, agent.explores)
            other = self.recipes[agent.explores].agents.get(name)
            if agent.trains_on or other is None or other.explores not in (True, agent.explores):
                raise ValueError(
                    f"{key}: only a frozen agent takes the episodes of one that plays in `{agent.explores}`"
                )
            if (agent.base, agent.foreign) != (other.base, other.foreign):
                raise ValueError(f"{key}: the {name} agent of `{agent.explores}` starts as another policy")

    def _settings(self, method: str) -> list[object]:
        recipe = self.recipes[method]
        return [recipe.settings, {name: agent.settings for name, agent in recipe.agents.items()}]

    def _require_recipe(self, key: str, method: str) -> None:
        if method not in self.recipes:
            raise ValueError(f"{key}: `{method}` is not a recipe{suggestion(method, self.recipes)}")
