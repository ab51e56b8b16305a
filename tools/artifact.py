"""Fills the tables of docs/read/artifact.md from configs/claims.yaml, the plan and committed results.

`python -m tools.artifact` rewrites the page; tests/docs/test_artifact_page.py compares.
"""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from coevolve.config.loading import as_overrides, load_suite
from coevolve.dag.machine import load_machine
from coevolve.dag.plan import Plan
from coevolve.dag.targets import targets
from coevolve.export.suite_export import JOBS
from coevolve.follow import estimates
from coevolve.follow.disk import disk
from coevolve.report import claims as paper
from coevolve.report import stats, verdicts
from coevolve.report.costs import Line, lines
from coevolve.report.number_text import duration, readable, size
from coevolve.report.verdicts import Verdict
from coevolve.storage import product_file
from tools import front_page

ROOT = front_page.ROOT
PAGE = ROOT / "docs/read/artifact.md"
CLAIMS = ROOT / "configs/claims.yaml"
#: The machines of the suite `paper`, and of larger models.
CLUSTER, LARGE = "h100", "h100_13b"
#: Committed results with verdicts.
JUDGED = tuple(sorted(path.parent.name for path in front_page.REFERENCE.glob("*/verdicts.json")))
#: Targets that do not fit the cluster as the suite is written, which the page explains.
NOT_RUNNABLE = frozenset({"method_ppo"})
#: Methods whose differences are shown.
TRAINED = {"sft", "eto", "coevolve"}
#: Seeds of a run; a claim is decided from this many trainings on.
SEEDS = {"seeds": list(range(stats.MIN_SEEDS))}


@dataclass(frozen=True)
class Run:
    """A command and what it builds: targets of suites (all without `targets`), each on a machine.

    `settings` change the suites; `model` is the key of the judged model.
    """

    command: str
    suites: tuple[str, ...]
    machines: tuple[str, ...]
    settings: Mapping[str, Any] = field(default_factory=dict, compare=False)
    targets: tuple[str, ...] = ()
    model: str = ""

    @classmethod
    def of(cls, profile: str, suite: str, machine: str, *targets: str, model: str = "", **settings: Any) -> Run:
        """The call of Snakemake for a suite whose settings are changed; `paper` is the profile's own suite."""
        config = [f"suite={suite}"] * (suite != "paper") + [f"machine={machine}"] * (machine == LARGE)
        config += [f"{key}={_flow(value)}" for key, value in settings.items()]
        goals = ["--", *targets] if targets else []
        command = shlex.join(["snakemake", "--profile", profile, "--config", *config, *goals])
        return cls(command, (suite,), (machine,), settings, targets, model)

    @property
    def verify(self) -> str:
        """The command that judges the claims on its results."""
        settings = [word for setting in as_overrides(self.settings) for word in ("--set", setting)]
        model = ["--model", self.model] * bool(self.model)
        return shlex.join(["coevolve", "verify", "--suite", *self.suites, *settings, *model])


@cache
def _cost(run: Run) -> Line:
    """The estimated cost of all jobs of a run, and as its size what stays on disk, with what is downloaded."""
    costs, stays = [], 0.0
    for suite, name in zip(run.suites, run.machines, strict=True):
        machine = load_machine(name)
        plan = Plan(load_suite(suite, as_overrides(run.settings)), shards=machine.shards)
        known = {target.name: target.files for target in targets(plan)}
        files = [path for target in run.targets for path in known[target]]
        costs += [("", estimates.cost(plan, machine, *job)) for job in plan.jobs(files)]
        needed = disk(plan, machine, files)
        stays += needed.kept + needed.downloads
    return replace(lines(costs)[-1], gigabytes=stays / 1e9)


def _flow(value: Any) -> str:
    """YAML on one line."""
    return str(yaml.safe_dump(value, default_flow_style=True, width=math.inf, sort_keys=False)).strip()


#: Runs for the models that the paper's suite does not have.
OTHER_MODELS = {
    "GPT-4": Run.of("slurm", "in_context", CLUSTER, "method_gpt4", **SEEDS),
    "GPT-3.5-Turbo": Run.of(
        "slurm",
        "in_context",
        CLUSTER,
        "method_gpt35",
        **SEEDS,
        methods=["gpt35"],
        recipes={"gpt35": {"extends": "in_context", "label": "GPT-3.5-Turbo in context"}},
        models={"endpoint": {"label": "GPT-3.5-Turbo", "endpoint": {"model": "gpt-3.5-turbo"}}},
    ),
    "Llama-2-13B-Chat": Run.of("slurm", "base_models", LARGE, "ablation_base_models", **SEEDS, model="llama2-13b-chat"),
    "Qwen3-4B": Run.of("slurm", "base_models", LARGE, "ablation_base_models", **SEEDS, model="qwen3-4b"),
}
#: Runs on one computer, each with the name of its committed result, if there is one.
SMALL_RUNS = (
    (Run("make smoke", ("smoke", "smoke_real"), ("cpu", "cpu_pretrained")), ""),
    (Run("make real", ("real",), ("cpu_pretrained",)), "real"),
    (Run("make micro", ("micro",), ("cpu",)), "micro"),
    (Run.of("smoke", "micro_methods", "cpu", **SEEDS), "methods"),
    (Run.of("smoke", "micro", "cpu", "ablation_lambda", **SEEDS, iterations={"sciworld": 2}), "lambda"),
    (Run("snakemake --profile one-gpu", ("reviewer",), ("one-gpu",)), ""),
)


