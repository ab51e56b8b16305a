"""Suites: strict, typed YAML that inherits by `extends:` and is overridden by dotted keys.

An unknown key is an error that suggests the nearest known key. A stage receives a :func:`restrict`-ed suite: it can
read only the keys that it declares, and its config digest covers exactly those keys (`coevolve.workflow.plan`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, Field, NonNegativeInt, ValidationError, model_validator

from coevolve.config.baselines import EvaluationConfig, GrpoConfig, PpoConfig, SelectionConfig, StepsConfig
from coevolve.config.environments import UNKNOWN_KIND, EnvConfig, EnvSection, has_module, section_class
from coevolve.config.sections import (
    POOL_LEARNING,
    Ablation,
    DpoConfig,
    GradientsConfig,
    ModelConfig,
    PairingConfig,
    Positive,
    PromptConfig,
    Quirks,
    Recipe,
    RegimeConfig,
    ReportConfig,
    RolloutConfig,
    SamplerConfig,
    SftConfig,
    Source,
    Strict,
)
from coevolve.config.task_evolution import TaskEvolutionConfig
from coevolve.config.yaml_files import Section, read_yaml
from coevolve.errors import UserError, suggestion
from coevolve.shipped import FOLDER, shipped_file
from coevolve.types import Protocol

M = TypeVar("M", bound=BaseModel)
#: A name that becomes part of a path; of a model, an environment or a download it can have points and dashes.
Name = Annotated[str, Field(pattern=r"^\w+$")]
DottedName = Annotated[str, Field(pattern=r"^\w[\w.-]*$")]
#: Folders of a suite's results that are not a model's.
FOLDERS = ("ablations", "data", "gold", "logs", "paper", "prepared", "task_growth")
#: Folders of `results/` that are not a suite's.
COMMITTED = ("evidence", "reference")


class Suite(Strict):
    """A whole run of the kit: everything that determines its results, and nothing about the machine.

    `iterations`: the number of iterations per environment. It is not a key of `envs`, so that adding an iteration does
    not change the digests of earlier ones.
    """

    suite: Name
    protocol: Protocol
    protocols: dict[Protocol, Quirks]
    seeds: Annotated[list[NonNegativeInt], Field(min_length=1)]
    models: dict[DottedName, ModelConfig]
    sources: dict[DottedName, Source] = Field(default_factory=dict)
    envs: Annotated[dict[DottedName, EnvConfig], Field(min_length=1)]
    iterations: dict[str, Positive]
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

    @property
    def labels(self) -> dict[str, str]:
        """The label of every method by its key."""
        return {method: recipe.label for method, recipe in self.recipes.items()}

    @property
    def quirks(self) -> Quirks:
        """The switches of the suite's protocol."""
        return self.protocols[self.protocol]

    @property
    def exploration_temperature(self) -> float:
        """The temperature of exploration, by default the protocol's; 0 is greedy."""
        temperature = self.rollout.temperature
        return self.quirks.exploration_temperature if temperature is None else temperature

    @model_validator(mode="after")
    def _methods_are_recipes(self) -> Suite:
        lists = {f"ablations.{name}.methods": ablation.methods for name, ablation in self.ablations.items()}
        for key, methods in {"methods": self.methods, **lists}.items():
            for method in methods:
                self._require_recipe(key, method)
        for key in ("method", "headroom", "learnability"):
            self._require_recipe(f"regime.{key}", getattr(self.regime, key))
        if unsupported := [method for method in self.methods if not self.supports(method)]:
            raise ValueError(
                f"methods: `{unsupported[0]}` needs an environment, method or model that this suite does not have"
            )
        return self

    @model_validator(mode="after")
    def _sections_are_complete(self) -> Suite:
        if len(set(self.seeds)) < len(self.seeds):
            raise ValueError("seeds: a seed is listed twice; each gives a training of its own")
        if not self.models:
            raise ValueError("models: a suite has at least one model")
        if missing := self.envs.keys() - self.iterations.keys():
            raise ValueError(f"iterations: `{missing.pop()}` is missing")
        if unknown := sorted(self.iterations.keys() - self.envs.keys()):
            hint = suggestion(unknown[0], self.envs) or f"; it has {', '.join(self.envs)}."
            raise ValueError(f"iterations: this suite has no environment `{unknown[0]}`{hint}")
        if self.protocol not in self.protocols:
            raise ValueError(f"protocols: `{self.protocol}` is missing")
        if self.suite in COMMITTED:
            raise ValueError(f"suite: `results/{self.suite}` has committed results; give the suite another name")
        if taken := sorted(self.models.keys() & FOLDERS):
            raise ValueError(f"models: `{taken[0]}` is the folder of other results; give the model another name")
        if "base" in self.recipes:
            raise ValueError("recipes: `base` is the folder of shared results; give the row another name")
        return self

    @model_validator(mode="after")
    def _endpoints_are_not_trained(self) -> Suite:
        if any(model.endpoint for model in self.models.values()):
            for method in self.methods:
                if not self.recipes[method].prompting_only:
                    raise ValueError(
                        f"methods: `{method}` trains, and an endpoint cannot be trained; take `in_context`"
                    )
        return self

    @model_validator(mode="after")
    def _recipes_are_consistent(self) -> Suite:
        for method, recipe in self.recipes.items():
            if "trained" in recipe.settings.get("prompt", {}):
                raise ValueError(f"recipes.{method}.settings.prompt.trained: all methods share their training data")
            self.for_method(method)
            if recipe.shares_first and not recipe.shares:
                raise ValueError(f"recipes.{method}.shares_first: name the row with `shares`")
            others = {"shares": recipe.shares, "steps_like": recipe.steps_like, "first_pool": recipe.first_pool}
            for key, other in others.items():
                if other is not None:
                    self._require_recipe(f"recipes.{method}.{key}", other)
            if recipe.shares and (owner := self.recipes[recipe.shares].shares):
                raise ValueError(f"recipes.{method}.shares: `{recipe.shares}` itself `shares` `{owner}`; name that row")
            if recipe.shares and not recipe.shares_first and recipe.settings != self.recipes[recipe.shares].settings:
                raise ValueError(
                    f"recipes.{method}.settings: all iterations are those of `{recipe.shares}`; remove them"
                )
        for method in self.methods:  # a row that is not run may differ from an overridden one
            other = self.recipes[method].steps_like
            if other and not self.recipes[other].trained_on_pairs:
                raise ValueError(f"recipes.{method}.steps_like: `{other}` is not trained on pairs; name a row that is")
            row = self.for_method(method)
            if self.recipes[method].has_rollouts and row.rollout.k > 1 and not row.exploration_temperature:
                equal = f"`{method}` explores greedily, and its {row.rollout.k} episodes of a task would be equal"
                raise ValueError(f"rollout.k: {equal}; set `rollout.temperature`")
        return self

    def _require_recipe(self, key: str, method: str) -> None:
        if method not in self.recipes:
            raise ValueError(f"{key}: `{method}` is not a recipe{suggestion(method, self.recipes)}")

    def supports(self, method: str) -> bool:
        """Whether the suite has everything that a method takes from other environments, and can make its tasks.

        Tiny models have a tokenizer per environment, so a policy of one environment cannot start in another.
        """
        recipe = self.recipes[method]
        if recipe.learns in POOL_LEARNING and not all(has_module(env.kind, "synthesis") for env in self.envs.values()):
            return False
        agents = recipe.agents.values()
        foreign = {other for agent in agents for env, other in agent.foreign.items() if env in self.envs}
        tiny = any(model.tiny for model in self.models.values())
        return not foreign or (not tiny and foreign <= self.envs.keys() and "coevolve" in self.recipes)

    def with_model(self, model: str | None = None) -> Suite:
        """The suite with only one of its models, by default the first; raises `UserError` for an unknown model."""
        name = next(iter(self.models)) if model is None else model
        if name not in self.models:
            raise UserError(f"suite `{self.suite}` has no model `{name}`; name one of {', '.join(self.models)}.")
        return self.model_copy(update={"models": {name: self.models[name]}})

    def for_method(self, method: str) -> Suite:
        """The suite with the `settings` of a method's recipe applied; raises `ValueError` if one is invalid."""
        changed: dict[str, Any] = {}
        for key, settings in self.recipes[method].settings.items():
            if (section := getattr(self, key, None)) is None:
                continue
            try:
                changed[key] = type(section).model_validate({**dict(section), **settings})
            except ValidationError as error:
                raise ValueError(f"recipes.{method}.settings.{key}: {_explain(error, type(section), {})}") from None
        return self.model_copy(update=changed)


