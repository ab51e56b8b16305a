"""BFCL's section of a suite."""

from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from coevolve.envs.bfcl import observations
from coevolve.envs.section import EnvSection, TaskSelection
from coevolve.settings.section import Positive, Strict

Category = Literal["base", "miss_param", "miss_func", "long_context"]


class GeneratedTasks(Strict):
    """Tasks made by scripted exploration of the scenarios, drawn from `seed`: `train` and `evaluate` are their numbers.

    A task has up to `actions` gold calls.
    """

    train: Positive
    evaluate: Positive
    actions: Positive
    seed: int


class BfclSelection(TaskSelection):
    """`split`: `scenario` (100 train, 20 validation and 80 test scenarios, in the order of a hash) or `halves`.

    `halves` is AgentEvolver's split: the first 100 scenarios are trained on, the last 100 are `validation`. `train`
    lists the categories of the training tasks. `suspects`: whether evaluation keeps the tasks of
    `coevolve.envs.bfcl.suspects`. `generated`: tasks of the kit's own in place of BFCL's (None: BFCL's).
    """

    split: Literal["scenario", "halves"]
    train: Annotated[list[Category], Field(min_length=1)]
    suspects: Literal["keep", "remove"]
    generated: GeneratedTasks | None = None


class BfclRules(Strict):
    """The rules of an episode, whatever the protocol; those of AgentEvolver's service are named quirks.

    `calls`: one Python call after `Action:`, or JSON objects in `<tool_call>` tags, of which broken ones are ignored.
    `malformed`: a message without a call is answered with an error, or it ends the user's turn (quirk). `empty_turns`:
    a turn without a call is a turn, or it is not recorded, so that the episode fails (quirk). `reward`: the share of
    the user's turns that are correct before the first error (`prefix`), or 1 if all are correct, else 0 (`binary`, the
    official one).
    """

    calls: Literal["python", "json"]
    malformed: Literal["answered", "ends_turn"]
    empty_turns: Literal["counted", "skipped"]
    reward: Literal["prefix", "binary"]


class BfclConfig(EnvSection):
    """BFCL v3 multi-turn. `tools` in the prompt: names, signatures (`compact`) or the full JSON documentation (`json`).

    `tools: hermes`, with `rules.calls: json`, is the native format of models whose chat templates write Hermes' blocks,
    such as Qwen's: `<tools>` with function definitions, `<tool_call>`, `<tool_response>`.
    `synthetic_turns` of generated tasks and of task pools: one user turn, or one for each gold call, so that the prefix
    reward of a failure can lie between 0 and 1. An instruction that a model wrote stays one user turn. `step_limit`
    counts the policy's messages in an episode, over all user turns.
    """

    licence: ClassVar[str] = "BFCL: Apache-2.0, code, tasks and gold calls."
    licence_id: ClassVar[str] = "apache-2.0"
    splits: list[Literal["validation", "test", "test_miss_param", "test_miss_func", "test_long_context"]]
    tasks: BfclSelection
    tools: Literal["names", "compact", "json", "hermes"]
    synthetic_turns: Literal["one", "per_call"]
    rules: BfclRules
    step_limit: Positive

    @model_validator(mode="after")
    def _hermes_has_its_calls(self) -> Self:
        if self.tools == "hermes" and self.rules.calls != "json":
            raise ValueError("`tools: hermes` needs `rules.calls: json`, the calls of the same format")
        return self

    @property
    def needs_actions(self) -> bool:
        """Whether a message without a call does not end the user's turn."""
        return self.rules.malformed == "answered"

    @staticmethod
    def is_refused(before: str, action: str | None, observation: str) -> bool:
        """Whether the call was not executed, or its tool answered with an error."""
        return observations.output(observation).startswith(observations.ERRORS)

    @property
    def note(self) -> str:
        """That the tasks are generated ones."""
        return "BFCL: generated tasks; non-comparable." if self.tasks.generated else ""
