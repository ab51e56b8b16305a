"""Candidates for the rule of decision, in simulated worlds whose truth is known: size, power and coverage.

    python -m benchmarks.intervals

writes benchmarks/intervals.md (minutes of one core). Numbers are points; a difference is of two methods on 60
tasks.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tabulate import tabulate

from coevolve.report import estimation, looks
from coevolve.report.estimation import MIN_SEEDS, variance

FILE = Path(__file__).with_suffix(".md")
CASES, TASKS, CONFIDENCE = 1000, 60, 0.95
SEEDS = (3, 4, 5, 6, 8, 12, 16)
#: A difference that a run should see; the declared looks.
EFFECT, LOOKS = 5.0, (4, 6, 8)
#: Trainings that collapse: their share, and the points that they lose.
SHARE, LOSS = 0.2, 25.0
#: Bootstrap draws of the earlier rules.
DRAWS = 400
WORLDS = {
    "quiet": "trainings and tasks are normal",
    "heavy tails": "trainings have Student's distribution with 3 degrees of freedom",
    "few tasks": "3 % of the tasks differ by 100 points, one way or the other",
    "collapses": f"a fifth of one method's trainings lose {LOSS:g} points",
}
RULES = {
    "A": "the 95 % interval excludes 0; the interval is drawn (a bootstrap over tasks plus Student's over trainings)",
    "B": "as A, and so does the interval without any one of four or more trainings (the rule until this table)",
    "C": "the 95 % interval excludes 0; the interval is the formula of `coevolve/report/estimation.py`",
    "D": "as C, with a 99 % interval",
    "E": f"as C, and so does the interval without any one training; {MIN_SEEDS} trainings or more (**the rule**)",
}
TEXT = """# How a difference is decided, and why so

`python -m benchmarks.intervals` simulates {cases} runs of each world, on {tasks} tasks:

{worlds}

Candidates for the rule:

{rules}

Per cent of runs that a rule decides: without a difference (its size, which should be 5 at most), and with one of
{effect:g} points (its power, which should rise with the number of seeds). The standard error of a size of 5 is 0.7.

{table}

* A decides too often where few tasks differ, and A and C too often where trainings collapse.
* B has less power with four seeds than with three, because three are not checked.
* D and E pass: no size above 5 % in the first three worlds, no more false decisions than B where trainings collapse,
  and power that rises. E has more power from five seeds on. From four seeds on it is B's rule, by which the design of
  `science_dose` was written, with a formula in place of the draws; so there is one rule and not two. In {runs16:,}
  quiet runs of 16 seeds B and E judge {other} differently.

Three seeds decide nothing by E. By C they would, with many false decisions where trainings collapse.

No rule for a few seeds is safe where trainings collapse: those that did not are too few to show it. So collapses are
counted and shown. Coverage of the 95 % interval of the formula, in per cent:

{coverage}

Conditional: of the seeds that did not collapse, against their own truth.

Looking after {looks} seeds at 5 % each decides {plain:.1f} % of nulls by rule C; with the levels of declared looks
{declared:.1f} %.

A number of the paper is one run. With five seeds, per cent of claims that are told (agree or differ), by the distance
of the two printed numbers in standard deviations of a run: if the paper is right (differs: falsely), and if our runs
are like the rival's.

