"""The kit's data types: frozen, strict, schema-versioned records with a lossless JSON form.

Records with equal content are equal and have equal digests. Files of records are JSON lines, one record per line
(`coevolve.storage.jsonl`).
"""

from __future__ import annotations

import hashlib
import operator
from collections.abc import Hashable, Iterable
from enum import StrEnum
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, model_validator

SCHEMA_VERSION: Literal[1] = 1

#: Model, environment, seed and iteration of evaluation records.
EvaluationKey = tuple[str, str, int, int]
#: Method, environment, seed, iteration and agent of explored episodes.
ExplorationKey = tuple[str, str, int, int, str]
#: Method, model, environment, seed, iteration and agent of a pairing's summary.
SummaryKey = tuple[str, str, str, int, int, str]

Role = Literal["system", "user", "assistant"]
Protocol = Literal["paper", "fixed"]
Agent = Literal["target", "failure", "expert"]
Scalar = str | int | float | bool | None
UnitInterval = Annotated[float, Field(ge=0.0, le=1.0)]
#: r(u, e) in [0, 1]; only in InterCodeSQL under protocol `paper` can a wrong order of rows make it negative.
Reward = Annotated[float, Field(ge=-1.0, le=1.0)]


def is_none(value: object) -> bool:
    """Whether a value is None; as `exclude_if` it leaves a field out of JSON that older files lack."""
    return value is None


class Record(BaseModel):
    """Base of all records: immutable, without unknown keys, NaN or infinity."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    #: Fields that describe the measurement and not the content; excluded from the digest.
    measured: ClassVar[frozenset[str]] = frozenset()

    def digest(self) -> str:
        """First 16 hex digits of the sha256 over the record's JSON without measured fields."""
        content = self.model_dump_json(exclude=set(self.measured))
        return hashlib.sha256(content.encode()).hexdigest()[:16]

    def unique_key(self) -> Hashable:
        """What only one record of a file may have; None if a file may repeat a record."""
        return None

    def to_json(self) -> str:
        """One line of JSON."""
        return self.model_dump_json()

    @classmethod
    def from_json(cls, line: str | bytes) -> Self:
        """The record in a line of JSON; raises `pydantic.ValidationError` if it is not valid."""
        return cls.model_validate_json(line)


class Message(Record):
    """One message of a conversation; `role` and `content` are TRL's conversational keys."""

    role: Role
    content: str


class Task(Record):
    """An instruction u in an environment, and the split it belongs to (section 3).

    `kind` groups tasks for analysis (ScienceWorld's task type); `data` are the environment's arguments to start it.
    """

    env: str
    task_id: str
    split: str
    kind: str = ""
    data: dict[str, Scalar] = {}


class StopReason(StrEnum):
    """Why an episode ended."""

    DONE = "done"  # ended by the environment (success: reward == 1)
    STEP_LIMIT = "step_limit"
    CONTEXT = "context"  # the next turn would not fit the policy's context window
    ENV_ERROR = "env_error"  # the environment failed in every attempt


class Turn(Record):
    """An action a_i and the observation o_i that followed (eq. 1).

    `text` is the policy's output, `action` the part that is executed (None: format error). `score` is the environment's
    raw score after the step, in the environment's unit. `token_ids` are the sampled ids with the end-of-turn token;
    empty for experts. `truncated`: sampling stopped at the token limit.
    """

    text: str
    action: str | None
    observation: str
    score: float = 0.0
    token_ids: tuple[int, ...] = ()
    truncated: bool = False


def turn_messages(turns: Iterable[Turn]) -> tuple[Message, ...]:
    """The turns as messages: action, observation, ..., action, observation."""
    return tuple(
        Message(role=role, content=content)
        for turn in turns
        for role, content in (("assistant", turn.text), ("user", turn.observation))
    )


class PolicyRef(Record):
    """Name of a policy, sha256 over its files, and the base model and revision it comes from."""

    name: str
    sha256: str
    base: str = ""
    revision: str = ""


