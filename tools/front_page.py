"""Writes the README's pictures, docs/loop.svg and docs/results.svg, and its numbers, from committed results.

`python tools/front_page.py` rewrites them; tests/docs/test_front_page.py compares.
"""

from __future__ import annotations

import json
import lzma
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coevolve.config.loading import load_suite
from coevolve.config.suite import Suite
from coevolve.export.suite_export import JOBS
from coevolve.pipeline.branch import Branch
from coevolve.pipeline.machine import load_machine
from coevolve.pipeline.plan import Plan
from coevolve.pipeline.stage import PlannedJob, Subject, files_by_name
from coevolve.pipeline.targets import targets
from coevolve.records.tables import Estimate
from coevolve.report import costs, drawing, estimation, first_screen, loop
from coevolve.report.costs import Line
from coevolve.report.labels import ReportLabels
from coevolve.report.number_text import size
from coevolve.storage import files, provenance
from coevolve.watch import estimates
from coevolve.watch.disk import disk

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ROOT = Path(__file__).parents[1]
REFERENCE = ROOT / "results/reference"
#: What runs where.
COMMANDS = (
    (
        "make smoke",
        "the paper in miniature, one seed; a pretrained model before and after SFT",
        "Debian, 2 cores, 8 GB, no GPU",
    ),
    ("make test", "the tests, except the slow ones", "the same"),
    ("make real", "SFT, ETO, co-evolving with a pretrained model", "the same"),
    ("snakemake --profile one-gpu", "ScienceWorld with Qwen3-0.6B, one seed", "one GPU of 24 GB"),
    ("make cluster && snakemake --profile slurm", "the whole paper with Llama-2-7B-Chat, one seed", "nodes of 8 H100"),
    ("snakemake --profile slurm -- ablation_main_rows", "only its rows SFT, ETO and co-evolving", "the same"),
)
#: The suite, machine and targets of the commands that were planned and not run.
PLANNED = {
    "snakemake --profile one-gpu": ("reviewer", "one-gpu", ()),
    "make cluster && snakemake --profile slurm": ("paper", "h100", ()),
    "snakemake --profile slurm -- ablation_main_rows": ("paper", "h100", ("ablation_main_rows",)),
}
#: Units of `tests/data/contents.json` that the README counts, and their names there.
RECORDED = {"observations": "WebShop observations", "statements": "SQL statements", "walks": "ScienceWorld walks"}
#: Of the committed intervals.
CONFIDENCE = 0.95
#: Its second picture: headings, and below each rows with the committed result, its environment and the two methods.
COMPARED = {
    "Co-evolving minus SFT": (
        ("experts are new to SFT", "science", "sciworld", "coevolve", "sft"),
        ("the same seeds, other machines", "science_bounds", "sciworld", "coevolve", "sft"),
        ("experts are SFT's own", "science_when", "sciworld", "coevolve", "sft"),
    ),
    "Co-evolving minus ETO": (
        ("ScienceWorld", "science", "sciworld", "coevolve", "eto"),
        ("WebShop", "science_methods", "webshop", "coevolve", "eto"),
        ("ScienceWorld, pretrained model", "real_seeds", "sciworld", "coevolve", "eto"),
    ),
    "Pairs of failures minus none": (
        ("beside pairs with experts", "science_parts", "sciworld", "coevolve", "without_failure_failure"),
        ("alone, SFT's own tasks (minus SFT)", "science_when", "sciworld", "ff_only", "sft"),
    ),
    "Failure agent trained minus never trained": (
        ("three iterations", "science_bounds", "sciworld", "coevolve", "frozen_failure_agent"),
        ("two iterations", "science_parts", "sciworld", "coevolve", "frozen_failure_agent"),
        ("no experts, SFT's own tasks", "science_when", "sciworld", "ff_only", "ff_only_frozen"),
    ),
    "Second agent minus compute-matched single one": (
        ("experts are new to SFT", "science_bounds", "sciworld", "coevolve", "eto_eq9_matched"),
        ("experts are SFT's own", "science_when_matched", "sciworld", "coevolve", "eto_eq9_matched"),
    ),
    "Failure agent minus a second target": (("ScienceWorld", "science", "sciworld", "coevolve", "second_target"),),
    "Sum of the experts' NLL minus mean": (("ScienceWorld", "science_parts", "sciworld", "coevolve", "nll_mean"),),
}


