"""Evaluation records by method, environment, split and iteration: the input of tables and figures."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from coevolve.config.suite import Suite, models_of
from coevolve.errors import UserError
from coevolve.records.evaluation import EvalRecord, ResultFile
from coevolve.report.stats import group_by
from coevolve.settings.protocol import Protocol
from coevolve.storage import jsonl


@dataclass(frozen=True)
class Measurement:
    """All seeds' records of one method on one split after one iteration (0: SFT); `sources` name their files.

    `note` is a remark on these results. `single_policy`: one policy stands for all seeds of the suite, and its records
    have seed 0, whatever the suite's seeds are, as those of the untrained model do.
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
    single_policy: bool = False


def read(suite: Suite, records: Iterable[ResultFile]) -> Iterator[Measurement]:
    """Every method's records by environment, split and iteration, seeds together, of its model or the suite's one."""
    for (method,), of_method in group_by(records, "method").items():
        (model,) = models_of(suite, method)
        groups = group_by((file for file in of_method if file.model == model), "env", "iteration")
        for (env, iteration), files in sorted(groups.items()):
            paths, seeds = sorted({file.path for file in files}), {file.seed for file in files}
            episodes = [record for path in paths for record in jsonl.read(Path(path), EvalRecord)]
            for split in suite.envs[env].splits:
                yield Measurement(
                    suite=suite.suite,
                    model=suite.models[model].label,
                    protocol=suite.protocol,
                    method=method,
                    env=env,
                    split=split,
                    iteration=iteration,
                    records=tuple(record for record in episodes if record.split == split),
                    sources=tuple(paths),
                    note=suite.envs[env].note,
                    single_policy=len(paths) == 1 and seeds != {record.seed for record in episodes},
                )


def final(measurements: Sequence[Measurement]) -> list[Measurement]:
    """The measurements after the last iteration of each method in each environment."""
    last: dict[tuple[str, str], int] = {}
    for m in measurements:
        last[m.method, m.env] = max(m.iteration, last.get((m.method, m.env), 0))
    return [m for m in measurements if m.iteration == last[m.method, m.env]]


@dataclass(frozen=True)
class Setting:
    """The setting that all numbers of a table or figure share."""

    suite: str
    model: str
    protocol: Protocol

    def sentence(self) -> str:
        """The setting in words, for captions."""
        return f"Suite {self.suite}, model {self.model}, protocol {self.protocol}."


def environments(measurements: Iterable[Measurement]) -> list[str]:
    """Names and versions of the environments of these measurements."""
    return sorted({record.environment for measurement in measurements for record in measurement.records} - {""})


def remarks(measurements: Sequence[Measurement]) -> str:
    """The environments and the notes of the measurements, as sentences."""
    names = "; ".join(environments(measurements))
    notes = sorted({m.note for m in measurements} - {""})
    return " ".join([*([f"Environments: {names}."] if names else []), *notes])


def common_setting(measurements: Sequence[Measurement]) -> Setting:
    """The suite and protocol of measurements that have these in common, and their models.

    Raises `UserError` for no measurements, for one without records, and for several versions of an environment.
    """
    for measurement in measurements:
        if not measurement.records:
            where = f"{measurement.method} on {measurement.env} {measurement.split}"
            raise UserError(f"{where} has no evaluation records; run its evaluation again.")
    if not measurements:
        raise UserError("nothing was measured; run the evaluation before the report.")
    for env in sorted({m.env for m in measurements}):
        names = environments(m for m in measurements if m.env == env)
        if len(names) > 1:
            raise UserError(
                f"results on {env} come from different environments ({'; '.join(names)}); run them all on one."
            )
    models = ", ".join(dict.fromkeys(measurement.model for measurement in measurements))
    return Setting(measurements[0].suite, models, measurements[0].protocol)
