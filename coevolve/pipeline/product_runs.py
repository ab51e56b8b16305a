"""How tables, figures and texts are made: a function a product, `write_` and its name; `products.py` declares them.

A function reads the job's inputs and sections, writes the product's files to a folder, and returns what the provenance
notes. An edit makes those again whose functions reach it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from coevolve.config.loading import read_machine
from coevolve.config.machine import Machine
from coevolve.config.suite import for_method, models_of, with_model
from coevolve.config.suite import labels as labels_of
from coevolve.pipeline import accounting
from coevolve.pipeline.job import Job
from coevolve.pipeline.stages.parts import mechanism_evidence, regime_evidence
from coevolve.records.provenance import Provenance, Workload
from coevolve.report import (
    analysis,
    claims,
    costs,
    differences,
    drawing,
    examples,
    exploration,
    failure_figures,
    figure2,
    figure3,
    job_history,
    looks,
    measurement,
    pair_counts,
    regime,
    second_paper,
    table,
    table1,
    task_growth,
    verdicts,
)
from coevolve.report.claim_tests import Results
from coevolve.report.costs import Accounted, Cost
from coevolve.report.differences import Difference
from coevolve.report.figure3 import Curves
from coevolve.report.labels import ReportLabels
from coevolve.report.measurement import Measurement, Setting
from coevolve.report.table1 import MeasuredCells
from coevolve.results import tables
from coevolve.storage import files, product_file

Notes = dict[str, Any]
#: Examples shown of each environment.
EXAMPLES = 3


def write_table1(job: Job, out: Path) -> Notes:
    """Table 1: average rewards beside the paper's cells, and success rates."""
    suite, paper = with_model(job.suite), claims.load(job.file("claims"))
    last = _final(job)
    cells = MeasuredCells.of(last, paper, ReportLabels.of(suite), suite.report)
    notes = list(table1.suite_notes(suite, last))
    tables = [cells.reward_table(suite.envs, notes=notes), cells.success_table()]
    table.write(tables, out, "table1")
    return {"cells": table.measured_cells(tables)}


def write_ablation(job: Job, out: Path) -> Notes:
    """The methods of an ablation side by side, their differences and the pairs of each model."""
    paper = claims.load(job.file("claims"))
    (ablation,) = job.suite.ablations.values()
    methods = {method: job.suite.recipes[method].label for method in ablation.methods}
    tables, texts = list[table.Table](), list[str]()
    for model in models_of(job.suite):
        suite = with_model(job.suite, model)
        labels, report = ReportLabels.of(suite, methods), looks.report_of(suite)
        measured = list(measurement.read(suite, job.files("records")))
        last = measurement.final(measured)
        cells = MeasuredCells.of(last, paper, labels, suite.report)
        tables += [cells.reward_table(of_paper=False), cells.success_table()]  # without what was not run
        points = figure3.curves(measured, labels.methods, report).points
        pairings = pair_counts.read(file for file in job.files("summaries") if file.model == model)
        compared = differences.markdown(differences.paired(last, report), points, labels, report, looks.remark(suite))
        counted = pair_counts.methods_markdown(suite, methods, pairings, job.files("drops"), labels)
        texts.append(f"Model: {suite.models[model].label}.\n\n{compared}\n{counted}")
    table.write(tables, out, "table")
    files.write_bytes(out / "summary.md", "\n".join(texts).encode())
    return {"cells": table.measured_cells(tables)}


def write_figure2(job: Job, out: Path) -> Notes:
    """Figure 2: failures of each method on instructions that the SFT policy fails, and their rewards."""
    suite = with_model(job.suite)
    (model,) = models_of(suite)
    explored = exploration.read(suite, job.files("explorations"))
    setting = Setting(suite.suite, suite.models[model].label, suite.protocol).sentence()
    notes = " ".join([setting, *dict.fromkeys(each.note for each in explored if each.note)])
    labels, data = ReportLabels.of(suite), figure2.data(explored, labels_of(suite), notes, suite.report)
    files.write_json(out / "figure2.json", data.model_dump(mode="json"))
    drawing.write(out / "figure2.svg", lambda: figure2.draw(data, labels))
    return {"explorations": len(explored)}


def write_figure3(job: Job, out: Path) -> Notes:
    """Figure 3: average reward per iteration; where no method has iterations, the final rewards."""
    suite = with_model(job.suite)
    labels, drawn = ReportLabels.of(suite), figure3.drawn(suite, list(measurement.read(suite, job.files("records"))))
    curves = figure3.curves(drawn, labels.methods, suite.report)
    files.write_json(out / "figure3.json", curves.model_dump(mode="json"))
    drawing.write(out / "figure3.svg", lambda: figure3.draw(curves, labels))
    return {"points": len(drawn)}


