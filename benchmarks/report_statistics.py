"""What the statistics of a report cost: reading records, tables, figure, differences between methods, verdicts.

Seconds are of one processor. Records are made up: twelve methods on the paper's 805 evaluation tasks, with as many
seeds as give the number asked for.

    python benchmarks/report_statistics.py --records 100000
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tabulate import tabulate

from coevolve.config.loading import load_suite
from coevolve.records.episodes import StopReason
from coevolve.records.evaluation import EvalRecord
from coevolve.report import claim_tests, claims, differences, figure3, verdicts
from coevolve.report.claims import Claims
from coevolve.report.labels import ReportLabels
from coevolve.report.measurement import Measurement
from coevolve.report.table1 import MeasuredCells
from coevolve.storage import jsonl

ROOT = Path(__file__).parents[1]
METHODS = 12


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=100_000, help="records in all (default: %(default)s)")
    asked = parser.parse_args()
    paper, suite = claims.load(ROOT / "configs" / "claims.yaml"), load_suite(ROOT / "configs/suites/studies/micro.yaml")
    measured = measurements(paper, asked.records)
    count = sum(len(m.records) for m in measured)
    labels = {m.method: m.method for m in measured}

    def judged() -> None:
        results = claim_tests.Results(tuple(measured), ())
        verdicts.verify(paper, results, suite.report)

    parts: dict[str, Callable[[], Any]] = {
        "read": lambda: [reread(m.records) for m in measured],
        "tables": lambda: [
            make(MeasuredCells.of(measured, paper, ReportLabels(labels, {}), suite.report))
            for make in (MeasuredCells.reward_table, MeasuredCells.success_table)
        ],
        "figure 3": lambda: figure3.curves(measured, labels, suite.report),
        "differences": lambda: differences.paired(measured, suite.report),
        "verdicts": judged,
    }
    seconds = {name: timed(part) for name, part in parts.items()}
    print(f"{count} records, {len(labels)} methods")
    print(tabulate([*seconds.items(), ("all", sum(seconds.values()))], ["part", "cpu-seconds"], floatfmt=".2f"))


def measurements(paper: Claims, count: int) -> list[Measurement]:
    """Made-up records of the paper's protocol and model, so that its claims can be judged."""
    rng = np.random.default_rng(0)
    tasks = [(column.env, column.split, column.tasks) for column in paper.columns.values() if column.env]
    methods = [*paper.rows, *(f"other{number}" for number in range(METHODS - len(paper.rows)))]
    seeds = max(1, round(count / METHODS / sum(number or 0 for _, _, number in tasks)))
    return [
        Measurement(
            "benchmark", paper.model, paper.protocol, method, env, split or "", 1,
            tuple(
                EvalRecord(
                    task_id=str(task), split=split or "", seed=seed, reward=float(reward), success=bool(reward == 1.0),
                    stop=StopReason.DONE, turns=5, trajectory_id="0123456789abcdef",
                )
                for seed in range(seeds)
                for task, reward in enumerate(np.round(rng.random(number or 0), 2))
            ),
        )
        for method in methods
        for env, split, number in tasks
    ]  # fmt: skip


def reread(records: Sequence[EvalRecord]) -> list[EvalRecord]:
    """An evaluation's records, written to a file of their own and read from it."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "records.jsonl")
        path.write_text("".join(f"{record.to_json()}\n" for record in records))
        return jsonl.read(path, EvalRecord)


def timed(part: Callable[[], Any]) -> float:
    started = time.process_time()
    part()
    return time.process_time() - started


if __name__ == "__main__":
    main()
