"""The settings of tables: intervals, and what a suite must have to decide."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from coevolve.settings.section import Positive, Strict, UnitInterval


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


class ReportConfig(Strict):
    """Intervals of this `confidence`.

    `collapse`: reward that a training loses, from its start to its end, if it is said to collapse.
    """

    confidence: Annotated[float, Field(gt=0.0, lt=1.0)]
    collapse: Annotated[float, Field(gt=0.0, le=1.0)]
