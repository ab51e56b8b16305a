"""What a training reports."""

import operator

from pydantic import Field

from coevolve.records.base import Record, is_none
from coevolve.records.pairs import PairKind


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
    pairs those of `coevolve.train.trainer`, which `kinds` averages over the last steps, as many as an epoch has.
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
    kinds: dict[PairKind, dict[str, int | float]] = Field(default={})
    gold: TrajectoryLogps | None = Field(default=None, exclude_if=is_none)
    explored: TrajectoryLogps | None = Field(default=None, exclude_if=is_none)
    reference: dict[PairKind, ReferenceLevels] = Field(default={}, exclude_if=operator.not_)
    note: str = ""
    seconds: float
    trained_tokens: int
    sampled_tokens: int | None = Field(default=None, exclude_if=is_none)
    launch: dict[str, int | str] | None = Field(default=None, exclude_if=is_none)