class Sampling(Record):
    """Sampling parameters; `temperature` 0 is greedy decoding, `max_new_tokens` limits one turn."""

    temperature: float = Field(ge=0.0)
    top_p: float = Field(default=1.0, gt=0.0, le=1.0)
    max_new_tokens: int = Field(default=256, gt=0)


class Trajectory(Record):
    """An episode e = (u, a1, o1, ..., an), eq. 1: prompt, turns, reward and stop reason.

    `prompt` holds the messages before the first action (instruction, first observation, in-context example if any).
    `reward` is r(u, e) under `protocol`, `raw_score` the environment's score in its own unit. `environment` is the name
    and version of the environment. `sample` numbers the episodes of the same task and policy from 0. `seconds` is wall
    time, `attempts` the number of starts.
    """

    measured: ClassVar[frozenset[str]] = frozenset({"seconds", "attempts"})

    schema_version: Literal[1] = SCHEMA_VERSION
    task: Task
    agent: Agent
    policy: PolicyRef | None = None
    sampling: Sampling | None = None
    seed: int = 0
    sample: int = 0
    protocol: Protocol
    environment: str = ""
    prompt: tuple[Message, ...]
    turns: tuple[Turn, ...]
    reward: Reward
    raw_score: float = 0.0
    stop: StopReason
    error: str = ""
    seconds: float = 0.0
    attempts: int = 1

    def unique_key(self) -> Hashable:
        """(agent, policy, task, seed, sample) of an episode; None for an expert's, whose tasks may be listed twice."""
        if self.policy is None:
            return None
        return self.agent, self.policy.sha256, self.task.env, self.task.task_id, self.seed, self.sample

    @property
    def is_failure(self) -> bool:
        """Whether r < 1 (section 3)."""
        return self.reward < 1.0

    @property
    def completion(self) -> tuple[Message, ...]:
        """The turns as messages: action, observation, ..., action; without the last observation."""
        return turn_messages(self.turns)[:-1]


class PairKind(StrEnum):
    """What a preference pair compares."""

    EXPERT_TARGET = "expert_target"  # eq. 8 (i)
    EXPERT_FAILURE = "expert_failure"  # eq. 8 (ii)
    FAILURE_FAILURE = "failure_failure"  # eq. 6 and eq. 8 (iii)
    EXPERT_STEP = "expert_step"  # IPR: two trajectories from the same branch point on


class PairWeights(Record):
    """(lambda_DPO, lambda_SFT) of eq. 9 for one pair kind."""

    dpo: float = Field(ge=0.0)
    sft: float = Field(ge=0.0)


class PreferencePair(Record):
    """A chosen and a rejected completion of one prompt, with TRL's conversational keys and the pair's weights.

    `*_token_ids` hold the sampled ids of each assistant turn, in order; empty for a turn that was not sampled (an
    expert's), which is tokenised when the pair is rendered. `lambda_dpo` and `lambda_sft` are the weights of eq. 9.
    """

    schema_version: Literal[1] = SCHEMA_VERSION
    task_id: str
    kind: PairKind
    prompt: tuple[Message, ...]
    chosen: tuple[Message, ...]
    rejected: tuple[Message, ...]
    chosen_token_ids: tuple[tuple[int, ...], ...]
    rejected_token_ids: tuple[tuple[int, ...], ...]
    chosen_id: str
    rejected_id: str
    chosen_reward: Reward
    rejected_reward: Reward
    lambda_dpo: float
    lambda_sft: float