def write_differences(job: Job, out: Path) -> Notes:
    """Average reward of every method minus that of every other, paired by task and seed."""
    compared = differences.paired(_final(job), looks.report_of(with_model(job.suite)))
    files.write_json(out / "differences.json", [difference.model_dump(mode="json") for difference in compared])
    return {"differences": len(compared)}


def write_failures(job: Job, out: Path) -> Notes:
    """Failures of the exploring agents, drift of the trained log-probs, and compute of each method."""
    suite = with_model(job.suite)
    measured, labels = mechanism_evidence.measure(job, suite), ReportLabels.of(suite)
    files.write_json(out / "analysis.json", measured.model_dump(mode="json"))
    files.write_bytes(out / "analysis.md", analysis.markdown(measured, labels).encode())
    drawing.write(out / "failure_rewards.svg", lambda: failure_figures.draw_rewards(measured.failure_rewards, labels))
    drawing.write(out / "mechanism.svg", lambda: failure_figures.draw_mechanism(measured, labels))
    return {"explorations": len(measured.failure_rewards)}


def write_summary(job: Job, out: Path) -> Notes:
    """Differences between methods in words, and each method's source, pairs and drops."""
    suite = with_model(job.suite)
    labels, compared = ReportLabels.of(suite), product_file.read(job.file("differences"), list[Difference])
    points = product_file.read(job.file("figure3"), Curves).points
    text = differences.markdown(compared, points, labels, looks.report_of(suite), looks.remark(suite))
    pairings = pair_counts.read(job.files("summaries"))
    text += "\n" + pair_counts.methods_markdown(suite, suite.methods, pairings, job.files("drops"), labels)
    files.write_bytes(out / "summary.md", text.encode())
    return {"differences": len(compared)}


def write_verdicts(job: Job, out: Path) -> Notes:
    """A verdict on each claim of the paper; notes the number of claims by verdict."""
    suite, paper = with_model(job.suite), claims.load(job.file("claims"))
    measured = list(measurement.read(suite, job.files("records")))
    evidence = Results(tuple(measured), tuple(exploration.read(suite, job.files("explorations"))))
    judged = verdicts.verify(paper, evidence, looks.report_of(suite), miniature=verdicts.is_miniature(suite))
    return verdicts.write(judged, out, tables=second_paper.tables(paper, suite, measured))


def write_regime(job: Job, out: Path) -> Notes:
    """Whether the suite could decide between the methods: checks of the first model."""
    suite, jobs = with_model(job.suite), job_history.read(job.inputs["provenance"])
    checks = regime_evidence.checks(suite, regime_evidence.read(suite, job.results, jobs.values()))
    files.write_json(out / "regime.json", [check.model_dump(mode="json") for check in checks])
    files.write_bytes(out / "regime.md", regime.markdown(checks, ReportLabels.of(suite, labels_of(suite))).encode())
    return {"checks": len(checks), "passed": sum(check.passed is True for check in checks)}


def write_pair_counts(job: Job, out: Path) -> Notes:
    """Candidates, pairs and drops by method, environment, seed, iteration, agent and pair kind."""
    rows, labels = pair_counts.rows(pair_counts.read(job.files("summaries"))), ReportLabels.of(job.suite)
    files.write_json(out / "pairs.json", rows)
    drawing.write(out / "pairs.svg", lambda: pair_counts.draw(rows, labels))
    return {"rows": len(rows)}


def write_examples(job: Job, out: Path) -> Notes:
    """Failures of ETO's agent and of the failure agent on the same instructions, chosen by rule."""
    suite = with_model(job.suite)
    explored = exploration.read(suite, job.files("explorations"))
    chosen = [example for env in suite.envs for example in examples.examples(explored, env, EXAMPLES)]
    files.write_bytes(out / "examples.md", examples.markdown(chosen, ReportLabels.of(suite).envs).encode())
    return {"examples": len(chosen)}


