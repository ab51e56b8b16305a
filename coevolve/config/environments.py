"""What the sections of all environments share. An environment's own section is a subclass of `EnvSection`."""

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Self

from pydantic import BaseModel, Field, field_validator, model_validator

from coevolve.config.names import Protocol
from coevolve.config.sections import Positive, Rate, SourceFile, Strict, UnitInterval


class TaskSelection(Strict):
    """Which tasks of an environment's lists a suite uses, in the lists' order.

    `kinds` None: all task types. `sft`, `explore` and `evaluate` bound the number of tasks per task type (None: all).
    `explore_sft`: the tasks fine-tuned on are explored too (what the paper does); otherwise exploration takes others.
    """

    kinds: list[str] | None
    sft: Positive | None
    explore: Positive | None
    evaluate: Positive | None
    explore_sft: bool


class ScriptedOrFile(Strict):
    """The source of expert trajectories: a scripted expert of the kit (`format: scripted`), or a `file`."""

    format: str
    file: SourceFile | None = None
    min_reward: UnitInterval

    @model_validator(mode="after")
    def _file_unless_scripted(self) -> Self:
        if (self.file is None) != (self.format == "scripted"):
            raise ValueError(f"format `{self.format}` {'takes no' if self.file else 'needs a'} `file`")
        return self


class ExpectedEpisodes(Strict):
    """The mean `turns` and `tokens` of an episode, and the mean `action_tokens` of an action."""

    turns: Rate
    tokens: Rate
    action_tokens: Rate


class Expected(ExpectedEpisodes):
    """Estimates for `coevolve plan`; no result depends on them.

    `experts`, `explore`, `evaluate`: numbers of expert trajectories, explored tasks and evaluated tasks. `failures`:
    share of rollouts that fail. `expert_pair_share`: of rollouts that are paired with an expert; None: `failures`. It
    is less where tasks have no expert, or where one earns no more than a rollout. `turn_seconds`: wall time of one
    step of the environment while other episodes run beside it. `untrained`: means of an untrained policy's episodes,
    for evaluations only; None: the same as above.
    """

    experts: Positive
    explore: Positive
    evaluate: Positive
    failures: UnitInterval
    expert_pair_share: UnitInterval | None = None
    turn_seconds: Rate
    untrained: ExpectedEpisodes | None = None


class EnvSection(Strict):
    """The keys that every environment's section has.

    `kind` names the package, `label` stands in tables, `splits` are the evaluation splits. `workers`
    environments are open, in `processes` worker processes (0: in the job's own process, or in one for a package that is
    not of the kit); the episodes in flight are at most as many, and fewer if the engine's cache holds fewer. A worker
    process is killed and replaced when a call takes longer than `step_seconds`, and its episodes are restarted. The
    three change no result and are excluded from digests. `protocol`: the only one that these settings are for.
    """

    #: What the licence of tasks and texts covers and does not, a sentence; and its identifier on the Hugging Face hub,
    #: empty unless one licence covers them all.
    licence: ClassVar[str] = "The licence of this environment's texts is not stated."
    licence_id: ClassVar[str] = ""

    @classmethod
    def variant(cls, raw: Any) -> type[BaseModel]:
        """The section class of a kind."""
        from coevolve.config.kinds import section_class  # which imports this module

        return section_class(raw["kind"]) if cls is EnvSection and isinstance(raw, dict) and "kind" in raw else cls

    kind: str
    label: str
    splits: Sequence[str]
    workers: Positive = Field(exclude=True)
    processes: Annotated[int, Field(ge=0)] = Field(0, exclude=True)
    step_seconds: Rate = Field(600.0, exclude=True)
    expected: Expected | None = None
    protocol: Protocol | None = None

    @field_validator("splits")
    @classmethod
    def _some_split(cls, splits: Sequence[str]) -> Sequence[str]:
        if not splits:
            raise ValueError("list at least one split, on which policies are evaluated")
        return splits

    @property
    def prepared(self) -> bool:
        """Whether the stage `prepare` makes files that all jobs of the environment share."""
        return False

    @property
    def needs_actions(self) -> bool:
        """Whether a turn without an action is a mistake."""
        return True

    @property
    def single_message(self) -> bool:
        """Whether a policy sees the last observation alone, instead of the conversation; nothing trains on that."""
        return False

    @property
    def note(self) -> str:
        """A remark printed with every result, for example that a split is not the paper's; empty if there is none."""
        return ""

    def other_version(self, identity: str) -> str:
        """A sentence under tables if the committed results have another version than `identity`; else empty."""
        return ""

    @staticmethod
    def is_refused(before: str, action: str | None, observation: str) -> bool:
        """Whether an action was not executed, by the observations `before` and after it."""
        return False

    @property
    def data_files(self) -> dict[str, str]:
        """Paths of the files that the task lists and expert trajectories are made from, by name."""
        return {}

    @property
    def play_files(self) -> dict[str, str]:
        """Paths of the files that an episode reads, by name."""
        return {}
