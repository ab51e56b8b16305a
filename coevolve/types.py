"""The nouns of the kit: frozen, strict, schema-versioned records that survive JSON unchanged.

Every record is a value: two records with the same content are equal and hash to the same
:meth:`Record.digest`. Files of records are JSON lines, one whole record a line (`coevolve.storage.files`).
"""

from __future__ import annotations

import hashlib
from enum import StrEnum
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, Field

SCHEMA_VERSION: Literal[1] = 1

Role = Literal["system", "user", "assistant"]
Protocol = Literal["paper", "fixed"]
Agent = Literal["target", "failure", "expert"]
Scalar = str | int | float | bool | None
UnitInterval = Annotated[float, Field(ge=0.0, le=1.0)]
#: In [0, 1], but for InterCodeSQL under protocol `paper`, where a wrong order of rows can make it negative.
Reward = Annotated[float, Field(ge=-1.0, le=1.0)]


class Record(BaseModel):
    """Base of all nouns: immutable, no unknown keys, no NaN or infinity."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    #: Fields that say how a record came to be measured, not what it says; left out of the digest.
    measured: ClassVar[frozenset[str]] = frozenset()

    def digest(self) -> str:
        """First 16 hex digits of the sha256 over the record's content, measured fields left out."""
        content = self.model_dump_json(exclude=set(self.measured))
        return hashlib.sha256(content.encode()).hexdigest()[:16]

    def to_json(self) -> str:
        """One line of JSON."""
        return self.model_dump_json()

    @classmethod
    def from_json(cls, line: str | bytes) -> Self:
        """The record a line of JSON holds; raises `pydantic.ValidationError` if it holds none."""
        return cls.model_validate_json(line)


class Message(Record):
    """One message of a conversation; `role` and `content` are TRL's conversational keys."""

    role: Role
    content: str


class Task(Record):
    """An instruction u in an environment: what to start, and which split it belongs to.

    `kind` groups tasks for analysis (ScienceWorld's task type); `data` is what the environment needs to start it.
    """

    env: str
    task_id: str
    split: str
    kind: str = ""
    data: dict[str, Scalar] = {}


class StopReason(StrEnum):
    """Why an episode ended. Endings are values: nothing that can happen to an episode is an exception."""

    DONE = "done"  # the environment ended it (success is reward == 1)
    STEP_LIMIT = "step_limit"
    CONTEXT = "context"  # the next turn would not fit the policy's context window
    ENV_ERROR = "env_error"  # the environment failed and stayed failed after the allowed retries


class Turn(Record):
    """One action and what it met.

    `text` is what the policy said, `action` what was parsed from it (None: format error), `score` the environment's raw
    score after the step. `token_ids` are the ids the policy sampled, end-of-turn token included; experts have none.
    `truncated`: the policy hit its token limit before it ended the turn.
    """

    text: str
    action: str | None
    observation: str
    score: float = 0.0
    token_ids: tuple[int, ...] = ()
    truncated: bool = False


class PolicyRef(Record):
    """Which weights acted: sha256 over the policy's files, and where they came from."""

    name: str
    sha256: str
    base: str = ""
    revision: str = ""


class Sampling(Record):
    """How tokens are chosen. `temperature` 0 is greedy decoding."""

    temperature: float = Field(ge=0.0)
    top_p: float = Field(default=1.0, gt=0.0, le=1.0)
    max_new_tokens: int = Field(default=256, gt=0)


class Trajectory(Record):
    """An episode e = (u, a1, o1, ..., an), eq. 1: the prompt apart from the turns, and how it ended.

    `prompt` holds the messages before the first action (instruction, first observation, in-context example if any).
    `reward` is r(u, e) under `protocol`; `raw_score` what the environment said. `environment` names what answered, with
    its version. `sample` counts rollouts of the same task by the same policy from 0. `seconds` is wall time, `attempts`
    how often the episode was started.
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

    @property
    def is_failure(self) -> bool:
        """Whether r < 1 (section 3)."""
        return self.reward < 1.0

    @property
    def completion(self) -> tuple[Message, ...]:
        """The turns as messages: action, observation, ..., action; the last observation is nobody's context."""
        messages: list[Message] = []
        for turn in self.turns:
            messages += [Message(role="assistant", content=turn.text), Message(role="user", content=turn.observation)]
        return tuple(messages[:-1])


