"""Coverage, size and power of the kit's intervals and verdicts, in simulated worlds whose truth is known.

    python -m benchmarks.intervals

writes benchmarks/intervals.md (minutes of one core). Numbers are points; a difference is of two methods on 60 tasks.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tabulate import tabulate

from coevolve.report import looks, robustness, stats

FILE = Path(__file__).with_suffix(".md")
CASES, TASKS, CONFIDENCE = 2000, 60, 0.95
SEEDS = (3, 5, 8)
#: A difference that a run should see; the declared looks.
EFFECT, LOOKS = 5.0, (4, 6, 8)
#: Trainings that collapse: their share, and the points that they lose.
SHARE, LOSS = 0.2, 25.0
WORLDS = {
    "quiet": "trainings and tasks are normal",
    "heavy tails": "trainings have Student's distribution with 3 degrees of freedom",
    "few tasks": "3 % of the tasks differ by 100 points, one way or the other",
    "collapses": f"a fifth of one method's trainings lose {LOSS:g} points",
}
HEAD = (
    "world", "seeds", "covers", "null decided", "null decided, not by one seed",
    f"{EFFECT:g} points decided", f"{EFFECT:g} points decided, not by one seed", "covers, conditional",
)  # fmt: skip
TEXT = """# What intervals and verdicts are worth

`python -m benchmarks.intervals` simulates {cases} runs of each world, on {tasks} tasks. Per cent of runs: 95 %
intervals that hold the truth; differences that are decided although there is none, and where there is one of
{effect:g} points; the same without those that one seed carries. Conditional: the seeds that did not collapse,
against their own truth.

{worlds}

{table}

Where trainings collapse, no interval of a few seeds holds the truth as often as it says. Neither does the flag of one
seed find most of these false decisions, so collapses are counted and shown.

Looking after {looks} seeds at 5 % each decides {plain:.1f} % of nulls; with the levels of declared looks
{declared:.1f} %.

A number of the paper is one run. With five seeds, per cent of claims that are decided (consistent or contradicted), by
the distance of the two printed numbers in standard deviations of a run: if the paper is right (contradicted: falsely),
and if our runs are like the rival's.

{runs}
"""

Values = NDArray[np.float64]


def main() -> None:
    FILE.write_text(page(CASES), encoding="utf-8")


def page(cases: int) -> str:
    """The page, of as many runs of each world."""
    plain, declared = after_looks(20 * cases)
    return TEXT.format(
        cases=f"{cases:,}",
        tasks=TASKS,
        effect=EFFECT,
        worlds="\n".join(f"* {name}: {text}" for name, text in WORLDS.items()),
        table=tabulate(list(rows(cases)), HEAD, "github", floatfmt=".1f"),
        looks=", ".join(map(str, LOOKS)),
        plain=plain,
        declared=declared,
        runs=tabulate(
            list(runs(10 * cases)),
            ["distance", "decided, paper right", "contradicted, paper right", "decided, rival right"],
            "github",
            floatfmt=".1f",
        ),
    )


def rows(cases: int) -> Iterator[list[str | int | float]]:
    """Per cent of runs, by world and number of seeds."""
    for number, world in enumerate(WORLDS):
        for seeds in SEEDS:
            rng = np.random.default_rng([number, seeds])
            found = np.array([_run(world, seeds, rng) for _ in range(cases)], dtype=float)
            of_columns = [100 * float(np.nanmean(column)) for column in found.T if not np.isnan(column).all()]
            yield [world, seeds, *of_columns]


def _run(world: str, seeds: int, rng: np.random.Generator) -> list[float]:
    """Whether one run's interval covers 0, and what is decided; the true difference is 0, or `EFFECT` more."""
    values_ts, collapsed_s = _values(world, seeds, rng)
    spread = stats.spread([values_ts], resamples=500, rng=rng)
    low, high = spread.interval(CONFIDENCE)
    answers = [float(low <= 0.0 <= high)]
    for shift in (0.0, EFFECT):
        decided = not low + shift <= 0.0 <= high + shift
        means = [mean + shift for mean in spread.seed_means]
        answers += [decided, decided and not robustness.single_seed_decides(means, spread.of_tasks, CONFIDENCE)]
    rest = [mean for mean, lost in zip(spread.seed_means, collapsed_s, strict=True) if not lost]
    ends = robustness.interval(rest, spread.of_tasks, CONFIDENCE)
    # Without collapses the difference is as much above 0 as they take from its mean.
    return [*answers, float(ends[0] <= SHARE * LOSS <= ends[1]) if ends and collapsed_s.any() else np.nan]


def _values(world: str, seeds: int, rng: np.random.Generator) -> tuple[Values, NDArray[np.bool_]]:
    """Differences by task and seed with mean 0, and which trainings collapsed."""
    few = 100.0 * rng.choice([-1.0, 0.0, 1.0], (TASKS, 1), p=[0.015, 0.97, 0.015])
    tasks = few if world == "few tasks" else rng.normal(0.0, 5.0, (TASKS, 1))
    trainings = 2.0 * (rng.standard_t(3, (1, seeds)) if world == "heavy tails" else rng.normal(size=(1, seeds)))
    collapsed_s = (rng.random(seeds) < SHARE) & (world == "collapses")
    lost = SHARE * LOSS * (world == "collapses") - LOSS * collapsed_s
    return tasks + trainings + lost + rng.normal(0.0, 15.0, (TASKS, seeds)), collapsed_s


def after_looks(cases: int) -> tuple[float, float]:
    """Per cent of nulls that are decided at one of the looks: at 5 % each, and with the levels of declared looks."""
    values = np.random.default_rng(0).normal(size=(cases, LOOKS[-1]))
    levels = looks.levels(LOOKS, 1 - CONFIDENCE)
    decided = []
    for of_look in (dict.fromkeys(LOOKS, 1 - CONFIDENCE), levels):
        limits = {n: stats.student_quantile(1 - level / 2, n - 1) for n, level in of_look.items()}
        first = {n: values[:, :n] for n in limits}
        seen = [abs(v.mean(1)) > limits[n] * v.std(1, ddof=1) / n**0.5 for n, v in first.items()]
        decided.append(100 * float(np.any(seen, axis=0).mean()))
    return decided[0], decided[1]


def runs(cases: int) -> Iterator[list[float]]:
    """Per cent of claims decided with five seeds, by the distance of the paper's and the rival's number."""
    seeds = 5
    limit = stats.student_quantile(0.5 + CONFIDENCE / 2, seeds - 1) * (1 + 1 / seeds) ** 0.5
    for distance in (2.0, 2.5, 3.5):
        rng = np.random.default_rng(int(10 * distance))
        paper = rng.normal(size=cases)
        row = [distance]
        for mean in (0.0, paper + distance):
            ours = rng.normal(size=(seeds, cases)) + mean
            within = limit * ours.std(0, ddof=1)
            contradicted = abs(paper - ours.mean(0)) > within
            consistent = ~contradicted & (abs(paper + distance - ours.mean(0)) > within)
            row += [100 * float((contradicted | consistent).mean())]
            row += [100 * float(contradicted.mean())] if np.ndim(mean) == 0 else []
        yield row


if __name__ == "__main__":
    main()
