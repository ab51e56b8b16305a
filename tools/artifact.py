"""Fills the tables of docs/read/artifact.md from configs/claims.yaml, the plan and committed results.

The plan's numbers on docs/README.md, docs/run/cluster.md and docs/run/training.md too. `python -m tools.artifact`
rewrites the pages; tests/docs/test_artifact_page.py compares.
"""

from __future__ import annotations

import json
import math
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from coevolve.config.loading import as_overrides, load_suite
from coevolve.config.models import STATES, parameter_count
from coevolve.export.suite_export import JOBS
from coevolve.pipeline.machine import load_machine
from coevolve.pipeline.plan import Plan
from coevolve.report import claims as paper
from coevolve.report import estimation, power, verdicts
from coevolve.report.costs import Line, gpu_hours, together
from coevolve.report.number_text import duration, size
from coevolve.report.verdicts import Verdict
from coevolve.storage import product_file
from coevolve.watch import estimates
from tools import front_page, noise

ROOT = front_page.ROOT
PAGE = ROOT / "docs/read/artifact.md"
CLAIMS = ROOT / "configs/claims.yaml"
#: The machines of the suite `paper`, and of larger models.
CLUSTER, LARGE = "h100", "h100_13b"
#: Committed results with verdicts.
JUDGED = tuple(sorted(path.parent.name for path in front_page.REFERENCE.glob("*/verdicts.json")))
#: Methods whose differences are shown.
TRAINED = {"sft", "eto", "coevolve"}
#: Numbers of seeds of the table of power.
POWERED = (1, 4, 6, 8)
#: Seeds of a run; a claim is decided from this many trainings on.
SEEDS = {"seeds": list(range(estimation.MIN_SEEDS))}


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
        command = shlex.join(["snakemake", "--profile", profile, *["--config"] * bool(config), *config, *goals])
        return cls(command, (suite,), (machine,), settings, targets, model)

    @property
    def verify(self) -> str:
        """The command that judges the claims on its results."""
        settings = [word for setting in as_overrides(self.settings) for word in ("--set", setting)]
        model = ["--model", self.model] * bool(self.model)
        return shlex.join(["coevolve", "verify", "--suite", *self.suites, *settings, *model])


@cache
def _costs(run: Run) -> tuple[Line, ...]:
    """The estimated cost of all jobs of a run, and at the fast and slow end of a machine that has them."""
    suites = [load_suite(suite, as_overrides(run.settings)) for suite in run.suites]
    parts = [front_page.planned(*each, run.targets) for each in zip(suites, run.machines, strict=True)]
    return tuple(together("all", lines) for lines in zip(*parts, strict=True))


def _flow(value: Any) -> str:
    """YAML on one line."""
    return str(yaml.safe_dump(value, default_flow_style=True, width=math.inf, sort_keys=False)).strip()


