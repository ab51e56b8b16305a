"""Writes the README's picture, docs/loop.svg, from the plan, and its numbers from committed results.

`python docs/front_page.py` rewrites them; tests/docs/test_front_page.py compares.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from coevolve.config.suite import load_suite
from coevolve.workflow.plan import JobKey, Plan

ROOT = Path(__file__).parents[1]
REFERENCE = ROOT / "results/reference"
#: Estimates by row and column of a table.
Cells = dict[tuple[str, str], dict[str, Any]]
#: What runs where.
COMMANDS = (
    (
        "make smoke",
        "the paper in miniature: ScienceWorld, InterCodeSQL, WebShop; one seed",
        "Debian, 2 cores, 6 GB, no GPU",
    ),
    ("make test", "the tests, except the slow ones", "the same"),
    ("make micro", "five seeds and three iterations on ScienceWorld", "the same"),
    (".venv/bin/snakemake --profile slurm", "the paper with Llama-2-7B-Chat", "nodes of 8 H100"),
)
#: Rows of the table of results, and columns.
METHODS = ("untrained", "sft", "eto", "coevolve")
SPLITS = {"sciworld_seen": "seen variations", "sciworld_unseen": "unseen variations"}
#: A box: a stage, and an agent where each agent has a job of its own.
Box = tuple[str, str]

WIDTH, HEIGHT, BOX_WIDTH, BOX_HEIGHT = 1028, 330, 138, 54
ROWS = {"target": 75, "": 165, "failure": 255}
COLUMNS = {"data": 15, "sft": 187, "rollout": 359, "pairs": 531, "train": 703, "evaluate": 875}
LABELS: dict[Box, tuple[str, str]] = {
    ("data", ""): ("experts", "trajectories, r = 1"),
    ("sft", "target"): ("SFT", "base policy, target"),
    ("sft", "failure"): ("SFT", "base policy, failure"),
    ("rollout", "target"): ("explore", "target agent"),
    ("rollout", "failure"): ("explore", "failure agent"),
    ("pairs", "target"): ("pair (eq. 8)", "experts and failures"),
    ("pairs", "failure"): ("pair (eq. 6)", "failures with failures"),
    ("train", "target"): ("DPO + SFT (eq. 9)", "target agent"),
    ("train", "failure"): ("DPO (eq. 7)", "failure agent"),
    ("evaluate", ""): ("evaluate", "reward per split"),
}
#: Inputs with an arrow. Left out: tasks and prompts, the policy that training starts from, reference log-probs.
DRAWN = ("experts", "policy", "target", "failure", "pairs")
STYLE = """
    text { font: 13px system-ui, sans-serif; text-anchor: middle; fill: #1b1f24; }
    .small { font-size: 11px; fill: #57606a; }
    rect { fill: #f6f8fa; stroke: #8c959f; rx: 8px; }
    .target rect { fill: #ddf4ff; stroke: #0969da; } .failure rect { fill: #ffebe9; stroke: #cf222e; }
    path { fill: none; stroke: #6e7781; stroke-width: 1.4; marker-end: url(#tip); } .next { stroke-dasharray: 5 4; }
    marker path { fill: #6e7781; stroke: none; marker-end: none; }
    @media (prefers-color-scheme: dark) {
      text { fill: #e6edf3; } .small { fill: #9198a1; } rect { fill: #21262d; stroke: #6e7681; }
      .target rect { fill: #0c2d4d; stroke: #4493f8; } .failure rect { fill: #4b1113; stroke: #f85149; }
      path { stroke: #9198a1; } marker path { fill: #9198a1; }
    }
"""


def blocks() -> dict[str, str]:
    """The parts of the README that are made from committed results, by the name of their mark."""
    return {"times": _times(), "results": f"{_results()}\n\n{_differences()}"}


def fill(text: str) -> str:
    """A page with its marked parts replaced; raises `ValueError` if a mark is missing."""
    for name, block in blocks().items():
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
        minutes = "not timed alone" if command.startswith("make ") else "**not run here**"
        if entry := times.get(command.removeprefix("make ")):
            minutes = f"{entry['wall_minutes']:g} ({entry['cpu_minutes']:g} of CPU)"
        lines.append(f"| `{command}` | {content} | {where} | {minutes} |")
    return "\n".join(lines)


def _results() -> str:
    """Mean reward with its interval, and the share of solved tasks."""
    labels, rewards, solved = _table1()
    lines = [["", *SPLITS.values()], ["---"] * 3]
    for method in METHODS:
        estimates = [(rewards[method, column], solved[method, column]) for column in SPLITS]
        shown = [f"{r['mean']:.1f} [{r['low']:.1f}, {r['high']:.1f}], {s['mean']:.0f} %" for r, s in estimates]
        lines.append([labels[method], *shown])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _table1() -> tuple[dict[str, str], Cells, Cells]:
    """Labels of the rows, and estimates of mean reward x 100 and of success in %, by row and column."""
    reward, success = json.loads((REFERENCE / "micro/table1.json").read_text())
    by_place = [{(c["row"], c["column"]): c["estimate"] for c in table["cells"]} for table in (reward, success)]
    return reward["rows"], *by_place


def _differences() -> str:
    """Differences between the trained methods with their intervals, in points."""
    found = json.loads((REFERENCE / "micro/differences.json").read_text())
    labels, _, _ = _table1()
    sentences = []
    for entry in found:
        if "untrained" in (entry["better"], entry["than"]):
            continue
        mean, low, high = (100 * entry["estimate"][key] for key in ("mean", "low", "high"))
        name, other = labels[entry["better"]], labels[entry["than"]]
        sentences.append(f"{name} minus {other}: {mean:+.1f} [{low:.1f}, {high:.1f}]")
    return f"{'; '.join(sentences)}."


def loop_svg() -> str:
    """The co-evolution loop: a box for each stage and agent, an arrow for each file that one job reads from another."""
    edges = sorted(set(_edges(Plan(load_suite("micro")))))
    boxes = "".join(_box(box) for box in LABELS)
    arrows = "".join(_arrow(start, end, later) for start, end, later in edges)
    tip = '<marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">\n'
        "  <title>The loop: both agents explore, failures and experts are paired, both are trained</title>\n"
        f'  <style>{STYLE}  </style>\n  <defs>{tip}<path d="M0 0 8 4 0 8z"/></marker></defs>\n'
        f'{arrows}{boxes}  <text class="small" x="{(COLUMNS["rollout"] + COLUMNS["train"] + BOX_WIDTH) / 2}" y="14">'
        "the next iteration starts from the trained policies</text>\n</svg>\n"
    )


def _edges(plan: Plan) -> Iterator[tuple[Box, Box, bool]]:
    """(from, to, whether it leads to the next iteration) for the inputs of the jobs of two iterations."""
    last = plan.result("tiny", "sciworld", plan.branch("coevolve", 0, 2), "eval/records.jsonl")
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


def _box_of(job: JobKey) -> Box | None:
    stage, wildcards = job
    box = (stage, wildcards.get("agent", ""))
    return box if box in LABELS else None


def _box(box: Box) -> str:
    stage, agent = box
    x, y = COLUMNS[stage], ROWS[agent] - BOX_HEIGHT / 2
    name, detail = LABELS[box]
    centre = x + BOX_WIDTH / 2
    return (
        f'  <g class="{agent or stage}"><rect x="{x}" y="{y:g}" width="{BOX_WIDTH}" height="{BOX_HEIGHT}"/>'
        f'<text x="{centre:g}" y="{y + 23:g}">{name}</text>'
        f'<text class="small" x="{centre:g}" y="{y + 41:g}">{detail}</text></g>\n'
    )


def _arrow(start: Box, end: Box, later: bool) -> str:
    x, y = COLUMNS[start[0]] + BOX_WIDTH, ROWS[start[1]]
    to_x, to_y = COLUMNS[end[0]], ROWS[end[1]]
    if later:
        top = -1 if start[1] == "target" else 1
        edge, height = top * BOX_HEIGHT / 2, top * 62
        x, to_x = x - BOX_WIDTH / 2, to_x + BOX_WIDTH / 2
        curve = f"M{x:g} {y + edge:g} C{x:g} {y + height:g} {to_x:g} {to_y + height:g} {to_x:g} {to_y + edge:g}"
        return f'  <path class="next" d="{curve}"/>\n'
    straight, bend = to_x - 34, 17  # an arrow over several columns passes between the two rows of boxes
    return f'  <path d="M{x:g} {y} H{straight:g} C{straight + bend:g} {y} {to_x - bend:g} {to_y} {to_x:g} {to_y}"/>\n'


def main() -> None:
    """Rewrite docs/loop.svg and the marked parts of README.md."""
    (ROOT / "docs/loop.svg").write_text(loop_svg(), encoding="utf-8")
    readme = ROOT / "README.md"
    readme.write_text(fill(readme.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
