"""What tables and figures are made of: evaluation records with the name of what was evaluated."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from coevolve.errors import UserError
from coevolve.types import EvalRecord, Protocol


@dataclass(frozen=True)
class Measurement:
    """All seeds' records of one method on one split after one iteration (0: SFT); `sources` name their files.

    `note` is what has to be said beside them.
    """

    suite: str
    model: str
    protocol: Protocol
    method: str
    env: str
    split: str
    iteration: int
    records: tuple[EvalRecord, ...]
    sources: tuple[str, ...] = ()
    note: str = ""


@dataclass(frozen=True)
class Setting:
    """What all numbers of one table or figure share."""

    suite: str
    model: str
    protocol: Protocol

    def sentence(self) -> str:
        """The setting in words, for captions."""
        return f"Suite {self.suite}, model {self.model}, protocol {self.protocol}."


def environments(measurements: Iterable[Measurement]) -> list[str]:
    """What answered in these measurements, with versions."""
    return sorted({record.environment for measurement in measurements for record in measurement.records} - {""})


def remarks(measurements: Sequence[Measurement]) -> str:
    """What answered, and what has to be said beside the numbers, as sentences."""
    answered = "; ".join(environments(measurements))
    notes = sorted({m.note for m in measurements} - {""})
    return " ".join([*([f"Environments: {answered}."] if answered else []), *notes])


def common_setting(measurements: Sequence[Measurement]) -> Setting:
    """The one suite, model and protocol of all measurements.

    Raises `UserError` if there are no measurements, if one of them has no records, and if they differ, or if one
    environment's results come from different versions of it.
    """
    for measurement in measurements:
        if not measurement.records:
            where = f"{measurement.method} on {measurement.env} {measurement.split}"
            raise UserError(f"{where} has no evaluation records; run its evaluation again.")
    settings = {Setting(m.suite, m.model, m.protocol) for m in measurements}
    if not settings:
        raise UserError("nothing was measured; run the evaluation before the report.")
    for env in sorted({m.env for m in measurements}):
        found = environments(m for m in measurements if m.env == env)
        if len(found) > 1:
            raise UserError(
                f"results on {env} come from different environments ({'; '.join(found)}); run them all on one."
            )
    for key in ("protocol", "suite", "model"):
        values = sorted({getattr(setting, key) for setting in settings})
        if len(values) > 1:
            raise UserError(
                f"results of different {key}s ({', '.join(values)}) in one table; make one for each `{key}`."
            )
    return settings.pop()