{runs}
"""

Values = NDArray[np.float64]


def main() -> None:
    FILE.write_text(page(CASES), encoding="utf-8")


def page(cases: int) -> str:
    """The page, of as many runs of each world."""
    plain, declared = after_looks(20 * cases)
    found = {(world, seeds): simulated(world, seeds, cases) for world in WORLDS for seeds in SEEDS}
    quiet = found["quiet", SEEDS[-1]].decided
    return TEXT.format(
        cases=f"{cases:,}",
        tasks=TASKS,
        effect=EFFECT,
        worlds="\n".join(f"* {name}: {text}" for name, text in WORLDS.items()),
        rules="\n".join(f"* {name}: {text}" for name, text in RULES.items()),
        table=tabulate(
            [
                [*key, *(100 * each.decided[rule, shift].mean() for shift in (0.0, EFFECT) for rule in RULES)]
                for key, each in found.items()
            ],
            ["world", "seeds", *(f"{rule}, {text}" for text in ("none", f"{EFFECT:g} points") for rule in RULES)],
            "github",
            floatfmt=".1f",
        ),
        runs16=2 * cases,
        other=sum(int((quiet["B", shift] != quiet["E", shift]).sum()) for shift in (0.0, EFFECT)),
        coverage=tabulate(
            [[*key, 100 * each.covered, 100 * each.conditional] for key, each in found.items() if key[1] in (3, 5, 8)],
            ["world", "seeds", "covers", "conditional"],
            "github",
            floatfmt=".1f",
        ).replace("nan", "   "),
        looks=", ".join(map(str, LOOKS)),
        plain=plain,
        declared=declared,
        runs=tabulate(
            list(runs(10 * cases)),
            ["distance", "told, paper right", "differs, paper right", "told, rival right"],
            "github",
            floatfmt=".1f",
        ),
    )


class Simulated:
    """Runs of a world with a number of seeds: what each rule decides without and with a difference, and coverage."""

    def __init__(self, decided: dict[tuple[str, float], NDArray[np.bool_]], covered: float, conditional: float) -> None:
        self.decided, self.covered, self.conditional = decided, covered, conditional


def simulated(world: str, seeds: int, cases: int) -> Simulated:
    """Runs whose true difference is 0, or `EFFECT` more."""
    rng = np.random.default_rng([list(WORLDS).index(world), seeds])
    decided: dict[tuple[str, float], list[bool]] = {}
    covered, conditional = [], []
    for _ in range(cases):
        values_ts, collapsed_s = _values(world, seeds, rng)
        found = estimation.estimate([values_ts], 0, CONFIDENCE)
        of_tasks, means = found.of_tasks or 0.0, [*found.seed_means.values()]
        low, high = np.quantile(_draws(values_ts, of_tasks, means, rng), [0.025, 0.975])
        covered.append(found.low <= 0.0 <= found.high)
        rest = [mean for mean, lost in zip(means, collapsed_s, strict=True) if not lost]
        if collapsed_s.any() and (ends := estimation.interval(rest, of_tasks, CONFIDENCE)):
            # Without collapses the difference is as much above 0 as they take from its mean.
            conditional.append(ends[0] <= SHARE * LOSS <= ends[1])
        for shift in (0.0, EFFECT):
            moved = np.array(means) + shift
            drawn = not low + shift <= 0.0 <= high + shift
            wide = estimation.half_width(of_tasks, variance(means), seeds, 0.99)
            answers = {
                "A": drawn,
                "B": drawn and (seeds < MIN_SEEDS or _without_one(moved, of_tasks)),
                "C": not found.low + shift <= 0.0 <= found.high + shift,
                "D": bool(abs(moved.mean()) > wide),
                "E": bool(estimation.decisions(moved[None], of_tasks, CONFIDENCE)[0]),
            }
            for rule, answer in answers.items():
                decided.setdefault((rule, shift), []).append(answer)
    arrays = {key: np.array(answers) for key, answers in decided.items()}
    return Simulated(arrays, float(np.mean(covered)), float(np.mean(conditional)) if conditional else np.nan)


def _without_one(means: Values, of_tasks: float) -> bool:
    """Whether the interval excludes 0 without any one training."""
    ends = [estimation.interval([*np.delete(means, seed)], of_tasks, CONFIDENCE) for seed in range(len(means))]
    return not any(low <= 0.0 <= high for low, high in filter(None, ends))


def _draws(values_ts: Values, of_tasks: float, means: list[float], rng: np.random.Generator) -> Values:
    """Draws of the mean: a bootstrap over tasks, scaled to their variance, plus quantiles of Student's distribution."""
    from scipy.special import stdtrit

    tasks, seeds = values_ts.shape
    means_t = values_ts.mean(axis=1)
    drawn_b = means_t[rng.integers(tasks, size=(DRAWS, tasks))].mean(axis=1) - means_t.mean()
    scale = (of_tasks / (means_t.var() / tasks)) ** 0.5 if means_t.var() else 0.0
    student_b = rng.permutation(stdtrit(seeds - 1, (np.arange(DRAWS) + 0.5) / DRAWS))
    draws_b: Values = means_t.mean() + scale * drawn_b + (variance(means) / seeds) ** 0.5 * student_b
    return draws_b


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
        limits = {n: estimation.student_quantile(1 - level / 2, n - 1) for n, level in of_look.items()}
        first = {n: values[:, :n] for n in limits}
        seen = [abs(v.mean(1)) > limits[n] * v.std(1, ddof=1) / n**0.5 for n, v in first.items()]
        decided.append(100 * float(np.any(seen, axis=0).mean()))
    return decided[0], decided[1]


def runs(cases: int) -> Iterator[list[float]]:
    """Per cent of claims told with five seeds, by the distance of the paper's and the rival's number."""
    seeds = 5
    for distance in (2.0, 2.5, 3.5):
        rng = np.random.default_rng(int(10 * distance))
        paper = rng.normal(size=cases)
        row = [distance]
        for mean in (0.0, paper + distance):
            ours = rng.normal(size=(seeds, cases)) + mean
            within = estimation.single_run_width(ours.var(0, ddof=1), seeds, CONFIDENCE)
            differs = abs(paper - ours.mean(0)) > within
            agrees = ~differs & (abs(paper + distance - ours.mean(0)) > within)
            row += [100 * float((differs | agrees).mean())]
            row += [100 * float(differs.mean())] if np.ndim(mean) == 0 else []
        yield row


if __name__ == "__main__":
    main()
