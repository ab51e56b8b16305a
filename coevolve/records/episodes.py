"""Tasks, and the episodes that agents play of them (section 3)."""

import operator
from collections.abc import Hashable, Iterable
from enum import StrEnum
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from coevolve.records.base import SCHEMA_VERSION, Record
from coevolve.settings.protocol import Protocol

Role = Literal["system", "user", "assistant"]
Agent = Literal["target", "failure", "expert"]
Scalar = str | int | float | bool | None
#: r(u, e) in [0, 1]; only in InterCodeSQL under protocol `paper` can a wrong order of rows make it negative.
Reward = Annotated[float, Field(ge=-1.0, le=1.0)]


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
    data: dict[str, Scalar] = Field(default={})


class StopReason(StrEnum):
    """Why an episode ended."""

    DONE = "done"  # ended by the environment (success: reward == 1)
    STEP_LIMIT = "step_limit"
    CONTEXT = "context"  # the next turn would not fit the policy's context window
    CONTENT_FILTER = "content_filter"  # an endpoint's filter refused the conversation or its answer
    ENV_ERROR = "env_error"  # the environment failed in every attempt


class Turn(Record):
    """An action a_i and the observation o_i that followed (eq. 1).

    `text` is the policy's output, `action` the part that is executed (None: format error). `score` is the environment's
    raw score after the step, in the environment's unit. `token_ids` are the sampled ids with the end-of-turn token;
    empty for experts. `truncated`: sampling stopped at the token limit. `logps`: log-probs in nats that the ids were
    sampled with, only of trainings that play in another type than they train in.
    """

    text: str
    action: str | None
    observation: str
    score: float = 0.0
    token_ids: tuple[int, ...] = ()
    truncated: bool = False
    logps: tuple[float, ...] = Field(default=(), exclude_if=operator.not_)


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
