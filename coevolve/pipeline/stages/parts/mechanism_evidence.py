"""What the product `failures` measures of explorations and trainings."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, cast

from coevolve.config.loading import read_machine
from coevolve.config.suite import Suite
from coevolve.pipeline.job import Job
from coevolve.records.episodes import Agent, Trajectory
from coevolve.records.evaluation import ResultFile
from coevolve.records.gradients import GradientReport
from coevolve.records.pairs import PreferencePair
from coevolve.records.provenance import Provenance
from coevolve.report import analysis, claims, exploration, flaws, job_history, mechanism
from coevolve.report.exploration import AgentRecord
from coevolve.report.labels import ReportLabels
from coevolve.report.stats import group_by
from coevolve.results.tables import of_job
from coevolve.storage import files, jsonl

R = TypeVar("R")


def measure(job: Job, suite: Suite) -> analysis.Analysis:
    """Outcomes, diversity and rewards of failures, drift, compute; and, of the trainings, the mechanism."""
    paper = claims.load(job.file("claims"))
    machine, history = read_machine(job.file("machine")), job_history.read(job.inputs["provenance"])
    labels = ReportLabels.of(suite)
    read = exploration.read(suite, job.files("explorations"))
    explored = [each for each in read if each.episodes]  # shares of nothing are undefined
    experts = {file.env: _first_actions(Path(file.path)) for file in job.files("experts")}
    evaluated = {name: [f.path for f in job.files("records") if f.method == name] for name in suite.methods}
    jobs = {name: job_history.behind(history, map(Path, paths)) for name, paths in evaluated.items()}
    branch_jobs = list(_jobs_of_branches(jobs))
    gradients = [
        (GradientReport.from_json(files.read_bytes(Path(file.path))), _agent(file)) for file in job.files("gradients")
    ]
    pairs = ((jsonl.stream(Path(file.path), PreferencePair), _agent(file)) for file in job.files("pairs"))
    hard = paper.hard_negative[0]
    return analysis.Analysis(
        shares=tuple(analysis.shares(each, threshold) for threshold in paper.hard_negative for each in explored),
        diversity=tuple(
            analysis.diversity(exploration.trajectories(Path(each.source)), each.names, experts[each.env])
            for each in explored
        ),
        failure_rewards=tuple(analysis.failure_rewards(each) for each in explored),
        drift=_rows(analysis.drift, branch_jobs),
        gold=_rows(partial(analysis.trajectory_drift, sample="gold"), branch_jobs),
        explored=_rows(partial(analysis.trajectory_drift, sample="explored"), branch_jobs),
        hard_negatives=tuple(mechanism.hard_negatives(each, hard) for each in explored),
        pair_rewards=_rows(partial(mechanism.pair_rewards, threshold=hard), pairs),
        off_policy=_rows(mechanism.off_policy, branch_jobs),
        kind_weights=_rows(
            mechanism.kind_weights, [(each, names, suite.recipes[names["method"]]) for each, names in branch_jobs]
        ),
        compute=tuple(analysis.compute(method, of_method, machine) for method, of_method in jobs.items()),
        gradients=_rows(mechanism.gradient_shares, gradients),
        gradient_angles=_rows(mechanism.gradient_angles, gradients),
        remark=flaws.remark(
            (f"{labels.method(method)}, {labels.env(env)}, {agent} agent", [e for each in group for e in each.episodes])
            for (method, env, agent), group in group_by(explored, "method", "env", "agent").items()
        ),
    )


def _jobs_of_branches(jobs: Mapping[str, Sequence[Provenance]]) -> Iterator[tuple[Provenance, dict[str, Any]]]:
    """The jobs that are a method's alone, with its name, the seed and the iteration."""
    for method, of_method in jobs.items():
        for each in of_method:
            of = of_job(each)
            if of.method == method:
                yield each, {"method": method, "seed": of.seed, "iteration": of.iteration}


def _rows(measure: Callable[..., Iterable[R]], of: Iterable[tuple[Any, ...]]) -> tuple[R, ...]:
    """The rows that are measured of all these arguments."""
    return tuple(itertools.chain.from_iterable(itertools.starmap(measure, of)))


def _agent(of: ResultFile) -> AgentRecord:
    agent = cast(Agent, of.agent)
    return AgentRecord(method=of.method, env=of.env, seed=of.seed, iteration=of.iteration, agent=agent)


def _first_actions(path: Path) -> dict[str, tuple[str, ...]]:
    """The actions of the first expert of each task."""
    first: dict[str, tuple[str, ...]] = {}
    for expert in jsonl.stream(path, Trajectory):
        first.setdefault(expert.task.task_id, analysis.actions(expert))
    return first
