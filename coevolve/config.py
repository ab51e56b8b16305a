"""Suites: strict, typed YAML that inherits by explicit `extends:` and is overridden by dotted keys.

An unknown key is an error that suggests the nearest known one. A stage sees a :func:`restrict`-ed suite, so it can read
only the keys it declared, and those keys are what its rule's digest is made of (`coevolve.plan`).
"""

from __future__ import annotations

import difflib
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from coevolve.errors import UserError
from coevolve.types import PairKind, PairWeights, Protocol, UnitInterval

Positive = Annotated[int, Field(gt=0)]
Rate = Annotated[float, Field(gt=0.0)]


class Strict(BaseModel):
    """Base of all config sections: immutable, unknown keys refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Optimiser(Strict):
    """AdamW and its schedule; `batch_size` counts sequences (or pairs) per step over all devices."""

    epochs: Rate
    batch_size: Positive
    micro_batch: Positive
    warmup: UnitInterval
    schedule: Literal["cosine", "linear", "constant"]
    weight_decay: float = Field(ge=0.0)
    max_grad_norm: float = Field(gt=0.0)
    save_steps: Positive


class SftConfig(Optimiser):
    """Eq. 3 to 5."""

    learning_rate: Rate


class DpoConfig(Optimiser):
    """Eq. 7 and 9. `learning_rate` and `beta`: entry i for iteration i, the last one for all later iterations."""

    learning_rate: Annotated[list[Rate], Field(min_length=1)]
    beta: Annotated[list[Rate], Field(min_length=1)]
    reference: Literal["previous", "base"]
    nll: Literal["mean", "sum"]
    precompute_reference: bool


class TinyArchitecture(Strict):
    """A Llama built from nothing, with a byte-level BPE tokenizer trained on the expert text."""

    vocab_size: Positive
    hidden_size: Positive
    layers: Positive
    heads: Positive
    intermediate_size: Positive


class PretrainConfig(Optimiser):
    """Language modelling on all tokens of `corpus`; stands where a downloaded checkpoint stands for real models."""

    learning_rate: Rate


class LoraConfig(Strict):
    """Low-rank adapters in place of full fine-tuning."""

    rank: Positive
    alpha: Positive
    dropout: UnitInterval
    target_modules: list[str] | Literal["all-linear"]


class ModelConfig(Strict):
    """A base model: either `tiny` (built here) or `path` (a directory in transformers' format)."""

    label: str
    context: Positive
    tiny: TinyArchitecture | None = None
    pretrain: PretrainConfig | None = None
    path: str | None = None
    revision: str = ""
    lora: LoraConfig | None = None

    @model_validator(mode="after")
    def _one_source(self) -> ModelConfig:
        if (self.tiny is None) == (self.path is None) or (self.tiny is None) != (self.pretrain is None):
            raise ValueError("give either `path`, or both `tiny` and `pretrain`")
        return self


class TaskSelection(Strict):
    """Which tasks of the environment's lists a suite uses, in the lists' order.

    `kinds` None: all task types. `sft`, `explore` and `evaluate` bound the number of tasks per task type (None: all).
    `explore_sft`: the tasks fine-tuned on are explored too (what the paper does); otherwise exploration takes others.
    """

    lists: Literal["eto", "official"]
    kinds: list[str] | None
    sft: Positive | None
    explore: Positive | None
    evaluate: Positive | None
    explore_sft: bool


class ExpertSource(Strict):
    """Where expert trajectories come from: `gold` (the kit's own trajectory file) or `eto` (ETO's published format)."""

    format: Literal["gold", "eto"]
    path: str
    sha256: str
    min_reward: UnitInterval


class SciWorldConfig(Strict):
    """ScienceWorld. `simplification`: the simulator's own string; `workers` episodes at once, sixteen to a JVM.

    `memory_mb` caps the heap of a JVM; one that is silent for `read_timeout` seconds has failed.
    """

    kind: Literal["sciworld"]
    label: str
    splits: list[Literal["seen", "unseen"]]
    tasks: TaskSelection
    experts: ExpertSource
    simplification: str
    step_limit: Positive | None
    workers: Positive
    memory_mb: Positive
    read_timeout: Rate


EnvConfig = SciWorldConfig


class RolloutConfig(Strict):
    """Exploration: `k` rollouts per instruction; evaluation is greedy, once. A broken episode has `retries` more."""

    k: Positive
    top_p: Annotated[float, Field(gt=0.0, le=1.0)]
    max_new_tokens: Positive
    retries: Annotated[int, Field(ge=0)]


class PairingConfig(Strict):
    """Rules of pairing (section 4.2 and 4.3 of the paper, and ETO's script)."""

    expert_beaten: Literal["drop", "swap"]
    max_extra_turns: Annotated[int, Field(ge=0)] | None
    within: bool


class AgentRecipe(Strict):
    """One agent of a method: the base policy it starts from, and what it is trained on (nothing: it stays frozen)."""

    base: Literal["untrained", "target", "failure"]
    explores: bool
    trains_on: dict[PairKind, PairWeights] = {}


class Recipe(Strict):
    """A method as a row of a table: who explores, who is trained on which pairs with which weights, how often."""

    label: str
    source: str
    iterations: Annotated[int, Field(ge=0)] | None
    agents: dict[Literal["target", "failure"], AgentRecipe]
    pairing: PairingConfig | None = None


class Quirks(Strict):
    """What upstream's code does and a referee would not: SPEC section 4, one switch each."""

    exploration_temperature: float = Field(ge=0.0)  # 1
    overlap: Literal["keep", "remove"]  # 3
    long_prompt: Literal["cut_left", "end"]  # 5
    success: Literal["any_ending", "reward_one"]  # 6
    format_error_resets: bool  # 7
    env_error: Literal["zero", "exclude"]  # 12


class ReportConfig(Strict):
    """Intervals and tables."""

    bootstrap: Positive
    confidence: Annotated[float, Field(gt=0.0, lt=1.0)]


class Suite(Strict):
    """A whole run of the kit: everything that decides its numbers, and nothing about the machine it runs on.

    `iterations` counts those of each environment; it stands apart from `envs`, so that one more reruns none before it.
    """

    suite: str
    protocol: Protocol
    protocols: dict[Protocol, Quirks]
    seeds: Annotated[list[int], Field(min_length=1)]
    models: dict[str, ModelConfig]
    envs: dict[str, EnvConfig]
    iterations: dict[str, Positive]
    methods: Annotated[list[str], Field(min_length=1)]
    recipes: dict[str, Recipe]
    sft: SftConfig
    dpo: DpoConfig
    rollout: RolloutConfig
    pairing: PairingConfig
    report: ReportConfig

    @property
    def quirks(self) -> Quirks:
        """The switches of the suite's protocol."""
        return self.protocols[self.protocol]

    @model_validator(mode="after")
    def _names_exist(self) -> Suite:
        for method in self.methods:
            if method not in self.recipes:
                raise ValueError(f"methods: `{method}` is no recipe{_suggestion(method, self.recipes)}")
        if len(self.models) != 1:
            raise ValueError(f"models: a suite has one model, this one {len(self.models)} ({', '.join(self.models)})")
        if missing := self.envs.keys() - self.iterations.keys():
            raise ValueError(f"iterations: `{missing.pop()}` is missing")
        if self.protocol not in self.protocols:
            raise ValueError(f"protocols: `{self.protocol}` is missing")
        return self


def load(path: str | Path, overrides: Sequence[str] = ()) -> Suite:
    """The suite of a YAML file, `extends:` followed and `a.b.c=value` overrides applied.

    Raises `UserError` naming file and key for anything unreadable, unknown or out of range.
    """
    path = Path(path)
    raw = _read(path, seen=())
    for override in overrides:
        _apply(raw, override)
    try:
        return Suite.model_validate(raw)
    except ValidationError as error:
        raise UserError(f"{path}: {_explain(error, raw)}") from None


_NOT_FOR_JOBS = {"label": "", "source": "", "iterations": None}


def restrict(suite: Suite, keys: Iterable[str], model: str | None, env: str | None, method: str | None) -> Suite:
    """The part of a suite that one job may read: `keys` only, and only its own model, environment and recipe.

    Reading anything else raises AttributeError or KeyError: a stage cannot depend on what its digest does not cover.
    What is only for people's eyes (labels, sources) or for the plan (a recipe's iterations) is blank.
    """
    narrowed: dict[str, Any] = {key: getattr(suite, key) for key in keys}
    for key, name in (("models", model), ("envs", env), ("recipes", method)):
        if key in narrowed and name is not None:
            section = narrowed[key][name]
            blank = {field: empty for field, empty in _NOT_FOR_JOBS.items() if field in type(section).model_fields}
            narrowed[key] = {name: section.model_copy(update=blank)}
    if "protocols" in narrowed:
        narrowed["protocols"] = {suite.protocol: suite.quirks}
    return Suite.model_construct(_fields_set=set(narrowed), **narrowed)


def as_dict(suite: Suite) -> dict[str, Any]:
    """A suite, or a restricted one, as plain JSON data."""
    return {key: _plain(value) for key, value in sorted(suite.__dict__.items()) if key in suite.model_fields_set}


def digest(value: Any) -> str:
    """First 16 hex digits of the sha256 over JSON data with sorted keys."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


def dotted(settings: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Nested settings as overrides: `{"dpo": {"nll": "sum"}}` is `['dpo.nll="sum"']`."""
    overrides: list[str] = []
    for key, value in settings.items():
        deeper = isinstance(value, Mapping)
        overrides += dotted(value, f"{prefix}{key}.") if deeper else [f"{prefix}{key}={json.dumps(value)}"]
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


def _read(path: Path, seen: tuple[Path, ...]) -> dict[str, Any]:
    if path.resolve() in seen:
        raise UserError(f"{path}: `extends` comes back to the file itself; remove the circle.")
    try:
        raw = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path}: no such config file; give one of configs/*.yaml.") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: not readable as YAML ({' '.join(str(error).split())}).") from None
    if not isinstance(raw, dict):
        raise UserError(f"{path}: a config file holds a mapping of keys; this one does not.")
    parents = raw.pop("extends", [])
    merged: dict[str, Any] = {}
    for parent in [parents] if isinstance(parents, str) else parents:
        merged = _merge(merged, _read(path.parent / parent, (*seen, path.resolve())))
    return _merge(merged, raw)


def _merge(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in over.items():
        both = isinstance(value, dict) and isinstance(merged.get(key), dict)
        merged[key] = _merge(merged[key], value) if both else value
    return merged


def _apply(raw: dict[str, Any], override: str) -> None:
    key, equals, text = override.partition("=")
    if not equals:
        raise UserError(f"override `{override}`: write it as key.subkey=value.")
    *parents, last = key.split(".")
    node = raw
    for parent in parents:
        node = node.setdefault(parent, {})
        if not isinstance(node, dict):
            raise UserError(f"override `{override}`: `{parent}` holds a value, not keys.")
    node[last] = yaml.safe_load(text)


def _explain(error: ValidationError, raw: dict[str, Any]) -> str:
    """The first problem of a validation error in words, with the nearest known key where one is unknown."""
    first = error.errors()[0]
    key = ".".join(str(part) for part in first["loc"]) or "(top level)"
    if first["type"] == "extra_forbidden":
        return f"unknown key `{key}`{_suggestion(str(first['loc'][-1]), _siblings(first['loc'][:-1]))}."
    if first["type"] == "missing":
        return f"key `{key}` is missing; add it."
    message = first["msg"].removeprefix("Value error, ")
    return f"key `{key}`: {message[0].lower()}{message[1:]} (got {first['input']!r})."[:500]


def _siblings(location: tuple[str | int, ...]) -> Iterable[str]:
    """Names of the fields beside an unknown key."""
    section: Any = Suite
    for part in location:
        fields = getattr(section, "model_fields", {})
        if part in fields:
            section = fields[part].annotation
        section = _section(section)
    return getattr(section, "model_fields", {})


def _section(annotation: Any) -> Any:
    """The config class inside an annotation such as `dict[str, X]` or `X | None`."""
    inner = [a for a in getattr(annotation, "__args__", ()) if _section(a) is not None]
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return _section(inner[-1]) if inner else None


def _suggestion(name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean `{near[0]}`?" if near else ""