def blocks(claims: paper.Claims) -> dict[str, str]:
    """The tables of the page by the name of their mark."""
    runs = {name: _run(claim, claims.model) for name, claim in claims.by_name().items()}
    numbers = {run: f"R{number}" for number, run in enumerate(dict.fromkeys(runs.values()), 1)}
    judged = [_claim(name, claim, numbers[runs[name]]) for name, claim in claims.by_name().items()]
    return {
        "small": _table("command, machine, measured, estimated, disk that stays, expected output", _small()),
        "runs": _table(
            "run, command and the command that judges, jobs, time, GPU-hours, disk that stays", _runs(numbers)
        ),
        "claims": _table("claim, the paper, expected, run, verdict", judged),
        "verdicts": _summaries(),
    }


def fill(text: str, claims: Path = CLAIMS) -> str:
    """The page with its marked parts replaced."""
    return front_page.fill(text, blocks(paper.load(claims)))


def _run(claim: paper.Claim, papers_model: str) -> Run:
    """The run that measures what a claim is about."""
    if claim.model and claim.model != papers_model:
        return OTHER_MODELS[claim.model]
    return Run.of("slurm", "paper", CLUSTER, *(f"method_{method}" for method in sorted(claim.methods)), **SEEDS)


def _small() -> list[list[str]]:
    times = json.loads((front_page.REFERENCE / "times.json").read_text())
    rows = []
    for run, reference in SMALL_RUNS:
        cost, measured, expected = _cost(run), "not run here", "exit status 0, Table 1 and a report page"
        if entry := times.get(run.command.removeprefix("make ")):
            measured = f"{entry['wall_minutes']:g} min on {entry['cores']} cores, set-up included"
        elif reference:
            hours = sum(job["seconds"] for job in front_page.read_lines(reference, JOBS)) / 3600
            measured, expected = f"{duration(hours)} of jobs", _expected(reference)
        machine = ", ".join(load_machine(name).label for name in run.machines[:1])
        rows.append([f"`{run.command}`", machine, measured, duration(cost.hours), size(cost.gigabytes), expected])
    return rows


def _expected(reference: str) -> str:
    """The committed table, and the differences between methods with their intervals."""
    folder = f"results/reference/{reference}"
    table = next(name for name in ("table1.md", "table.md") if (ROOT / folder / name).exists())
    link = f"[{folder}/{table}](../../{folder}/{table})"
    return f"{link}; {_differences(reference)}" if table == "table1.md" else link


def _differences(reference: str) -> str:
    """Differences between the trained methods in a committed result, in points with their intervals."""
    labels, by_env = front_page.labels(reference), front_page.differences(reference)
    sentences = []
    for env, of_env in by_env.items():
        parts = [
            f"{labels.method(better)} minus {labels.method(than)} {front_page.points(estimate)}"
            for (better, than), estimate in of_env.items()
            if {better, than} <= TRAINED
        ]
        where = f"{labels.env(env)}: " if len(by_env) > 1 else ""
        sentences.append(f"{where}{', '.join(parts)}.")
    return " ".join(sentences)


def _runs(numbers: dict[Run, str]) -> list[list[str]]:
    rows = []
    for run, number in numbers.items():
        cost = _cost(run)
        commands = f"`{run.command}`<br>`{run.verify}`"
        shown = f"{number}, **not runnable as written**" if NOT_RUNNABLE & set(run.targets) else number
        row = [shown, commands, str(cost.jobs), duration(cost.hours), readable(cost.gpu_hours), size(cost.gigabytes)]
        rows.append(row)
    return rows


def _claim(name: str, claim: paper.Claim, run: str) -> list[str]:
    sentence = f"{claim.text} ({claim.place}{'; unverified' * claim.unverified})".replace("|", "\\|")
    return [f"`{name}`", sentence, _range(claim), run, _verdict(name)]


def _range(claim: paper.Claim) -> str:
    """The range in which the measured number must lie."""
    if not isinstance(claim, paper.SizeClaim):
        return "difference above 0"
    return f"{verdicts.claimed_range(claim)} {'%' if claim.kind == 'share' else 'points'}"


def _verdict(claim: str) -> str:
    """The verdicts in the committed results, each once."""
    outcomes = [_judged(name)[claim].verdict if claim in _judged(name) else "not judged" for name in JUDGED]
    return ", ".join(dict.fromkeys(outcomes))


def _summaries() -> str:
    """The counts of verdicts in the committed results; results with equal counts share a line."""
    names: dict[str, list[str]] = {}
    for name in JUDGED:
        names.setdefault(verdicts.summary(list(_judged(name).values())), []).append(f"`{name}`")
    return "\n".join(f"* {', '.join(results)}: {summary}" for summary, results in names.items())


@cache
def _judged(reference: str) -> dict[str, Verdict]:
    judged = product_file.read(front_page.REFERENCE / reference / "verdicts.json", list[Verdict])
    return {verdict.claim: verdict for verdict in judged}


def _table(heads: str, rows: Sequence[Sequence[str]]) -> str:
    return front_page.table(heads.split(", "), rows)


def main() -> None:
    """Rewrite the marked parts of docs/read/artifact.md."""
    PAGE.write_text(fill(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
