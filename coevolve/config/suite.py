"""The type of a suite, and what its sections must be together.

A stage receives a restricted suite (`coevolve.config.restriction`): it can read only the sections that it declares, and
its config digest covers exactly these (`coevolve.pipeline.plan`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field, NonNegativeInt, ValidationError, model_validator

from coevolve.agent_data.config import TaskEvolutionConfig
from coevolve.assets.settings import Source
from coevolve.chat.prompts import PromptConfig
from coevolve.config.models import ModelConfig
from coevolve.config.report import RegimeConfig, ReportConfig
from coevolve.envs.section import EnvConfig, has_module
from coevolve.errors import UserError, suggestion
from coevolve.methods.recipes import Ablation, Recipe, has_pool, has_rollouts, prompting_only, trained_on_pairs
from coevolve.methods.settings import PairingConfig, SelectionConfig, StepsConfig
from coevolve.policies.settings import SamplerConfig
from coevolve.rollout import EvaluationConfig, RolloutConfig
from coevolve.settings.protocol import Protocol, Quirks
from coevolve.settings.section import Positive, Strict
from coevolve.settings.validation import explain
from coevolve.train.settings import DpoConfig, GradientsConfig, GrpoConfig, PpoConfig, SftConfig

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
    protocols: dict[Protocol, Quirks]
    seeds: Annotated[list[NonNegativeInt], Field(min_length=1, max_length=256)]  # a plan of more takes minutes
    looks: list[Positive] = Field(default_factory=list)
    models: dict[DottedName, ModelConfig]
    sources: dict[DottedName, Source] = Field(default_factory=dict)
    envs: Annotated[dict[DottedName, EnvConfig], Field(min_length=1)]
    iterations: dict[str, Positive]
    without: list[str] = Field(default_factory=list)
    methods: Annotated[list[str], Field(min_length=1)]
    recipes: dict[Name, Recipe]
    ablations: dict[Name, Ablation] = Field(default_factory=dict)
    sft: SftConfig
    dpo: DpoConfig
    prompt: PromptConfig
    rollout: RolloutConfig
    sampler: SamplerConfig
    pairing: PairingConfig
    evaluation: EvaluationConfig
    selection: SelectionConfig
    steps: StepsConfig
    ppo: PpoConfig
    grpo: GrpoConfig
    task_evolution: TaskEvolutionConfig
    report: ReportConfig
    regime: RegimeConfig
    gradients: GradientsConfig

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
        if self.dpo.steps_like:
            raise ValueError("dpo.steps_like: it is about one row; set it in `recipes.METHOD.settings.dpo`")
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
            if matched := for_method(self, method, "target").dpo.steps_like:
                self._require_recipe(f"recipes.{method}.settings.dpo.steps_like", matched)
            self._require_frozen_explorers(method)
            if shares := recipe.shares:
                self._require_recipe(f"recipes.{method}.shares", shares.method)
                if shares.first != "pool" and (owner := self.recipes[shares.method].shares):
                    problem = f"`{shares.method}` itself `shares` `{owner.method}`; name that row"
                    raise ValueError(f"recipes.{method}.shares: {problem}")
                if not shares.first and self._settings(method) != self._settings(shares.method):
                    problem = f"all iterations are those of `{shares.method}`; remove them"
                    raise ValueError(f"recipes.{method}.settings: {problem}")
        shown = next((f"envs.{name}" for name, env in self.envs.items() if env.single_message), None)
        for method in self.methods:  # a row that is not run may differ from an overridden one
            models = [self.models[name] for name in models_of(self, method)]
            if not prompting_only(self.recipes[method]) and any(model.endpoint for model in models):
                raise ValueError(f"methods: `{method}` trains, and an endpoint cannot be trained; take `in_context`")
            if shown and (for_method(self, method).prompt.examples or not prompting_only(self.recipes[method])):
                problem = f"`{method}` trains or has examples, but `{shown}` shows one message a step"
                raise ValueError(f"methods: {problem}; take `untrained`, or set `{shown}.prompt: null`")
            other = for_method(self, method, "target").dpo.steps_like
            if other and not trained_on_pairs(self.recipes[other]):
                key = f"recipes.{method}.settings.dpo.steps_like"
                raise ValueError(f"{key}: `{other}` is not trained on pairs; name a row that is")
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


def for_method(suite: Suite, method: str, agent: str | None = None) -> Suite:
    """The suite with a recipe's `settings`, then those of one of its agents; raises `ValueError` if one is wrong."""
    recipe = suite.recipes[method]
    changed = _applied(suite, recipe.settings, f"recipes.{method}.settings")
    if agent in recipe.agents:
        changed = _applied(changed, recipe.agents[agent].settings, f"recipes.{method}.agents.{agent}.settings")
    return changed


