"""The constants of a machine's cost model, fitted to the jobs of a suite that ran there.

`python benchmarks/costs.py --suite smoke --machine cpu`. What `coevolve plan` predicts of a job is a
sum: its start, training, playing (reading and writing, whose ratio stays as it is) and the environment's turns. Each
part is scaled so that predictions come closest to the seconds that were measured (least squares, no part negative;
a job's error counts by the root of its length). Environments' turns stay what they are: other benchmarks measure them.
"""

import argparse
from collections.abc import Sequence

import numpy as np
import torch
from scipy.optimize import nnls
from torch.utils.benchmark import Timer

from coevolve.config.loading import load_suite, read_machine
from coevolve.config.machine import Machine
from coevolve.pipeline.plan import Plan
from coevolve.pipeline.stage import PlannedJob
from coevolve.watch import estimates

#: Constants by the part of a job whose time they decide; the others stay what they are.
PARTS = {"start": ("startup_seconds",), "training": ("training",), "playing": ("reading", "writing")}
STAGES = ("untrained", "pretrain", "sft", "rft_train", "reference", "train", "rollout", "evaluate", "shard")


def main() -> None:
    """Print measured against predicted before and after the fit, and the constants it gives."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--suite", required=True, help="a name or a path")
    parser.add_argument("--machine", required=True, help="a name or a path")
    parser.add_argument("--stages", nargs="+", default=STAGES)
    parser.add_argument("--clock", choices=("seconds", "cpu_seconds"), default="seconds", help="wall or CPU time")
    asked = parser.parse_args()
    machine = read_machine(asked.machine)
    plan = Plan.on(load_suite(asked.suite), asked.machine)
    jobs, measured = done(plan, asked.stages, asked.clock)
    before, factors = predicted(plan, machine, jobs), fit(plan, machine, jobs, measured)
    fitted = scaled(machine, factors)
    report([job.stage.name for job in jobs], measured, before, predicted(plan, fitted, jobs))
    for key in (key for keys in PARTS.values() for key in keys):
        print(f"{key}: {getattr(fitted.costs, key):.3g} (is {getattr(machine.costs, key):g})")
    print(f"one core, float32 products of 128 and of 1,024 rows: {flops(128):.2g} and {flops(1024):.2g} operations/s")


def done(plan: Plan, wanted: list[str], clock: str) -> tuple[list[PlannedJob], np.ndarray]:
    """The jobs whose results are there, and the seconds they took by `clock`."""
    jobs = [job for job in plan.jobs() if job.stage.name in wanted]
    took = {job: seconds for job in jobs if (seconds := estimates.measured(job, clock)) is not None}
    return [*took], np.array([*took.values()])


def fit(plan: Plan, machine: Machine, jobs: Sequence[PlannedJob], measured: np.ndarray) -> dict[str, float]:
    """Factors by part with which the predicted seconds of the jobs come closest to the measured ones."""
    before = predicted(plan, machine, jobs)
    slower = (scaled(machine, {name: 2.0}) for name in PARTS)
    matrix = np.stack([predicted(plan, each, jobs) - before for each in slower], axis=1)
    weight = 1 / np.sqrt(measured)
    factors, _ = nnls(matrix * weight[:, None], (measured - before + matrix.sum(axis=1)) * weight)
    return dict(zip(PARTS, map(float, factors), strict=True))


def predicted(plan: Plan, machine: Machine, jobs: Sequence[PlannedJob]) -> np.ndarray:
    """Estimated seconds of each job."""
    return np.array([estimates.cost(plan, machine, job).seconds for job in jobs])


def scaled(machine: Machine, factors: dict[str, float]) -> Machine:
    """The machine with the time of each part of a job multiplied; a part with factor 0 was not measured."""
    costs = machine.costs.model_dump()
    for name, factor in factors.items():
        for key in PARTS[name] if factor else ():
            costs[key] = costs[key] * factor if name == "start" else costs[key] / factor
    return machine.model_copy(update={"costs": machine.costs.model_copy(update=costs)})


def report(stages: list[str], measured: np.ndarray, before: np.ndarray, after: np.ndarray) -> None:
    """Seconds by stage."""
    print(f"{'':10} {'jobs':>5} {'measured':>9} {'predicted':>10} {'fitted':>8}")
    for stage in dict.fromkeys(stages):
        own = np.array(stages) == stage
        print(f"{stage:10} {own.sum():5} {measured[own].sum():9.0f} {before[own].sum():10.0f} {after[own].sum():8.0f}")


def flops(rows: int) -> float:
    """Floating-point operations per second of square matrix products of so many rows on one core, the best of many."""
    timer = Timer("a @ a", globals={"a": torch.ones(rows, rows)}, num_threads=1)
    return 2 * rows**3 / min(timer.timeit(10).median for _ in range(20))


if __name__ == "__main__":
    main()