class PairKind(StrEnum):
    """What a preference pair compares (eq. 6 and 8; of a step, what follows it, after what the expert did before)."""

    EXPERT_TARGET = "expert_target"
    EXPERT_FAILURE = "expert_failure"
    FAILURE_FAILURE = "failure_failure"
    EXPERT_STEP = "expert_step"


class PairWeights(Record):
    """(lambda_DPO, lambda_SFT) of eq. 9 for one pair kind."""

    dpo: float = Field(ge=0.0)
    sft: float = Field(ge=0.0)


class PreferencePair(Record):
    """A chosen and a rejected completion of one prompt, with TRL's conversational keys and the pair's own weights.

    `*_token_ids` hold the sampled ids of each assistant turn, in order; an empty tuple stands for a turn that was never
    sampled (an expert's) and is tokenised when the pair is rendered.
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
    """Why a candidate pair, or a trajectory, was not used."""

    TIE = "tie"
    IDENTICAL = "identical"
    MISSING_EXPERT = "missing_expert"
    MISSING_ROLLOUT = "missing_rollout"
    NOT_A_FAILURE = "not_a_failure"
    NOT_HARD = "not_hard"  # a pair of failures whose better side is no hard negative
    EXPERT_BEATEN = "expert_beaten"
    ENV_ERROR = "env_error"
    EMPTY = "empty"  # a side without a single action
    OVERLONG = "overlong"  # a side longer than the training context; an expert of more turns than an episode has
    LOW_REWARD = "low_reward"  # an expert, or an own episode, below the required reward
    GOLD_FAILS = "gold_fails"  # an item whose gold statement the server refuses
    DUPLICATE = "duplicate"
    OVERLAP = "overlap"  # a training task that is also an evaluation task
    NOT_IN_SPLIT = "not_in_split"
    UNASKED = "unasked"  # of a side that the method leaves out
    SURPLUS = "surplus"  # a success beyond the number wanted of a task
    MARGIN = "margin"  # the better of two outcomes did not begin with the clearly better step
    REPLAY_DIFFERS = "replay_differs"  # the environment answered an expert's actions otherwise than the record says


class Drop(Record):
    """Something that was not used, and why; `ids` name the trajectories (or the task) it concerns."""

    task_id: str
    reason: DropReason
    ids: tuple[str, ...] = ()
    kind: PairKind | None = None
    detail: str = ""


class EvalRecord(Record):
    """One evaluated episode, as statistics see it; `environment` names what answered, with its version.

    `samples`: of how many episodes of the task it is the best; written down only where that is more than one.
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


class Estimate(Record):
    """A mean with its interval over tasks and trainings, in the measured quantity's units.

    `seed_means`: the mean of each training, by its seed.
    """

    mean: float
    low: float
    high: float
    n: int
    n_tasks: int
    n_seeds: int
    seed_means: dict[int, float] = Field(default_factory=dict)


class Cell(Record):
    """One cell of a table: what was measured (None: not run) beside what the paper printed (None: not printed)."""

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


class Provenance(Record):
    """Who made a result from what: written beside every stage's outputs as `provenance.json`."""

    schema_version: Literal[1] = SCHEMA_VERSION
    stage: str
    config: dict[str, Any]
    config_digest: str
    code_digest: str
    commit: str
    dirty: bool
    protocol: Protocol
    seeds: dict[str, int]
    versions: dict[str, str]
    container: str
    inputs: dict[str, str]
    outputs: dict[str, str]
    notes: dict[str, Any] = {}
    started: str
    seconds: float
