"""Writes configs/noise.yaml from committed results: `python -m tools.noise`; tests/report/test_power.py compares."""

import math
from collections.abc import Iterable, Mapping
from statistics import median
from typing import Any

from tools import front_page

#: Results with eight seeds, of two environments.
FOLDERS = ("science", "science_methods", "science_when", "science_when_matched", "science_bounds")
FILE = front_page.ROOT / "configs/noise.yaml"


def text() -> str:
    """The file's text: medians over the final results, each a standard deviation x sqrt(tasks) in points."""
    cells, compared = [], []
    for folder in FOLDERS:
        points = front_page.read(folder, "figure3.json")["points"]
        last = {(p["method"], p["split"]): p for p in sorted(points, key=lambda p: p["iteration"])}
        cells += [each["estimate"] for each in last.values()]
        compared += [each["estimate"] for each in front_page.read(folder, "differences.json")]
    return (
        f"# Standard deviations x sqrt(tasks) in points, for `coevolve power`: medians of the final results with eight "
        f"seeds:\n# {', '.join(FOLDERS)}. Written by `python -m tools.noise`.\n"
        f"run: {_deviation(cells, 'of_seeds')} # one run's mean\n"
        f"trainings: {_deviation(compared, 'of_seeds')} # one run's difference, with what is left of task and seed\n"
        f"tasks: {_deviation(compared, 'of_tasks')} # the choice of tasks in a difference\n"
    )


def _deviation(estimates: Iterable[Mapping[str, Any]], key: str) -> float:
    deviations = [100 * math.sqrt(each[key] * each["n_tasks"]) for each in estimates if each.get(key) is not None]
    return round(median(deviations), 1)


def main() -> None:
    """Rewrite the file."""
    FILE.write_text(text(), encoding="utf-8")


if __name__ == "__main__":
    main()