def load_suite(name: str | Path, overrides: Sequence[str] = ()) -> Suite:
    """The suite of a name or path, with its `extends:` merged and `a.b.c=value` overrides applied.

    Raises `UserError` naming file and key for anything unreadable, unknown or out of range.
    """
    return validated(Suite, suite_file(name), merged(name, overrides))


def merged(name: str | Path, overrides: Sequence[str] = ()) -> Section:
    """The keys of a suite before validation: `extends:` of files and of recipes merged, overrides applied."""
    path = suite_file(name)
    return completed(path, read_yaml(path), overrides)


def completed(path: Path, raw: Section, overrides: Sequence[str]) -> Section:
    """The keys of a suite with overrides applied and the `extends:` of recipes merged; `path` is named in errors."""
    for override in overrides:
        raw.override(override)
    if isinstance(raw.get("recipes"), Section):
        raw["recipes"] = _inherited(path, raw["recipes"])
    first = {key: raw[key] for key in Suite.model_fields if key in raw}
    return Section({**first, **raw}, raw.origins)


def suite_file(name: str | Path) -> Path:
    """Path of a suite given by name (`smoke` is `configs/smoke.yaml`) or by path; raises as `named_file`."""
    return named_file("suite", name, Path("configs"))


def given_name(config: Mapping[str, Any], key: str, default: str) -> str:
    """The name that Snakemake's `--config` gives for a key, or the default.

    Raises `UserError` for an empty name, and for one that Snakemake reads as a number: `2024_01` is 202401 then.
    """
    name = config.get(key, default)
    if name in (None, ""):
        raise UserError(f"--config {key}=: it is empty; name one, or leave it out.")
    if not isinstance(name, str):
        raise UserError(f"--config {key}: Snakemake reads this name as {name}; give its file, {key}=FOLDER/NAME.yaml.")
    return name