def blocks() -> dict[str, str]:
    """The parts of the README that are made from committed results, by the name of their mark."""
    return {
        "times": _times(),
        "evidence": _evidence(),
    }


def fill(text: str, made: Mapping[str, str] | None = None) -> str:
    """A page with its marked parts replaced, the README's by default; raises `ValueError` if a mark is missing."""
    for name, block in (blocks() if made is None else made).items():
        text, count = re.subn(
            rf"(<!-- {name} -->\n).*?(<!-- end -->)", lambda m, b=block: f"{m[1]}{b}\n{m[2]}", text, flags=re.DOTALL
        )
        if count != 1:
            raise ValueError(f"{count} marks `{name}`")
    return text


def _times() -> str:
    """What runs where, with the minutes that `benchmarks/times.py` recorded."""
    times = json.loads((REFERENCE / "times.json").read_text())
    lines = ["| command | content | where | minutes |", "|---|---|---|---|"]
    for command, content, where in COMMANDS:
        minutes = "**not run here**" if command in PLANNED or not command.startswith("make ") else "not measured"
        if command in PLANNED:
            suite, machine, goals = PLANNED[command]
            cost, *ends = planned(load_suite(suite), machine, goals)
            minutes += f"; plan: {costs.gpu_hours(cost, ends)} GPU-hours, {size(cost.gigabytes)}"
        elif entry := times.get(command.removeprefix("make ")):
            minutes = f"{entry['wall_minutes']:g} ({entry['cpu_minutes']:g} of CPU{_on(entry)})"
        elif command == "make real":
            minutes = f"{sum(job['cpu_seconds'] for job in read_lines('real', JOBS)) / 60:.0f} of CPU"
        lines.append(f"| `{command}` | {content} | {where} | {minutes} |")
    return "\n".join(lines)


def _on(entry: Mapping[str, Any]) -> str:
    """The processor and the year of a measurement."""
    return f", {entry['processor']}, {entry['measured'][:4]}" if "processor" in entry else ""


def planned(suite: Suite, name: str, goals: Sequence[str] = (), env: str = "") -> tuple[Line, ...]:
    """The estimated cost of a suite's targets (a full run without them), and at the fast and slow end of a machine.

    The size is what stays on disk, with what is downloaded. `env`: only the jobs of this environment, and of none.
    """
    machine = load_machine(name)
    plan = Plan.on(suite, name)
    known = {target.name: target.files for target in targets(plan)}
    jobs = plan.jobs([path for goal in goals for path in known[goal]()])
    chosen = [job for job in jobs if not env or job.wildcards.get("env", env) == env]
    needed = disk(plan, machine, [path for job in chosen for path in job.files])
    paces = (machine, *costs.paced(machine))
    sums = (costs.lines(("", estimates.cost(plan, each, job)) for job in chosen)[-1] for each in paces)
    return tuple(replace(line, gigabytes=(needed.kept + needed.downloads) / 1e9) for line in sums)


def read_lines(folder: str, name: str) -> list[dict[str, Any]]:
    """The compressed JSON lines of a committed result, such as the provenance of its jobs in `jobs.jsonl.xz`."""
    return [json.loads(line) for line in lzma.decompress((REFERENCE / folder / name).read_bytes()).splitlines()]


def labels(folder: str) -> ReportLabels:
    """The labels of the rows of a committed Table 1, and of its environments."""
    sections = read(folder, "provenance.json")["config"]["envs"]
    envs = {env: section["label"] for env, section in sections.items()}
    return ReportLabels(read(folder, "table1.json")[0]["rows"], envs)


def differences(folder: str) -> dict[str, dict[tuple[str, str], dict[str, Any]]]:
    """The differences of a committed result, by environment and methods: estimates of the first minus the second."""
    by_env: defaultdict[str, dict[tuple[str, str], dict[str, Any]]] = defaultdict(dict)
    for entry in read(folder, "differences.json"):
        by_env[entry["env"]][entry["better"], entry["than"]] = entry["estimate"]
    return by_env


