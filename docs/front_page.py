"""Writes the README's picture, docs/loop.svg, from the plan, and its numbers from committed results.

`python docs/front_page.py` rewrites them; tests/docs/test_front_page.py compares.
"""

from __future__ import annotations

import json
import lzma
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from coevolve.config.suite import load_suite
from coevolve.report import loop
from coevolve.workflow.branch import Branch
from coevolve.workflow.plan import JobKey, Plan

ROOT = Path(__file__).parents[1]
REFERENCE = ROOT / "results/reference"
#: Estimates by row and column of a table.
Cells = dict[tuple[str, str], dict[str, Any]]
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
    ("snakemake --profile slurm", "SFT, ETO, co-evolving with Llama-2-7B-Chat, one seed", "nodes of 8 H100"),
)
#: Units of `tests/data/contents.json` that the README counts, and their names there.
RECORDED = {"observations": "WebShop observations", "statements": "SQL statements", "walks": "ScienceWorld walks"}
#: The committed results of its table.
RESULTS = ("science", "real_seeds")
#: Inputs with an arrow. Left out: tasks and prompts, the policy that training starts from, reference log-probs.
DRAWN = ("experts", "policy", "target", "failure", "pairs")


def blocks() -> dict[str, str]:
    """The parts of the README that are made from committed results, by the name of their mark."""
    return {
        "times": _times(),
        "results": overview(RESULTS, ("coevolve", "second_target")),
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
        minutes = "not measured" if command.startswith("make ") else "**not run here**"
        if entry := times.get(command.removeprefix("make ")):
            minutes = f"{entry['wall_minutes']:g} ({entry['cpu_minutes']:g} of CPU)"
        elif command == "make real":
            minutes = f"{sum(job['cpu_seconds'] for job in jobs('real')) / 60:.0f} of CPU"
        lines.append(f"| `{command}` | {content} | {where} | {minutes} |")
    return "\n".join(lines)


def jobs(reference: str) -> list[dict[str, Any]]:
    """The provenance of the jobs of a committed result."""
    packed = (REFERENCE / reference / "jobs.jsonl.xz").read_bytes()
    return [json.loads(line) for line in lzma.decompress(packed).splitlines()]


def table1(reference: str) -> tuple[dict[str, str], Cells, Cells]:
    """Labels of the rows, and estimates of mean reward x 100 and of success in %, by row and column."""
    reward, success = read(reference, "table1.json")
    by_place = [{(c["row"], c["column"]): c["estimate"] for c in table["cells"]} for table in (reward, success)]
    return reward["rows"], *by_place


def overview(folders: Sequence[str], *also: tuple[str, str]) -> str:
    """A row for each suite and environment: its size, its checks of the regime, and the differences of methods.

    The differences are three, and those of `also`, pairs of methods of the first folder; `-` in a folder without them.
    """
    shown = (("eto", "sft"), ("coevolve", "sft"), ("coevolve", "eto"), *also)
    labels, _, _ = table1(folders[0])
    head = ["results", "model", "environment", "tasks", "seeds", "checks"]
    head += [f"{labels[better]} - {labels[than]}" for better, than in shown]
    rows = []
    for folder in folders:
        entries, (rewards, *_) = read(folder, "differences.json"), read(folder, "table1.json")
        sections = read(folder, "provenance.json")["config"]["envs"]
        for env in dict.fromkeys(entry["env"] for entry in entries):
            estimates = {(each["better"], each["than"]): each["estimate"] for each in entries if each["env"] == env}
            size = [str(estimates["coevolve", "eto"][key]) for key in ("n_tasks", "n_seeds")]
            row = [f"`{folder}/`", rewards["model"].split(" (")[0], sections[env]["label"], *size, _checks(folder, env)]
            rows.append([*row, *(points(estimates[pair]) if pair in estimates else "-" for pair in shown)])
    return table(head, rows)


def _checks(folder: str, env: str) -> str:
    """How many checks of the regime pass with every seed, of those that were measured."""
    checks = [check for check in read(folder, "regime.json") if check["env"] == env and check["passed"] is not None]
    names = {check["name"] for check in checks}
    failed = {check["name"] for check in checks if not check["passed"]}
    return f"{len(names - failed)} of {len(names)}"


def read(folder: str, name: str) -> Any:
    """A JSON file of a committed result."""
    return json.loads((REFERENCE / folder / name).read_text())


def points(estimate: Mapping[str, float]) -> str:
    """A difference of rewards in points, with its interval."""
    mean, low, high = (100 * estimate[key] for key in ("mean", "low", "high"))
    return f"{mean:+.1f} [{low:.1f}, {high:.1f}]"


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


def _edges(plan: Plan) -> Iterator[tuple[loop.Box, loop.Box, bool]]:
    """(from, to, whether it leads to the next iteration) for the inputs of the jobs of two iterations."""
    last = plan.result("tiny", "sciworld", Branch("coevolve", 0, 2), "eval/records.jsonl")
    for job in plan.jobs([last]):
        for name, paths in plan.inputs(*job).items():
            makers = map(plan.maker, [paths] if isinstance(paths, str) else paths)
            boxes = {_box_of(maker) for maker in makers if maker} if name in DRAWN else set()
            end = _box_of(job)
            if end and not (name == "experts" and end[0] == "pairs" and not _pairs_experts(plan, end[1])):
                yield from ((start, end, start[0] == "train" and end[0] == "rollout") for start in boxes if start)


def _pairs_experts(plan: Plan, agent: str) -> bool:
    """Whether the agent learns from pairs with an expert; without them, the stage `pairs` only counts the experts."""
    recipe = plan.recipe("coevolve").agents["target" if agent == "target" else "failure"]
    return any(kind.value.startswith("expert") for kind in recipe.trains_on)


def _box_of(job: JobKey) -> loop.Box | None:
    stage, wildcards = job
    box = (stage, wildcards.get("agent", ""))
    return box if box in loop.LABELS else None


def main() -> None:
    """Rewrite docs/loop.svg and the marked parts of README.md."""
    (ROOT / "docs/loop.svg").write_text(loop_svg(), encoding="utf-8")
    readme = ROOT / "README.md"
    readme.write_text(fill(readme.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