def named_file(kind: str, name: str | Path, folder: Path) -> Path:
    """The YAML file of that name in `folder`, or in the shipped one outside of a checkout.

    A name with a folder or the suffix `.yaml` is taken as a path. Raises `UserError`, which suggests the nearest name,
    if neither folder has such a file.
    """
    path = Path(name)
    if path.suffix in (".yaml", ".yml") or len(path.parts) > 1:
        return path
    file = shipped_file(folder / f"{name}.yaml")
    if not file.is_file():
        known = [*folder.glob("*.yaml"), *(FOLDER / folder).glob("*.yaml")]
        hint = suggestion(str(name), sorted({other.stem for other in known}))
        raise UserError(f"{kind} `{name}`: {file} does not exist{hint or '; give a name or a path to a YAML file.'}")
    return file


def validated(kind: type[M], path: Path, raw: Section) -> M:
    """`raw` as a config of this kind; raises `UserError` that names the file and the first wrong key."""
    try:
        return kind.model_validate(raw.plain())
    except ValidationError as error:
        raise UserError(f"{path}: {_explain(error, kind, raw)}") from None


#: Values that replace the fields which no job reads, so that editing such a field reruns nothing.
_BLANK: dict[str, Any] = {"label": "", "source": "", "iterations": None, "settings": {}, "expected": None}


def restrict(suite: Suite, keys: Iterable[str], entries: Mapping[str, str]) -> Suite:
    """The part of a suite that one job may read: the given `keys`, and of a section in `entries` only that entry.

    Reading anything else raises AttributeError or KeyError, so a stage cannot depend on a key outside its digest.
    Fields that only readers see (labels, sources) and fields that only the plan reads (a recipe's iterations and
    settings, the expected numbers) are blank.
    """
    narrowed: dict[str, Any] = {key: getattr(suite, key) for key in keys}
    for key, name in entries.items():
        if key in narrowed:
            section = narrowed[key][name]
            blank = {field: empty for field, empty in _BLANK.items() if field in type(section).model_fields}
            narrowed[key] = {name: section.model_copy(update=blank)}
    if "protocols" in narrowed:
        narrowed["protocols"] = {suite.protocol: suite.quirks}
    return Suite.model_construct(_fields_set=set(narrowed), **narrowed)