def write_task_growth(job: Job, out: Path) -> Notes:
    """Growth of the pools of synthetic tasks, and the second paper's own numbers with this suite's."""
    suite, paper = with_model(job.suite), claims.load(job.file("claims"))
    success = {method: for_method(suite, method).task_evolution.success for method in suite.methods}
    rounds = task_growth.read(job.files("episodes"), job.files("pools"), success)
    labels, measured = ReportLabels.of(suite), list(measurement.read(suite, job.files("records")))
    comparison = [second_paper.markdown(each, measured, suite.report) for each in paper.success_tables.values()]
    files.write_json(out / "growth.json", [each.model_dump(mode="json") for each in rounds])
    files.write_bytes(out / "growth.md", task_growth.markdown(rounds, labels, suite.report.confidence).encode())
    files.write_bytes(out / "comparison.md", "\n".join(comparison).encode())
    drawing.write(out / "growth.svg", lambda: task_growth.draw(rounds, labels))
    drawing.write(out / "new_tasks.svg", lambda: task_growth.draw_new_tasks(rounds, labels))
    return {"rounds": len(rounds)}


def write_costs(job: Job, out: Path) -> Notes:
    """Estimated and measured hours of all jobs by stage and by method, and what Slurm accounted; notes the machine.

    A job whose environment had no `expected` when it ran has no estimate, and is left out.
    """
    machine, history = read_machine(job.file("machine")), job_history.read(job.inputs["provenance"])
    jobs = [(each, _cost(job, machine, each, load)) for each in history.values() if (load := each.workload)]
    tables = {
        "stage": costs.lines((each.stage, cost) for each, cost in jobs),
        "method": costs.lines((_owner(job, each), cost) for each, cost in jobs),
    }
    named = {"method": labels_of(job.suite)}
    texts = [costs.text(heading, rows, named.get(heading, {})) for heading, rows in tables.items()]
    if left_out := len(history) - len(jobs):
        texts.append(f"Not in the tables: {left_out} of {len(history)} jobs, which ran without `expected`.")
    numbers = {heading: [asdict(row) for row in rows] for heading, rows in tables.items()}
    if slurm := costs.accounted(_attempts(history.values())):
        texts.append(costs.accounted_text(slurm))
        numbers["slurm"] = [asdict(row) for row in slurm]
    text = "\n\n".join([f"Predicted for {machine.label}, and measured.", *texts])
    files.write_bytes(out / "costs.md", f"{text}\n".encode())
    files.write_json(out / "costs.json", numbers)
    drawing.write(out / "costs.svg", lambda: costs.draw(tables, named["method"]))
    return {"jobs": len(jobs), "machine": machine.model_dump(mode="json")}


def write_tables(job: Job, out: Path) -> Notes:
    """Episodes, pairs, pairings, training steps and jobs as tidy tables."""
    history = [(tables.of_job(made), made) for made in job_history.read(job.inputs["provenance"]).values()]
    needs_actions = {env: section.needs_actions for env, section in job.suite.envs.items()}
    made = {
        "episodes": tables.episodes(job.files("records"), job.files("explorations"), needs_actions),
        "pairs": tables.pairs(job.files("pairs")),
        "pairings": tables.pairings(job.files("summaries")),
        "trainings": tables.trainings(history),
        "jobs": tables.jobs(history),
    }
    for name, frame in made.items():
        files.write_bytes(out / f"{name}.parquet", frame.to_parquet(index=False))
    return {name: len(frame) for name, frame in made.items()}


def _final(job: Job) -> list[Measurement]:
    """The evaluations after the last iteration of each method, of the suite's first model."""
    return measurement.final(list(measurement.read(with_model(job.suite), job.files("records"))))


def _cost(job: Job, machine: Machine, record: Provenance, workload: Workload) -> Cost:
    """Estimated and measured cost of a finished job; its workload was estimated when it ran."""
    model = job.suite.models.get(record.wildcards.get("model", ""))
    # PPO and GRPO, which train while they play, do not play with the sampler's engine.
    section = next((name for name in ("ppo", "grpo") if name in record.config), "sampler")
    engine = record.config.get(section, {}).get("engine")
    cost = costs.estimate(workload, model, machine, record.stage, engine)
    reused = record.reused_from is not None
    return replace(cost, measured=record.seconds, measured_cpu=record.cpu_seconds, reused=reused)


def _owner(job: Job, record: Provenance) -> str:
    """The method that a job belongs to, or `shared`."""
    method = tables.of_job(record).method
    return method if method in job.suite.recipes else "shared"


def _attempts(history: Iterable[Provenance]) -> Iterator[Accounted]:
    """The ended attempts of the run's Slurm jobs: of jobs with a result by stage, of others by their state."""
    stages = {each.slurm_job: each.stage for each in history if each.slurm_job and each.reused_from is None}
    for each in accounting.attempts(stages):
        if each.state not in ("PENDING", "RUNNING"):
            hours = each.seconds / 3600
            yield Accounted(stages.get(each.job, each.state.lower()), 1, each.waited / 3600, hours, hours * each.gpus)