def _applied(suite: Suite, settings: Mapping[Any, dict[str, Any]], key: str) -> Suite:
    changed: dict[str, Any] = {}
    for name, values in settings.items():
        if (section := getattr(suite, name, None)) is None:
            continue
        try:
            changed[name] = type(section).model_validate({**dict(section), **values})
        except ValidationError as error:
            raise ValueError(f"{key}.{name}: {explain(error, type(section), {})}") from None
    return suite.model_copy(update=changed)


def iterations_of(suite: Suite, env: str, method: str) -> int:
    """Iterations of a method in an environment: the recipe's, else the environment's."""
    iterations = suite.recipes[method].iterations
    return suite.iterations[env] if iterations is None else iterations


def failure_trainings(suite: Suite, env: str, method: str) -> int:
    """Iterations in which a failure agent is trained, if it learns: all but the last, after which it does not explore.

    All, if it is trained before the target.
    """
    return iterations_of(suite, env, method) - (suite.recipes[method].learns != "failure_agent_first")


def supports(suite: Suite, method: str) -> bool:
    """Whether the suite has the method's model and all that it takes from other environments, and can make its tasks.

    Tiny models have a tokenizer per environment, so a policy of one environment cannot start in another.
    """
    recipe = suite.recipes[method]
    if recipe.model and recipe.model not in suite.models:
        return False
    if has_pool(recipe) and not all(has_module(env.kind, "synthesis") for env in suite.envs.values()):
        return False
    agents = recipe.agents.values()
    foreign = {other for agent in agents for env, other in agent.foreign.items() if env in suite.envs}
    tiny = any(model.tiny for model in suite.models.values())
    return not foreign or (not tiny and foreign <= suite.envs.keys() and "coevolve" in suite.recipes)


def models_of(suite: Suite, method: str | None = None) -> list[str]:
    """The keys of the models that a method is run with: its own, or the suite's, which no row has for itself."""
    of_rows = {recipe.model for recipe in suite.recipes.values()}
    if method is not None and (model := suite.recipes[method].model):
        return [model] if model in suite.models else []
    return [name for name in suite.models if name not in of_rows]


def with_model(suite: Suite, model: str | None = None) -> Suite:
    """The suite with one of its models, by default the first, beside those that rows have for themselves.

    Raises `UserError` for an unknown model.
    """
    names = models_of(suite)
    name = names[0] if model is None else model
    if name not in names:
        raise UserError(f"suite `{suite.suite}` has no model `{name}`; name one of {', '.join(names)}.")
    kept = {key: value for key, value in suite.models.items() if key == name or key not in names}
    return suite.model_copy(update={"models": kept})


def labels(suite: Suite) -> dict[str, str]:
    """The label of every method by its key."""
    return {method: recipe.label for method, recipe in suite.recipes.items()}


def quirks(suite: Suite) -> Quirks:
    """The switches of the suite's protocol."""
    return suite.protocols[suite.protocol]


def exploration_temperature(suite: Suite) -> float:
    """The temperature of exploration, by default the protocol's; 0 is greedy."""
    temperature = suite.rollout.temperature
    return quirks(suite).exploration_temperature if temperature is None else temperature


def engine(suite: Suite, model: str) -> str:
    """The engine of a model's policies: the suite's sampler, or `endpoint`."""
    return "endpoint" if suite.models[model].endpoint else suite.sampler.engine