#: Runs for the models that the paper's suite does not have.
OTHER_MODELS = {
    "GPT-4": Run.of("slurm", "in_context", CLUSTER, "method_gpt4", **SEEDS),
    "GPT-3.5-Turbo": Run.of("slurm", "in_context", CLUSTER, "method_gpt35", **SEEDS),
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
#: The whole paper and its parts.
WHOLE = tuple(Run.of("slurm", "paper", CLUSTER, *goals) for goals in ((), ("ablation_main_rows",)))
ABLATION = tuple(Run.of("slurm", "paper", CLUSTER, "ablation_positive_agent", **seeds) for seeds in ({}, SEEDS))
#: Launch files and numbers of devices, and the models whose states are shown.
LAUNCHES, DEVICES, MODELS = ("ddp", "zero2", "zero3", "fsdp"), (4, 8, 16), ("llama2-7b-chat", "llama2-13b-chat")


def plan_pages() -> dict[Path, str]:
    """Other pages with the plan's numbers, with their marked parts replaced."""
    docs = ROOT / "docs"
    index = (docs / "README.md").read_text(encoding="utf-8")
    for suite, machine in (
        ("paper", CLUSTER),
        ("base_models", CLUSTER),
        ("agent_data", CLUSTER),
        ("reviewer", "one-gpu"),
    ):
        cost, *ends = front_page.planned(load_suite(suite), machine)
        hours = rf"\g<1>plan: {gpu_hours(cost, ends)} GPU-hours"
        index, count = re.subn(rf"(?m)^(\| `{suite}` \|.*\| )plan: .* GPU-hours", hours, index)
        if count != 1:
            raise ValueError(f"docs/README.md: {count} lines of `{suite}`")
    alone = front_page.planned(load_suite("paper", as_overrides(SEEDS)), CLUSTER, ABLATION[0].targets, env="webshop")
    filled = {
        docs / "run/cluster.md": {"ablation": _planned([*_commands(ABLATION), ("WebShop alone, four seeds", alone)])},
        docs / "run/training.md": {"states": _states(), "layouts": _layouts()},
    }
    return {docs / "README.md": index} | {
        path: front_page.fill(path.read_text(encoding="utf-8"), made) for path, made in filled.items()
    }


def _commands(runs: Sequence[Run]) -> list[tuple[str, tuple[Line, ...]]]:
    """The commands of runs, with their costs."""
    return [(f"`{run.command}`", _costs(run)) for run in runs]


def _planned(runs: Sequence[tuple[str, tuple[Line, ...]]]) -> str:
    """Jobs, hours and disk of runs."""
    rows = [
        [name, str(cost.jobs), duration(cost.hours), gpu_hours(cost, ends), size(cost.gigabytes)]
        for name, (cost, *ends) in runs
    ]
    return _table("run, jobs, time, GPU-hours, disk", rows)


def _states() -> str:
    """GB of the states of a training with all weights."""
    models = load_suite("base_models").models
    rows = []
    for name in MODELS:
        weights = parameter_count(models[name])
        for devices in DEVICES:
            shares = (STATES[launch] for launch in LAUNCHES)
            cells = [f"{weights * (whole + shared / devices) / 1e9:.0f}" for whole, shared in shares]
            rows.append([models[name].label, str(devices), *cells])
    return _table(", ".join(["model", "devices", *LAUNCHES]), rows)


def _layouts() -> str:
    """GB of a GPU in the trainings of the suites, with sequences of the whole context."""
    rows = []
    for suite in map(load_suite, ("paper", "base_models")):
        memory = estimates.memory(Plan(suite), load_machine(CLUSTER))
        for name in dict.fromkeys(model for model, _ in memory):
            cells = [f"{memory[name, stage] / 1e9:.0f}" for stage in ("sft", "train")]
            rows.append([f"`{suite.suite}`", suite.models[name].label, *cells])
    return _table("suite, model, `sft`, `train`", rows)


def blocks(claims: paper.Claims) -> dict[str, str]:
    """The tables of the page by the name of their mark."""
    suite, named, machine = load_suite("paper"), claims.by_name(), load_machine(CLUSTER)
    hours = estimates.hours_of_a_seed(Plan.on(suite, CLUSTER), machine)
    reached = {name: claim for name, claim in named.items() if not power.out_of_reach(claims, claim, suite)}
    runs = {name: _run(claim, claims.model) for name, claim in reached.items()}
    numbers = {run: f"R{number}" for number, run in enumerate(dict.fromkeys(runs.values()), 1)}
    where = {name: numbers[run] for name, run in runs.items()}
    judged = [_claim(name, claim, where.get(name, "out of reach")) for name, claim in named.items()]
    return {
        "small": _table("command, machine, measured, estimated, disk that stays, expected output", _small()),
        "whole": _planned(_commands(WHOLE)),
        "runs": _table(
            "run, command and the command that judges, jobs, time, GPU-hours, disk that stays", _runs(numbers)
        ),
        "power": power.claims_text(power.expectations(claims, suite, power.load_noise(noise.FILE), POWERED, hours)),
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
        cost, measured, expected = _costs(run)[0], "not run here", "exit status 0, Table 1 and a report page"
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
        cost, *ends = _costs(run)
        commands = f"`{run.command}`<br>`{run.verify}`"
        row = [number, commands, str(cost.jobs), duration(cost.hours), gpu_hours(cost, ends), size(cost.gigabytes)]
        rows.append(row)
    return rows


def _claim(name: str, claim: paper.Claim, run: str) -> list[str]:
    sentence = f"{claim.text} ({claim.place}{'; unverified' * claim.unverified})".replace("|", "\\|")
    return [f"`{name}`", sentence, _range(claim), run, _verdict(name)]


def _range(claim: paper.Claim) -> str:
    """The range in which the measured number must lie."""
    if not isinstance(claim, paper.SizeClaim):
        return "difference above 0"
    return f"{verdicts.claimed(claim)} {'%' if claim.kind == 'share' else 'points'}"


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
    """Rewrite the marked parts of the pages."""
    for page, text in {PAGE: fill(PAGE.read_text(encoding="utf-8")), **plan_pages()}.items():
        page.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