class DropReason(StrEnum):
    """Why a candidate pair or a trajectory was not used."""

    TIE = "tie"
    IDENTICAL = "identical"
    MISSING_EXPERT = "missing_expert"
    MISSING_ROLLOUT = "missing_rollout"
    NOT_A_FAILURE = "not_a_failure"
    NOT_HARD = "not_hard"  # a failure pair whose chosen side is below the reward of hard negatives
    EXPERT_BEATEN = "expert_beaten"
    CONFLICT = "conflict"  # a pair whose rejected side is the chosen side of another pair
    ENV_ERROR = "env_error"
    EMPTY = "empty"  # a side without actions
    OVERLONG = "overlong"  # a side beyond the training context, or an expert with more turns than the step limit
    LOW_REWARD = "low_reward"  # an expert or a rollout below the required reward
    GOLD_FAILS = "gold_fails"  # an item whose gold statement fails on the server
    DUPLICATE = "duplicate"
    OVERLAP = "overlap"  # a training task that is also an evaluation task
    NOT_IN_SPLIT = "not_in_split"
    NOT_USED = "not_used"  # of an agent that the method does not use; in RFT an expert with `with_experts: false`
    SURPLUS = "surplus"  # a success beyond the limit per task
    MARGIN = "margin"  # the side with the better outcome lacks the better step value by the margin
    REPLAY_DIFFERS = "replay_differs"  # the environment's observations differ from the expert's record


class Drop(Record):
    """A candidate pair or trajectory that was not used; `ids` are the digests of the trajectories concerned."""

    task_id: str
    reason: DropReason
    ids: tuple[str, ...] = ()
    kind: PairKind | None = None
    detail: str = ""


class EvalRecord(Record):
    """One evaluated episode, as input of the statistics.

    `environment` is the environment's name and version, `turns` the number of turns. `samples`: the episode is the best
    of so many (Best-of-N); omitted from JSON if 1.
    """

    task_id: str
    split: str
    seed: int
    environment: str = ""
    reward: Reward
    success: bool
    stop: StopReason
    turns: int
    trajectory_id: str
    samples: int = Field(default=1, ge=1, exclude_if=lambda samples: samples == 1)

    def unique_key(self) -> Hashable:
        """(task, seed, episode): a task that is listed twice has a record of each of its episodes."""
        return self.split, self.task_id, self.seed, self.trajectory_id


class Estimate(Record):
    """A mean with its interval over tasks and trainings, in the measured quantity's units.

    `seed_means`: the mean of each training, by its seed. The variance of the mean over S seeds is
    `of_tasks + of_seeds / S`, in the squared unit; None: not known, as `of_seeds` of one seed.
    """

    mean: float
    low: float
    high: float
    n: int
    n_tasks: int
    n_seeds: int
    of_tasks: float | None = Field(default=None, exclude_if=is_none)
    of_seeds: float | None = Field(default=None, exclude_if=is_none)
    seed_means: dict[int, float] = Field(default_factory=dict)

    def times(self, factor: float) -> Estimate:
        """The estimate of a positive multiple of the quantity."""
        scaled = {name: factor * getattr(self, name) for name in ("mean", "low", "high")}
        variances = {name: getattr(self, name) for name in ("of_tasks", "of_seeds")}
        squared = {name: None if value is None else factor**2 * value for name, value in variances.items()}
        means = {seed: factor * mean for seed, mean in self.seed_means.items()}
        return self.model_copy(update=scaled | squared | {"seed_means": means})


class Cell(Record):
    """One cell of a table: the estimate (None: not run) and the paper's number (None: not printed)."""

    row: str
    column: str
    estimate: Estimate | None
    paper: float | None
    protocol: Protocol
    sources: tuple[str, ...] = ()


class Workload(Record):
    """Estimated work of a job: tokens to train on (epochs multiplied; a forward pass counts a third), tokens to read
    and to write while playing, seconds of the environment's turns, tokens kept on disk.

    `starts`: the job loads a model; `keeps_weights`: it leaves a policy's weights on disk.
    """

    train: float = 0.0
    read: float = 0.0
    write: float = 0.0
    turn_seconds: float = 0.0
    kept: float = 0.0
    starts: bool = False
    keeps_weights: bool = False


class EpisodeNotes(Record):
    """Counts of the episodes that a stage played or joined, written as its notes.

    `environments`: names and versions. `format_errors` and `truncated_turns` count turns, `retried` episodes. `tokens`
    were sampled for these episodes, `sampled_tokens` of them by this job. `spent` is the cost of an endpoint's answers,
    `left_out` the number of tasks without an evaluation record; each is omitted where the stage has none.
    """

    episodes: int
    environments: tuple[str, ...]
    mean_reward: float
    failures: int
    stops: dict[StopReason, int]
    format_errors: int
    truncated_turns: int
    retried: int
    tokens: int
    sampled_tokens: int
    spent: dict[str, Any] | None = Field(default=None, exclude_if=is_none)
    left_out: int | None = Field(default=None, exclude_if=is_none)


