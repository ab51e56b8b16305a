"""Estimated and measured costs of jobs: hours, GPU-hours and disk, by stage and by method.

Every constant stands in a config: a job's work in `envs.*.expected` and the models, the speed of a machine in its
`costs`. Training costs 6 N floating-point operations per token and epoch, a forward pass 2 N (N parameters).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass
from typing import TYPE_CHECKING, Any

from tabulate import tabulate

from coevolve.config.derived.sizes import FORWARD, TRAIN, job_resources, parameter_count, trained_parameters
from coevolve.config.machine import Machine
from coevolve.config.names import ComputeDtype
from coevolve.config.sections import ModelConfig
from coevolve.records.provenance import Workload
from coevolve.report import drawing
from coevolve.report.drawing import BarRow
from coevolve.report.labels import words
from coevolve.report.number_text import duration, readable, size

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ACCOUNTED = (
    "Slurm's accounting of this run (sacct): attempts of jobs by stage; of jobs without a result in the tables above "
    "by their state. Restarts, and Snakemake's own start in each job, count."
)
#: Lines with a smaller share of the whole time are shown together.
SMALL = 0.01
#: Policies are kept in float32 (a row's last as `models.*.final_dtype` says); a token takes about this many bytes:
#: its id and text in JSON, or its id and log-prob.
BYTES_A_WEIGHT, BYTES_A_TOKEN = 4, 12


@dataclass(frozen=True)
class Cost:
    """Seconds of wall time, hours of GPUs held, bytes written to disk, and those of them that are a policy's weights.

    `measured`: seconds that the job took; `measured_cpu`: on the CPU, None if unknown. `reused`: for another suite.
    """

    seconds: float
    gpu_hours: float
    bytes: float
    weights: float = 0.0
    measured: float | None = None
    measured_cpu: float | None = None
    reused: bool = False


@dataclass(frozen=True)
class Line:
    """The jobs of one stage or method together; for the measured ones also their estimated hours.

    `done` jobs ran, in `done_cpu_hours` of the CPU (None: unknown of one); `reused` ones for another suite.
    """

    name: str
    jobs: int
    hours: float
    gpu_hours: float
    gigabytes: float
    done: int
    done_predicted_hours: float
    done_measured_hours: float
    reused: int = 0
    reused_hours: float = 0.0
    done_cpu_hours: float | None = None


def estimate(
    work: Workload,
    model: ModelConfig | None,
    machine: Machine,
    stage: str,
    engine: str | None,
    final_dtype: ComputeDtype = None,
) -> Cost:
    """The estimated cost of a job of `stage` on a machine; `final_dtype`: of whole weights that end a row.

    `engine`: what plays, as in a suite's `sampler` (None: the built-in engine).
    """
    constants, needs = machine.costs, job_resources(machine, stage)
    weights = parameter_count(model) if model else 0.0
    of_vllm = (constants.vllm_reading, constants.vllm_writing) if engine == "vllm" else (None, None)
    reading, writing = (of_vllm[0] or constants.reading), (of_vllm[1] or constants.writing)
    devices = constants.flops * needs.processes
    seconds = constants.startup_seconds if work.starts else 0.0
    seconds += TRAIN * weights * work.train / (devices * constants.training)
    seconds += FORWARD * weights * work.read / (devices * reading)
    seconds += FORWARD * weights * work.write / (devices * writing)
    seconds += work.turn_seconds * constants.turn_scale
    kept = 0.0
    if model and work.keeps_weights:
        written = weights if final_dtype else trained_parameters(model, stage)
        kept = written * (2 if final_dtype == "bfloat16" else BYTES_A_WEIGHT)
    return Cost(seconds, seconds * needs.gpus * needs.nodes / 3600, kept + work.kept * BYTES_A_TOKEN, kept)


def lines(named: Iterable[tuple[str, Cost]]) -> list[Line]:
    """Costs by name, in order of first appearance, and `all` of them at the end."""
    costs = list(named)
    names = dict.fromkeys(name for name, _ in costs)
    groups = {name: [cost for other, cost in costs if other == name] for name in names}
    return [_line(name, group) for name, group in {**groups, "all": [cost for _, cost in costs]}.items()]


def merged(rows: Sequence[Line]) -> list[Line]:
    """The lines with those of less than `SMALL` of the time of `all`, which comes last, as one before it."""
    times = [max(row.hours, row.done_measured_hours, row.reused_hours) for row in rows]
    small = [row for row, time in zip(rows, times, strict=True) if time < SMALL * max(times)]
    if len(small) < 2:
        return list(rows)
    large = [row for row in rows if row not in small]
    return [*large[:-1], together(f"{len(small)} others", small), large[-1]]


def together(name: str, rows: Sequence[Line]) -> Line:
    """The sum of lines under a name; what is unknown of one is unknown of all."""
    columns = zip(*(astuple(row)[1:] for row in rows), strict=True)
    sums: list[Any] = [None if None in column else sum(column) for column in columns]
    return Line(name, *sums)


def text(
    heading: str, rows: Sequence[Line], labels: Mapping[str, str] = {}, ends: Sequence[Sequence[Line]] = ()
) -> str:
    """Costs of all jobs, of those that ran and of those reused, where there are any, in rows that `labels` name.

    `ratio`: measured over predicted time of the jobs that ran. "-": not estimated. `ends`: the same rows with the
    machine's fast and slow constants, which give the hours as a range.
    """
    done, reused = any(row.done for row in rows), any(row.reused for row in rows)
    ranges = dict(zip((row.name for row in rows), zip(*ends, strict=True), strict=True)) if ends else {}
    rows = merged(rows)
    columns: list[tuple[str, bool, Callable[[Line], str]]] = [
        (heading, True, lambda row: labels.get(row.name, words(row.name))),
        ("jobs", True, lambda row: f"{row.jobs:,}"),
        ("time", True, lambda row: duration(row.hours) if row.hours else "-"),
        ("GPU-hours", any(row.gpu_hours for row in rows), lambda row: gpu_hours(row, ranges.get(row.name, ()))),
        ("disk", True, lambda row: size(row.gigabytes) if row.gigabytes else "-"),
        ("done", done, lambda row: f"{row.done:,}"),
        ("predicted", done, lambda row: duration(row.done_predicted_hours) if row.done_predicted_hours else "-"),
        ("measured", done, lambda row: duration(row.done_measured_hours)),
        ("CPU time", done, lambda row: "-" if row.done_cpu_hours is None else duration(row.done_cpu_hours)),
        ("ratio", done, _ratio),
        ("reused", reused, lambda row: f"{row.reused:,}"),
        ("time reused", reused, lambda row: duration(row.reused_hours)),
    ]
    table = {name: [cell(row) for row in rows] for name, is_shown, cell in columns if is_shown}
    aligned = ["left", *["right"] * (len(table) - 1)]
    return tabulate(table, headers="keys", tablefmt="github", disable_numparse=True, colalign=aligned)


def gpu_hours(row: Line, ends: Sequence[Line] = ()) -> str:
    """Such as `31.1`, or `31.1 (24 to 52)` with the same row at the ends of a range."""
    fast, slow = ends or (row, row)
    if fast.gpu_hours == slow.gpu_hours:
        return readable(row.gpu_hours)
    return f"{readable(row.gpu_hours)} ({readable(fast.gpu_hours)} to {readable(slow.gpu_hours)})"


def paced(machine: Machine) -> tuple[Machine, ...]:
    """The machine with its fast, and with its slow constants; none if it has neither."""
    ends = (machine.costs.fast, machine.costs.slow)
    costs = [machine.costs.model_copy(update=dict[str, float](end.items())) for end in ends]
    return tuple(machine.model_copy(update={"costs": each}) for each in costs) if any(ends) else ()


def _ratio(row: Line) -> str:
    return readable(row.done_measured_hours / row.done_predicted_hours) if row.done_predicted_hours else "-"


def draw(tables: Mapping[str, Sequence[Line]], labels: Mapping[str, str]) -> Figure:
    """The figure: predicted and measured hours of the jobs that ran; `labels` name the methods."""
    return drawing.bars(
        "Costs",
        {f"By {heading}, hours": [_bar(line, labels) for line in merged(lines)] for heading, lines in tables.items()},
    )


@dataclass(frozen=True)
class Accounted:
    """Attempts of Slurm jobs together, as Slurm's accounting has them: hours in the queue, running, and of GPUs."""

    name: str
    attempts: int
    waited_hours: float
    hours: float
    gpu_hours: float


