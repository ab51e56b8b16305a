"""Failures of the exploring agents, drift of the trained log-probs, and compute of each method."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

from coevolve.config.machine import read_machine
from coevolve.report import analysis, claims, drawing, mechanism, mechanism_figure
from coevolve.report.exploration import AgentRecord
from coevolve.report.job_history import JobHistory
from coevolve.report.labels import ReportLabels
from coevolve.storage import files, jsonl
from coevolve.types import Agent, SummaryKey, Trajectory
from coevolve.workflow import results
from coevolve.workflow.branch import Branch
from coevolve.workflow.job import Job
from coevolve.workflow.layout import Layout


def run(job: Job, out: Path) -> dict[str, Any]:
    """Write `analysis.json` and `analysis.md`: outcomes, diversity and rewards of failures, drift, compute.

    And, of the trainings, the mechanism: `coevolve.report.mechanism`, with a figure.
    """
    suite, paper = job.suite.with_model(), claims.load(job.file("claims"))
    machine, history = read_machine(job.file("machine")), JobHistory.read(job.inputs["provenance"])
    labels = ReportLabels.of(suite)
    explored = results.explorations(job, suite, suite.methods)
    experts = {env: _first_of_task(path) for env, path in results.experts(job).items()}
    layout, drifts, computed = Layout(suite), list[analysis.Drift](), list[analysis.Compute]()
    gold, distances = list[analysis.GoldDrift](), list[mechanism.OffPolicy]()
    weights, measured = list[mechanism.KindWeight](), results.gradients(job, suite, suite.methods)
    for method in suite.methods:
        jobs = history.behind(map(layout.tail, layout.evaluations(method).values()))
        computed.append(analysis.compute(method, [analysis.usage(each, machine) for each in jobs]))
        for each in jobs:
            branch = Branch.parse(each.wildcards.get("branch", ""))
            if branch.method == method:
                drifts += analysis.drift_of(each, vars(branch))
                gold += analysis.gold_drift_of(each, vars(branch))
                distances += mechanism.off_policy(each, vars(branch))
                weights += mechanism.kind_weights(each, vars(branch), suite.recipes[method])
    analysis.write(
        [analysis.shares(each, threshold) for threshold in paper.hard_negative for each in explored],
        [analysis.diversity(each, experts[each.env]) for each in explored],
        [analysis.failure_rewards(each) for each in explored],
        drifts,
        gold,
        computed,
        mechanism.Mechanism(
            hard_negatives=tuple(mechanism.hard_negatives(each, paper.hard_negative[0]) for each in explored),
            off_policy=tuple(distances),
            kind_weights=tuple(weights),
            gradients=tuple(
                row for key, each in measured.items() for row in mechanism.gradient_shares(each, _agent(key))
            ),
            gradient_angles=tuple(
                row for key, each in measured.items() for row in mechanism.gradient_angles(each, _agent(key))
            ),
        ),
        labels,
        out,
    )
    shown = mechanism_figure.FigureData.read(out / "analysis.json")
    files.write_bytes(out / "mechanism.png", drawing.png(lambda: mechanism_figure.draw(shown, labels)))
    files.write_bytes(out / "mechanism.svg", drawing.svg(lambda: mechanism_figure.draw(shown, labels)))
    return {"explorations": len(explored)}


def _agent(key: SummaryKey) -> AgentRecord:
    method, _, env, seed, iteration, agent = key
    return AgentRecord(method=method, env=env, seed=seed, iteration=iteration, agent=cast(Agent, agent))


def _first_of_task(path: Path) -> dict[str, Trajectory]:
    """The first expert of each task."""
    return {expert.task.task_id: expert for expert in reversed(jsonl.read(path, Trajectory))}
