"""Remakes the texts and figures of committed results from the folders' JSON; no number is computed anew.

`python -m tools.reference_folders` rewrites the first parts of summary.md and verdicts.md, mechanism.svg,
costs.svg and report.html; tables, whose sha256 is recorded, stay. tests/docs/test_reference_page.py compares texts.
"""

from collections.abc import Iterator
from pathlib import Path

from coevolve.config.loading import load_suite
from coevolve.export import suite_export
from coevolve.report import claims, costs, differences, drawing, failure_figures, verdicts
from coevolve.report.analysis import Analysis
from coevolve.report.costs import Line
from coevolve.report.differences import Difference
from coevolve.report.figure3 import Curves
from coevolve.report.verdicts import Verdict
from coevolve.storage import product_file
from tools import front_page

#: Sections that are made of what is not committed; they stay as they are.
KEPT = {"summary.md": "## Methods", "verdicts.md": "## Agent-data mutual evolution"}


def texts() -> Iterator[tuple[Path, str]]:
    """The files with their texts."""
    report = load_suite("science").report
    for path in sorted(front_page.REFERENCE.glob("*/differences.json")):
        folder = path.parent
        compared = product_file.read(path, list[Difference])
        points = product_file.read(folder / "figure3.json", Curves).points
        labels = front_page.labels(folder.name)
        yield _file(folder / "summary.md", differences.markdown(compared, points, labels, report))
        judged = product_file.read(folder / "verdicts.json", list[Verdict])
        yield _file(folder / "verdicts.md", verdicts.markdown(judged), keep="agent_data" in labels.methods)


def figures() -> Iterator[tuple[Path, bytes]]:
    """The figures of mechanism and costs."""
    for path in sorted(front_page.REFERENCE.glob("*/mechanism.svg")):
        data, labels = product_file.read(path.with_name("analysis.json"), Analysis), front_page.labels(path.parent.name)
        yield path, drawing.svg(drawing.drawn(lambda d=data, n=labels: failure_figures.draw_mechanism(d, n)))
    for path in sorted(front_page.REFERENCE.glob("*/costs.svg")):
        lines = product_file.read(path.with_name("costs.json"), dict[str, list[Line]])
        labels = front_page.labels(path.parent.name)
        yield path, drawing.svg(drawing.drawn(lambda d=lines, n=labels: costs.draw(d, n.methods)))


def _file(path: Path, made: str, keep: bool = True) -> tuple[Path, str]:
    kept = KEPT[path.name]
    rest = path.read_text(encoding="utf-8").partition(f"\n{kept}\n")[2]
    return path, f"{made}\n{kept}\n{rest}" if rest and keep else made


def main() -> None:
    """Rewrite the files, and the pages of the folders."""
    paper = claims.load(front_page.ROOT / "configs/claims.yaml")
    for path, text in texts():
        path.write_text(text, encoding="utf-8")
    for path, image in figures():
        path.write_bytes(image)
    for path in front_page.REFERENCE.glob("*/report.html"):
        suite_export.write_page(path.parent, paper)


if __name__ == "__main__":
    main()