def as_dict(suite: Suite) -> dict[str, Any]:
    """A whole or restricted suite as JSON data."""
    return {key: _plain(value) for key, value in sorted(suite.__dict__.items()) if key in suite.model_fields_set}


def digest(value: Any) -> str:
    """First 16 hex digits of the sha256 over JSON data with sorted keys."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


def as_overrides(settings: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Nested settings as a list of overrides: `['dpo.nll="sum"']` for `{"dpo": {"nll": "sum"}}`.

    Snakemake reads the values of its `--config` as text: `null` and `~` are null here.
    """
    overrides: list[str] = []
    for key, value in settings.items():
        if isinstance(value, Mapping) and value:
            overrides += as_overrides(value, f"{prefix}{key}.")
        else:
            overrides.append(f"{prefix}{key}={json.dumps(None if value in ('null', '~') else value)}")
    return overrides


def per_iteration(values: Sequence[float], iteration: int) -> float:
    """Entry `iteration` (from 1) of a schedule whose last entry holds for all later iterations."""
    return values[min(iteration, len(values)) - 1]


def _plain(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    return value


def _inherited(path: Path, recipes: Section) -> Section:
    """The recipes, each merged over the recipe that it extends."""

    def whole(name: str, seen: tuple[str, ...]) -> Section:
        if name not in recipes or name in seen:
            problem = "leads back to itself" if name in seen else f"`{name}` is not a recipe{suggestion(name, recipes)}"
            raise UserError(_ended(f"{path}: key `recipes.{seen[-1]}.extends`: {problem}"))
        row = recipes[name]
        if not isinstance(row, Section):
            raise UserError(f"{path}: key `recipes.{name}`: a row holds keys such as `label`.")
        parent = row.get("extends")
        if not isinstance(parent, str | None):
            raise UserError(f"{path}: key `recipes.{name}.extends`: name a recipe (got {str(parent)[:300]}).")
        return row.without("extends").over(whole(parent, (*seen, name))) if parent else row.without("extends")

    return Section({name: whole(name, ()) for name in recipes}, recipes.origins)


def _explain(error: ValidationError, kind: type[BaseModel], raw: Any) -> str:
    """The first problem that validating `raw` met, as a sentence with the nearest known key for an unknown one."""
    first = error.errors()[0]
    location = [part for part in first["loc"] if part != "[key]"]  # pydantic's mark of an error in the key itself
    key = ".".join(map(str, location)) or "(top level)"
    if first["type"] == "extra_forbidden":
        *parents, last = first["loc"]
        return _ended(f"unknown key `{key}`{suggestion(str(last), _siblings(kind, parents, raw))}")
    if first["type"] == "missing":
        return f"key `{key}` is missing; add it."
    if first["type"] == UNKNOWN_KIND:
        return _ended(f"key `{key}`: {first['msg']}")
    if "[key]" in first["loc"] and first["type"] == "string_pattern_mismatch":
        others = "`_`, `.` and `-`" if "." in first["ctx"]["pattern"] else "`_`"
        return f"key `{key}`: it is part of a path; name it with letters, digits, {others}."
    message = first["msg"].removeprefix("Value error, ")
    if not first["loc"]:
        return _ended(message)
    origin = raw.origin(location) if isinstance(raw, Section) else ""
    source = f", set by {origin}" if origin else ""
    return f"key `{key}`: {message[0].lower()}{message[1:]} (got {repr(first['input'])[:300]}{source})."


def _siblings(kind: type[BaseModel], location: Sequence[str | int], raw: Any) -> Iterable[str]:
    """Names of the fields beside an unknown key at `location`."""
    section: Any = kind
    for part in location:
        fields = getattr(section, "model_fields", {})
        section = _section(fields[part].annotation if part in fields else section)
        raw = raw.get(part) if isinstance(raw, dict) else None
        if section is EnvSection and isinstance(raw, dict) and "kind" in raw:
            section = section_class(raw["kind"])
    return getattr(section, "model_fields", {})


def _section(annotation: Any) -> Any:
    """The config class inside an annotation such as `dict[str, X]` or `X | None`."""
    inner = [a for a in getattr(annotation, "__args__", ()) if _section(a) is not None]
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return _section(inner[-1]) if inner else None


def _ended(sentence: str) -> str:
    """The sentence with its full stop, if it has no other end."""
    return sentence if sentence.endswith((".", "?")) else f"{sentence}."