class TrajectoryLogps(Record):
    """Log pi(e | u) in nats of some trajectories before and after a training: means over `trajectories` of them.

    They have `action_tokens` action tokens on average. `before` is the mean of the reference log-probs that were
    computed before the training; None without them, or if its reference policy is not the one that it started from.
    """

    trajectories: int
    action_tokens: float
    before: float | None
    after: float


class ReferenceLevels(Record):
    """Mean log-prob in nats of an action token under the reference policy, by side of a kind's `pairs` pairs."""

    pairs: int
    chosen: float
    rejected: float


class TrainReport(Record):
    """One training on `rows` examples in `steps` steps, written as its notes.

    `tokens` and `trained_tokens` count the tokens of all epochs without padding. `history` has the metrics of each
    step: `step`, `loss` (of the global batch, before the step), `grad_norm` (before clipping), `learning_rate`, and for
    pairs those of `coevolve.train.train_report`, which `kinds` averages over the last steps, as many as an epoch has.
    `note` describes what is unusual. `seconds` is wall time since the start or the last resumption. `gold` (of the
    pairs' experts), `explored` (of the target's episodes that experts are preferred to), `reference` (of pairs whose
    reference log-probs were computed before), `sampled_tokens` (of online training) and `launch` (of several processes)
    are omitted where there are none.
    """

    rows: int
    truncated: int
    dropped: int
    steps: int
    tokens: int
    first_loss: float | None
    last_loss: float | None
    history: tuple[dict[str, int | float], ...]
    kinds: dict[PairKind, dict[str, int | float]] = {}
    gold: TrajectoryLogps | None = Field(default=None, exclude_if=is_none)
    explored: TrajectoryLogps | None = Field(default=None, exclude_if=is_none)
    reference: dict[PairKind, ReferenceLevels] = Field(default={}, exclude_if=operator.not_)
    note: str = ""
    seconds: float
    trained_tokens: int
    sampled_tokens: int | None = Field(default=None, exclude_if=is_none)
    launch: dict[str, int | str] | None = Field(default=None, exclude_if=is_none)


class GradientSize(Record):
    """Size of a gradient over the pairs of one kind.

    `mean_norm`: L2 norm of the mean gradient of a measured pair. `total_norm`: the same times the number of all pairs,
    an estimate if not all are measured. `share`: of the sum of the total norms over kinds, None if that is 0.
    """

    mean_norm: float
    total_norm: float
    share: float | None


class KindGradient(Record):
    """The gradient of eq. 9 over the `pairs` pairs of a kind; `measured_pairs` of them, evenly spaced, are measured.

    `loss` is the whole of eq. 9, `dpo` its preference part with lambda_DPO, `sft` its NLL part with lambda_SFT;
    `dpo_sft_cosine` is the cosine between these two. A cosine with a gradient of 0 is None.
    """

    kind: PairKind
    pairs: int
    measured_pairs: int
    loss: GradientSize
    dpo: GradientSize
    sft: GradientSize
    dpo_sft_cosine: float | None


class GradientCosine(Record):
    """The cosines between the gradients of two pair kinds, of the whole loss and of each part."""

    first: PairKind
    second: PairKind
    loss: float | None
    dpo: float | None
    sft: float | None


class PointGradients(Record):
    """The gradients of the pair kinds at one policy, with respect to its trainable parameters."""

    trainable_parameters: int
    kinds: tuple[KindGradient, ...]
    cosines: tuple[GradientCosine, ...]


class GradientReport(Record):
    """`gradients.json`: the gradients at the policy that a preference training starts from and at the trained one.

    `adapters`: the parameters are those of new adapters on either policy, else all weights.
    """

    schema_version: Literal[1] = SCHEMA_VERSION
    adapters: bool
    start: PointGradients
    end: PointGradients


