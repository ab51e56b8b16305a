"""The co-evolution loop as a picture: a box for each stage and agent, an arrow for each file that one job reads."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from html import escape
from pathlib import PurePosixPath

from coevolve.records.pairs import PairingSummary
from coevolve.records.provenance import Provenance
from coevolve.report.job_history import maker

#: A box: a stage, and an agent where each agent has a job of its own.
Box = tuple[str, str]
#: From, to, and whether the arrow leads to the next iteration.
Edge = tuple[Box, Box, bool]

WIDTH, HEIGHT, BOX_WIDTH, BOX_HEIGHT = 1028, 330, 138, 60
ROWS = {"target": 75, "": 165, "failure": 255}
COLUMNS = {"data": 15, "sft": 187, "rollout": 359, "pairs": 531, "train": 703, "evaluate": 875}
#: The lines of text in each box.
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
#: The file behind an arrow from one stage to another. Left out: tasks, prompts, starts of trainings, log-probs.
FILES = {
    ("data", "sft"): "sft.jsonl",
    ("data", "pairs"): "experts.jsonl",
    ("sft", "rollout"): "policy.json",
    ("rollout", "pairs"): "episodes.jsonl",
    ("pairs", "train"): "pairs.jsonl",
    ("train", "rollout"): "policy.json",
    ("train", "evaluate"): "policy.json",
}
#: The arrow to the next iteration.
LATER = ("train", "rollout")
STYLE = """
    .loop text { font: 13px system-ui, sans-serif; text-anchor: middle; fill: #1b1f24; }
    .loop .small { font-size: 11px; fill: #57606a; }
    .loop rect { fill: #f6f8fa; stroke: #8c959f; rx: 8px; }
    .loop .target rect { fill: #ddf4ff; stroke: #0969da; } .loop .failure rect { fill: #ffebe9; stroke: #cf222e; }
    .loop path { fill: none; stroke: #6e7781; stroke-width: 1.4; marker-end: url(#tip); }
    .loop .next { stroke-dasharray: 5 4; }
    .loop marker path { fill: #6e7781; stroke: none; marker-end: none; }
    @media (prefers-color-scheme: dark) {
      .loop text { fill: #e6edf3; } .loop .small { fill: #9198a1; } .loop rect { fill: #21262d; stroke: #6e7681; }
      .loop .target rect { fill: #0c2d4d; stroke: #4493f8; } .loop .failure rect { fill: #4b1113; stroke: #f85149; }
      .loop path { stroke: #9198a1; } .loop marker path { fill: #9198a1; }
    }
"""
_TIP = '<marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'


def svg(
    boxes: Collection[Box], edges: Iterable[Edge], counts: Mapping[Box, str] = {}, links: Mapping[Box, str] = {}
) -> str:
    """The picture, for light and dark pages; `counts` are third lines of boxes, `links` the boxes' addresses."""
    drawn = "".join(_box(box, counts.get(box, ""), links.get(box, "")) for box in LABELS if box in boxes)
    ordered = sorted(edges)
    arrows = "".join(_arrow(start, end, later) for start, end, later in ordered)
    middle = (sum(COLUMNS[stage] for stage in LATER) + BOX_WIDTH) / 2
    caption = f'  <text class="small" x="{middle}" y="14">the next iteration starts from the trained policies</text>\n'
    return (
        f'<svg class="loop" xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        f'role="{"group" if links else "img"}">\n'
        "  <title>The loop: both agents explore, failures and experts are paired, both are trained</title>\n"
        f'  <style>{STYLE}  </style>\n  <defs>{_TIP}<path d="M0 0 8 4 0 8z"/></marker></defs>\n'
        f"{arrows}{drawn}{caption if any(later for *_, later in ordered) else ''}</svg>\n"
    )


def job_edges(jobs: Mapping[str, Provenance]) -> Iterator[Edge]:
    """The arrows between jobs, given by the folder of their result below the suite's; each job names its inputs."""
    for job in jobs.values():
        for path in job.inputs:
            folder = maker(jobs, path)
            if folder and _is_used(path, job) and (drawn := edge(box_of(jobs[folder]), box_of(job), path)):
                yield drawn


def edge(start: Box, end: Box, path: str) -> Edge | None:
    """The arrow for a file that a job of `start` makes and one of `end` reads; None if it is left out."""
    stages, name = (start[0], end[0]), PurePosixPath(path).name
    is_drawn = start in LABELS and end in LABELS and name == FILES.get(stages)
    return (start, end, stages == LATER) if is_drawn else None


def box_of(job: Provenance) -> Box:
    """The box of a job; a shard has that of the rollout or evaluation that it is a part of."""
    whole = job.wildcards.get("whole", "")
    if whole:
        stage, _, agent = whole.replace("eval", "evaluate").partition("/")
        return stage, agent
    return job.stage, job.wildcards.get("agent", "")


def _is_used(path: str, job: Provenance) -> bool:
    """Whether a job builds pairs with the file; without a kind for experts, the stage `pairs` only counts them."""
    if not path.endswith("/experts.jsonl") or not isinstance(job.notes, PairingSummary):
        return True
    return any(kind.startswith("expert") for kind in job.notes.kinds)


def _box(box: Box, count: str, link: str) -> str:
    stage, agent = box
    x, y = COLUMNS[stage], ROWS[agent] - BOX_HEIGHT / 2
    centre = x + BOX_WIDTH / 2
    lines = [*LABELS[box], *filter(None, [count])]
    first = y + (BOX_HEIGHT - 17 * (len(lines) - 1)) / 2 + 4
    styles = ["", *[' class="small"'] * (len(lines) - 1)]
    texts = "".join(
        f'<text{style} x="{centre:g}" y="{first + 17 * number:g}">{escape(line)}</text>'
        for number, (style, line) in enumerate(zip(styles, lines, strict=True))
    )
    content = f'<rect x="{x}" y="{y:g}" width="{BOX_WIDTH}" height="{BOX_HEIGHT}"/>{texts}'
    inside = f'<a href="{escape(link)}">{content}</a>' if link else content
    return f'  <g class="{agent or stage}">{inside}</g>\n'


def _arrow(start: Box, end: Box, later: bool) -> str:
    x, y = COLUMNS[start[0]] + BOX_WIDTH, ROWS[start[1]]
    to_x, to_y = COLUMNS[end[0]], ROWS[end[1]]
    if later:
        top = -1 if start[1] == "target" else 1
        edge, height, half = top * BOX_HEIGHT / 2, top * 62, BOX_WIDTH / 2
        begin, end_x = x - half, to_x + half
        curve = (
            f"M{begin:g} {y + edge:g} C{begin:g} {y + height:g} {end_x:g} {to_y + height:g} {end_x:g} {to_y + edge:g}"
        )
        return f'  <path class="next" d="{curve}"/>\n'
    straight, bend = to_x - 34, 17  # an arrow over several columns passes between the two rows of boxes
    return f'  <path d="M{x:g} {y} H{straight:g} C{straight + bend:g} {y} {to_x - bend:g} {to_y} {to_x:g} {to_y}"/>\n'