def accounted(attempts: Iterable[Accounted]) -> list[Accounted]:
    """Sums of attempts by name, in order of first appearance, and `all` of them at the end; none of none."""
    every = list(attempts)
    names = dict.fromkeys(each.name for each in every)
    groups = {name: [each for each in every if each.name == name] for name in names}
    return [
        Accounted(name, *map(sum, zip(*(astuple(each)[1:] for each in group), strict=True)))
        for name, group in (groups | {"all": every}).items()
        if group
    ]


def accounted_text(rows: Sequence[Accounted]) -> str:
    """The attempts as a table under a sentence."""
    table = [
        [words(row.name), f"{row.attempts:,}", duration(row.waited_hours), duration(row.hours), readable(row.gpu_hours)]
        for row in rows
    ]
    head = ["attempts", "number", "time in the queue", "time", "GPU-hours"]
    drawn = tabulate(table, head, tablefmt="github", disable_numparse=True, colalign=["left", *["right"] * 4])
    return f"{ACCOUNTED}\n\n{drawn}"


def _line(name: str, costs: list[Cost]) -> Line:
    done = [cost for cost in costs if cost.measured is not None and not cost.reused]
    cpu = [cost.measured_cpu for cost in done if cost.measured_cpu is not None]
    reused = [cost for cost in costs if cost.reused]
    return Line(
        name=name,
        jobs=len(costs),
        hours=sum(cost.seconds for cost in costs) / 3600,
        gpu_hours=sum(cost.gpu_hours for cost in costs),
        gigabytes=sum(cost.bytes for cost in costs) / 1e9,
        done=len(done),
        done_predicted_hours=sum(cost.seconds for cost in done) / 3600,
        done_measured_hours=sum(cost.measured or 0.0 for cost in done) / 3600,
        reused=len(reused),
        reused_hours=sum(cost.measured or 0.0 for cost in reused) / 3600,
        done_cpu_hours=sum(cpu) / 3600 if len(cpu) == len(done) else None,
    )


def _bar(line: Line, labels: Mapping[str, str]) -> BarRow:
    hours = {"predicted": line.done_predicted_hours, "measured": line.done_measured_hours}
    reused = f", {line.reused:,} reused" if line.reused else ""
    return BarRow(
        f"{labels.get(line.name, words(line.name))}, {line.done:,} of {line.jobs:,} jobs{reused}",
        [[(kind, number, value)] for number, (kind, value) in enumerate(hours.items())],
        ", ".join(f"{kind} {duration(value)}" for kind, value in hours.items()),
    )