class KindCount(Record):
    """Counts of the candidates of one pair kind; `swapped`, `cut` and `other_prompt` are counted among `pairs`."""

    candidates: int
    pairs: int
    swapped: int
    cut: int
    other_prompt: int = 0  # missing in older files
    drops: dict[DropReason, int]

    @model_validator(mode="after")
    def _complete(self) -> Self:
        assert self.candidates == self.pairs + sum(self.drops.values()), f"candidates are lost: {self}"
        return self


class TrajectoryCount(Record):
    """Counts of the input trajectories.

    `paired`: in a pair. `dropped`: in drops only. `not_used`: in neither, of an agent that no kind of the recipe uses.
    """

    # The second names are those of older files.
    total: int = Field(validation_alias=AliasChoices("total", "came_in"))
    paired: int
    dropped: int
    not_used: int = Field(validation_alias=AliasChoices("not_used", "unasked"))

    @model_validator(mode="after")
    def _complete(self) -> Self:
        assert self.total == self.paired + self.dropped + self.not_used, f"trajectories are lost: {self}"
        return self


class PairingSummary(Record):
    """Counts of a pairing: by pair kind, of drops without a kind (`without_kind`), and of the input trajectories.

    `empty` has a sentence for each kind without a pair. `played` counts the episodes and tokens of each policy that
    continued prefixes, `sampled_tokens` their tokens; both are omitted where nothing was played.
    """

    kinds: dict[PairKind, KindCount]
    without_kind: dict[DropReason, int] = Field(validation_alias=AliasChoices("without_kind", "strays"))
    trajectories: TrajectoryCount
    empty: tuple[str, ...]
    played: dict[str, dict[str, int]] | None = Field(default=None, exclude_if=is_none)
    sampled_tokens: int | None = Field(default=None, exclude_if=is_none)


class ExplorationNotes(Record):
    """What the stage `explore_tasks` notes: the content of its `counts.json`, and what the explorer sampled.

    `sampled_tokens`: of the turns after the repeated ones, and of the drafts of tasks. `spent` is the cost of an
    endpoint's answers, omitted where none explored.
    """

    counts: dict[str, Any]
    sampled_tokens: int
    spent: dict[str, Any] | None = Field(default=None, exclude_if=is_none)


#: What a stage notes of its run: a record where a report reads it, else JSON data.
Notes = EpisodeNotes | TrainReport | PairingSummary | ExplorationNotes | dict[str, Any]


class Provenance(Record):
    """How the outputs of a stage were made, written next to them as `provenance.json`.

    `inputs` and `outputs` map paths to sha256 digests; `seconds` is wall time, `cpu_seconds` the time on the CPU of the
    job's process and of its ended children (user and system), None in older files. `result` is the folder of the
    outputs below the suite's results. `notes` are what the stage's `run` returned. `workload` is the estimated work,
    None if the environment's section has no `expected`. `dirty`: whether the checkout had uncommitted changes, None if
    git could not tell. `reused_from` is the folder in another suite's results where the outputs were computed, omitted
    if the job ran; `commit`, `dirty`, `versions`, `container`, `notes`, `started`, `seconds` and `cpu_seconds` are then
    those of the computation.
    """

    schema_version: Literal[1] = SCHEMA_VERSION
    stage: str
    wildcards: dict[str, str] = {}
    result: str = ""
    config: dict[str, Any]
    config_digest: str
    code_digest: str
    commit: str
    dirty: bool | None
    protocol: Protocol
    seeds: dict[str, int]
    versions: dict[str, str]
    container: str
    inputs: dict[str, str]
    outputs: dict[str, str]
    notes: Notes = Field(default={}, union_mode="left_to_right")
    workload: Workload | None = None
    started: str
    seconds: float
    cpu_seconds: float | None = Field(default=None, exclude_if=is_none)
    reused_from: str | None = Field(default=None, exclude_if=is_none)
