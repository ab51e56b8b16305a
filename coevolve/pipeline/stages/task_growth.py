"""The growth of the pools of synthetic tasks: training rewards, new tasks by signal, tasks solved later."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from coevolve.config.derived.methods import for_method, with_model
from coevolve.pipeline.job import Job
from coevolve.pipeline.stage import TABLE, Stage
from coevolve.records.episodes import Trajectory
from coevolve.storage import files, jsonl

if TYPE_CHECKING:
    from coevolve.pipeline.stage import Inputs
    from coevolve.pipeline.suite_files import SuiteFiles
    from coevolve.report.task_growth import RoundGrowth


def run(job: Job, out: Path) -> dict[str, Any]:
    """Write `growth.md`, a table of means over seeds, figures of rewards and new tasks, and `growth.json`, all rounds.

    `comparison.md` has the second paper's own numbers with this suite's.
    """
    from coevolve.agent_data.records import PoolTask
    from coevolve.report import claims, drawing, measurement, second_paper, task_growth
    from coevolve.report.labels import ReportLabels

    suite = with_model(job.suite)
    episodes, pools = job.files("episodes"), job.files("pools")
    rounds: list[RoundGrowth] = []
    for method, env, seed in dict.fromkeys(key[:3] for key in episodes):
        numbers = sorted(key[3] for key in episodes if key[:3] == (method, env, seed))
        rounds += task_growth.growth(
            method,
            env,
            seed,
            [jsonl.read(episodes[method, env, seed, number], Trajectory) for number in numbers],
            jsonl.read(pools[method, env, seed, numbers[-1]], PoolTask),
            for_method(suite, method).task_evolution.success,
        )
    labels = ReportLabels.of(suite)
    files.write_bytes(out / "growth.md", task_growth.markdown(rounds, labels, suite.report.confidence).encode())
    drawing.write(out / "growth.svg", lambda: task_growth.draw(rounds, labels))
    drawing.write(out / "new_tasks.svg", lambda: task_growth.draw_new_tasks(rounds, labels))
    paper, measured = claims.load(job.file("claims")), list(measurement.read(suite, job.files("records")))
    comparison = [second_paper.markdown(table, measured, suite.report) for table in paper.success_tables.values()]
    files.write_bytes(out / "comparison.md", "\n".join(comparison).encode())
    files.write_json(out / "growth.json", [each.model_dump(mode="json") for each in rounds])
    return {"rounds": len(rounds)}


def inputs(plan: SuiteFiles) -> Inputs:
    """The training episodes and the pools of the suite's methods, their records, the claims."""
    pools = {key: each.pool["pool.jsonl"] for key, each in plan.rounds().items() if each.pool}
    episodes = {key: each.episodes["target"] for key, each in plan.rounds().items()}
    return plan.of("records", "claims") | {"episodes": episodes, "pools": pools}


STAGE = Stage(
    help="Show how pools of synthetic tasks grow, and compare with the second paper's numbers.",
    run=run,
    reads=(*TABLE, "task_evolution"),
    files=("growth.md", "growth.svg", "new_tasks.svg", "growth.json", "comparison.md"),
)
