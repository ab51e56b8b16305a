"""Failures of the exploring agents, drift of the trained log-probs, and compute of each method."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

from coevolve.config.loading import read_machine
from coevolve.config.suite import with_model
from coevolve.pipeline.branch import Branch
from coevolve.pipeline.job import Job
from coevolve.pipeline.stage import TABLE, Stage
from coevolve.records.episodes import Agent, Trajectory
from coevolve.records.evaluation import SummaryKey
from coevolve.records.gradients import GradientReport
from coevolve.records.pairs import PreferencePair
from coevolve.records.provenance import Provenance
from coevolve.storage import files, jsonl

if TYPE_CHECKING:
    from coevolve.pipeline.stage import Inputs
    from coevolve.pipeline.suite_files import SuiteFiles
    from coevolve.report.exploration import AgentRecord

R = TypeVar("R")


def run(job: Job, out: Path) -> dict[str, Any]:
    """Write `analysis.json` and `analysis.md`: outcomes, diversity and rewards of failures, drift, compute.

    And, of the trainings, the mechanism: `coevolve.report.mechanism`. The rewards and the mechanism have a figure each.
    """
    from coevolve.report import analysis, claims, drawing, exploration, failure_figures, flaws, job_history, mechanism
    from coevolve.report.labels import ReportLabels
    from coevolve.report.stats import group_by

    suite, paper = with_model(job.suite), claims.load(job.file("claims"))
    machine, history = read_machine(job.file("machine")), job_history.read(job.inputs["provenance"])
    labels = ReportLabels.of(suite)
    read = exploration.read(suite, job.files("explorations"))
    explored = [each for each in read if each.episodes]  # shares of nothing are undefined
    experts = {env: _first_actions(path) for env, path in job.files("experts").items()}
    records = job.files("records")
    evaluated = {name: [path for key, path in records.items() if key[0] == name] for name in suite.methods}
    jobs = {name: job_history.behind(history, paths) for name, paths in evaluated.items()}
    branch_jobs = list(_jobs_of_branches(jobs))
    gradients = [
        (GradientReport.from_json(files.read_bytes(path)), _agent(key)) for key, path in job.files("gradients").items()
    ]
    pairs = ((jsonl.stream(path, PreferencePair), _agent(key)) for key, path in job.files("pairs").items())
    hard = paper.hard_negative[0]
    measured = analysis.Analysis(
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
    files.write_json(out / "analysis.json", measured.model_dump(mode="json"))
    files.write_bytes(out / "analysis.md", analysis.markdown(measured, labels).encode())
    drawing.write(out / "failure_rewards.svg", lambda: failure_figures.draw_rewards(measured.failure_rewards, labels))
    drawing.write(out / "mechanism.svg", lambda: failure_figures.draw_mechanism(measured, labels))
    return {"explorations": len(explored)}


def _jobs_of_branches(jobs: Mapping[str, Sequence[Provenance]]) -> Iterator[tuple[Provenance, dict[str, Any]]]:
    """The jobs that are a method's alone, with its name, the seed and the iteration."""
    for method, of_method in jobs.items():
        for each in of_method:
            branch = Branch.parse(each.wildcards.get("branch", ""))
            if branch.method == method:
                yield each, vars(branch)


def _rows(measure: Callable[..., Iterable[R]], of: Iterable[tuple[Any, ...]]) -> tuple[R, ...]:
    """The rows that are measured of all these arguments."""
    return tuple(itertools.chain.from_iterable(itertools.starmap(measure, of)))


def _agent(key: SummaryKey) -> AgentRecord:
    from coevolve.report.exploration import AgentRecord

    method, _, env, seed, iteration, agent = key
    return AgentRecord(method=method, env=env, seed=seed, iteration=iteration, agent=cast(Agent, agent))


def _first_actions(path: Path) -> dict[str, tuple[str, ...]]:
    """The actions of the first expert of each task."""
    from coevolve.report import analysis

    first: dict[str, tuple[str, ...]] = {}
    for expert in jsonl.stream(path, Trajectory):
        first.setdefault(expert.task.task_id, analysis.actions(expert))
    return first


def inputs(plan: SuiteFiles) -> Inputs:
    """Records, episodes, experts, pairs and the machine; and gradients, if the suite measures them."""
    names = ("records", "explorations", "experts", "pairs", "claims", "machine", "machine_parents")
    return plan.of(*names, *(["gradients"] if plan.suite.gradients.pairs else []))


STAGE = Stage(
    help="Analyse explorations, failures, log-probs before and after training, and compute.",
    run=run,
    reads=TABLE,
    files=("analysis.json", "analysis.md", "failure_rewards.svg", "mechanism.svg"),
)