def overview(folders: Sequence[str]) -> str:
    """A row for each suite and environment: its size, its checks of the regime, and three differences of methods."""
    shown = (("eto", "sft"), ("coevolve", "sft"), ("coevolve", "eto"))
    head = ["results", "model", "environment", "tasks", "seeds", "checks"]
    head += [" - ".join(map(labels(folders[0]).method, pair)) for pair in shown]
    rows = []
    for folder in folders:
        model = read(folder, "table1.json")[0]["model"].split(" (")[0]
        for env, of_pairs in differences(folder).items():
            counts = [str(of_pairs["coevolve", "eto"][key]) for key in ("n_tasks", "n_seeds")]
            row = [f"`{folder}/`", model, labels(folder).env(env), *counts, _checks(folder, env)]
            rows.append([*row, *(points(of_pairs[pair]) for pair in shown)])
    return table(head, rows)


def _checks(folder: str, env: str) -> str:
    """How many checks of the regime pass with every seed, of those that were measured."""
    checks = [check for check in read(folder, "regime.json") if check["env"] == env and check["passed"] is not None]
    names = {check["name"] for check in checks}
    failed = {check["name"] for check in checks if not check["passed"]}
    return f"{len(names - failed)} of {len(names)}"


def read(folder: str, name: str) -> Any:
    """A JSON file of a committed result; raises `UserError` for a table that its provenance lists with another hash."""
    path = REFERENCE / folder / name
    made = provenance.read(path.with_name(provenance.NAME))
    provenance.check(made, {path: files.sha256(path)} if name in made.outputs else {})
    return json.loads(path.read_text())


def points(estimate: Mapping[str, Any]) -> str:
    """A difference of rewards in points, with its interval; marked if this excludes 0 and decides nothing."""
    measured = Estimate.model_validate(estimate)
    return f"{first_screen.points(measured)}{estimation.mark(measured, CONFIDENCE)}"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows))


def _evidence() -> str:
    """What of upstream's recordings lies in `tests/data`."""
    data = ROOT / "tests/data"
    counts: Counter[str] = Counter()
    for entry in json.loads((data / "contents.json").read_text()):
        if entry.get("unit") in RECORDED:
            counts[RECORDED[entry["unit"]]] += entry["records"]
    shown = ", ".join(f"{count:,} {what}" for what, count in counts.items())
    return f"Tests replay upstream's [recordings](tests/data/README.md), which are in the clone: {shown}."


def loop_svg() -> str:
    """The co-evolution loop: a box for each stage and agent, an arrow for each file that one job reads from another."""
    return loop.svg(loop.LABELS, set(_edges(Plan(load_suite("micro")))))


def results_svg() -> bytes:
    """When a failure agent helps: differences with their intervals, filled where they are decided."""
    return drawing.svg(drawing.drawn(_compared))


def _compared() -> Figure:
    named: list[tuple[str, Estimate | None]] = []
    for heading, rows in COMPARED.items():
        named.append((heading, None))
        for text, folder, env, better, than in rows:
            estimate = differences(folder)[env][better, than]
            shown = f"{text}, {estimate['n_seeds']} seeds: {points(estimate)}"
            named.append((shown, Estimate.model_validate(estimate)))
    return first_screen.draw("When does a failure agent help?", "", named, CONFIDENCE)


def _edges(plan: Plan) -> Iterator[tuple[loop.Box, loop.Box, bool]]:
    """(from, to, whether it leads to the next iteration) for the inputs of the jobs of two iterations."""
    last = plan.paper.iteration(Subject("tiny", "sciworld", Branch("coevolve", 0, 2))).evaluation
    for job in plan.jobs([last["records.jsonl"]]):
        for name, paths in files_by_name(job.inputs).items():
            end, used = _box_of(job), name != "experts" or job.stage.name != "pairs" or _pairs_experts(plan, job)
            for path in paths:
                maker = plan.job(path)
                if maker and used and (edge := loop.edge(_box_of(maker), end, path)):
                    yield edge


def _pairs_experts(plan: Plan, job: PlannedJob) -> bool:
    """Whether the agent learns from pairs with an expert; without them, the stage `pairs` only counts the experts."""
    recipe = plan.suite.recipes["coevolve"].agents[job.agent]
    return any(kind.value.startswith("expert") for kind in recipe.trains_on)


def _box_of(job: PlannedJob) -> loop.Box:
    return job.stage.name, job.wildcards.get("agent", "")


def main() -> None:
    """Rewrite the pictures and the marked parts of README.md."""
    (ROOT / "docs/loop.svg").write_text(loop_svg(), encoding="utf-8")
    files.write_bytes(ROOT / "docs/results.svg", results_svg())
    readme = ROOT / "README.md"
    readme.write_text(fill(readme.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
