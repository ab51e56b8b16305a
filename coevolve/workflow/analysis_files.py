"""Figure 2, what agents did while they explored, and Appendix C and D, from the files that the methods left."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from coevolve.config.machine import Machine
from coevolve.config.suite import Suite
from coevolve.report import analysis, examples, figure2, pair_counts
from coevolve.report import claims as paper
from coevolve.report.exploration import Exploration
from coevolve.report.measurement import Setting
from coevolve.storage import files, jsonl
from coevolve.types import Record, Trajectory
from coevolve.workflow.branch import Branch
from coevolve.workflow.costs import made
from coevolve.workflow.job import write_json
from coevolve.workflow.measurements import summaries
from coevolve.workflow.plan import Plan

#: Examples shown of each environment.
EXAMPLES = 3


def write(
    plan: Plan,
    claims: paper.Claims,
    machine: Machine,
    methods: Sequence[str],
    explored: Sequence[Exploration],
    out: Path,
) -> dict[str, Any]:
    """Write `figure2.{json,png,svg}`, `analysis.{json,md}`, `pairs.json` and `examples.md`; returns their counts."""
    suite = plan.suite
    _write_figure(suite, explored, out)
    _write_analysis(plan, claims, machine, methods, explored, out)
    chosen = [one for env in suite.envs for one in examples.examples(explored, env, EXAMPLES)]
    labels = {env: section.label for env, section in suite.envs.items()}
    files.write_bytes(out / "examples.md", examples.markdown(chosen, labels).encode())
    return {"explorations": len(explored), "examples": len(chosen)}


def _write_figure(suite: Suite, explored: Sequence[Exploration], out: Path) -> None:
    (model,) = suite.models.values()
    setting = Setting(suite.suite, model.label, suite.protocol).sentence()
    notes = " ".join([setting, *dict.fromkeys(one.note for one in explored if one.note)])
    labels = {method: recipe.label for method, recipe in suite.recipes.items()}
    data = figure2.data(explored, labels, notes, suite.report, 0)
    write_json(out / "figure2.json", data.model_dump(mode="json"))
    files.write_bytes(out / "figure2.png", figure2.png(data))
    files.write_bytes(out / "figure2.svg", figure2.svg(data))


def _write_analysis(
    plan: Plan,
    claims: paper.Claims,
    machine: Machine,
    methods: Sequence[str],
    explored: Sequence[Exploration],
    out: Path,
) -> None:
    experts = {env: _experts(plan, env) for env in plan.suite.envs}
    found = [analysis.shares(one, threshold) for threshold in claims.hard_negative for one in explored]
    diverse = [analysis.diversity(one, experts[one.env]) for one in explored]
    drifts = list(_drifts(plan, methods))
    computed = [analysis.compute(method, list(_work(plan, machine, method))) for method in methods]
    files.write_bytes(out / "analysis.md", analysis.markdown(found, diverse, drifts, computed).encode())
    write_json(
        out / "analysis.json",
        {
            name: [record.model_dump(mode="json") for record in records]
            for name, records in _named(found, diverse, drifts, computed)
        },
    )
    write_json(out / "pairs.json", pair_counts.rows(summaries(plan, methods)))


def _named(*records: Sequence[Record]) -> Iterator[tuple[str, Sequence[Record]]]:
    return zip(("shares", "diversity", "drift", "compute"), records, strict=True)


def _experts(plan: Plan, env: str) -> dict[str, Trajectory]:
    """The first expert of each task."""
    found = jsonl.read(Path(plan.home, "data", env, "experts.jsonl"), Trajectory)
    return {expert.task.task_id: expert for expert in reversed(found)}


def _drifts(plan: Plan, methods: Sequence[str]) -> Iterator[analysis.Drift]:
    """Of every preference training that the methods' evaluations rest on."""
    for method in methods:
        for stage, wildcards in plan.jobs(list(plan.evaluations(method).values())):
            branch = Branch.parse(wildcards.get("branch", ""))
            if stage != "train" or branch.method != method:
                continue
            names = {"env": wildcards["env"], "agent": wildcards["agent"], **vars(branch)}
            history = made(plan, stage, wildcards).get("notes", {}).get("history", [])
            yield from analysis.drift(names, history, plan.suite.for_method(method).dpo.epochs)


def _work(plan: Plan, machine: Machine, method: str) -> Iterator[analysis.Work]:
    """What every job took that a method's evaluations rest on; the parts of an exploration count its seconds."""
    for stage, wildcards in plan.jobs(list(plan.evaluations(method).values())):
        record = made(plan, stage, wildcards)
        if record and stage != "download":
            needs, notes = machine.job_resources(stage), record["notes"]
            tokens = notes.get("tokens", 0)
            plays = stage in ("rollout", "evaluate")
            yield analysis.Work(
                stage=stage,
                seconds=record["seconds"],
                gpus=needs.gpus * needs.nodes,
                trained=tokens if "history" in notes else 0,
                sampled=tokens if plays else _sampled(plan, stage, wildcards, notes),
            )


def _sampled(plan: Plan, stage: str, wildcards: Mapping[str, str], notes: Mapping[str, Any]) -> int:
    """Tokens sampled by a stage that plays on the way: it counts them, or its episodes lie beside its policy."""
    if stage == "steps":
        return sum(player["tokens"] for player in notes.get("played", {}).values())
    path = Path(plan.folder(stage, wildcards), "episodes.jsonl")
    episodes = jsonl.read(path, Trajectory) if stage in ("ppo", "grpo") else []
    return sum(len(turn.token_ids) for episode in episodes for turn in episode.turns)
