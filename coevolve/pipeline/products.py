"""The tables, figures and texts of a suite: a line each, with their files and inputs; and the page that shows them."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from coevolve.methods.recipes import has_pool
from coevolve.pipeline.job import Job
from coevolve.pipeline.stage import TABLE, Inputs, PlannedJob, Stage, files_of
from coevolve.pipeline.stages import page
from coevolve.pipeline.suite_files import SuiteFiles, paths_of
from coevolve.records.provenance import Notes
from coevolve.results import tables
from coevolve.storage.files import PROVENANCE

#: The module with the products' functions.
RUNS = "coevolve.pipeline.product_runs"
Names = tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class ProductStage(Stage):
    """A stage that makes a table, figure or text: the function `write_PRODUCT` of `product_runs`.

    `of` names its inputs (`SuiteFiles.of`). With `behind` it also reads the provenance of all jobs behind these files.
    """

    product: str
    of: Names
    behind: Callable[[SuiteFiles], Iterable[str]] | None = None

    @property
    def name(self) -> str:
        """The product's name."""
        return self.product

    @property
    def module(self) -> str:
        """The module with the functions of all products."""
        return RUNS

    @property
    def function(self) -> str:
        """Its function in the module."""
        return f"write_{self.product}"

    def inputs(self, files: SuiteFiles) -> Inputs:
        """The input files by name."""
        return files.of(*self.of) | (provenances(files, self.behind(files)) if self.behind else {})


def product(
    name: str,
    text: str,
    files: Names,
    of: Names,
    reads: Names = TABLE,
    behind: Callable[[SuiteFiles], Iterable[str]] | None = None,
) -> ProductStage:
    """The declaration of a product: its name, help, files, inputs and config sections, and as `ProductStage`."""
    run = functools.partial(_run, name)
    return ProductStage(help=text, run=run, reads=reads, files=files, product=name, of=of, behind=behind)


def _run(name: str, job: Job, out: Path) -> Notes:
    """Make a product in this process."""
    notes: Notes = getattr(importlib.import_module(RUNS), f"write_{name}")(job, out)
    return notes


def _all_measured(files: SuiteFiles) -> Iterable[str]:
    """What any job of the suite, or of an ablation of a full run, made."""
    return paths_of([*files.measured(), *files.gradients(), *files.records(files.judged())])


#: What a full run ends with, beside its ablations and its page.
PRODUCTS = (
    product(
        "verdicts", "Judge each claim of the paper: it agrees with the results, differs, or cannot be told yet.",
        ("verdicts.json", "verdicts.md"), ("judged.records", "judged.explorations", "claims"),
    ),
    product(
        "table1", "Write Table 1 with the paper's numbers.",
        ("table1.md", "table1.tex", "table1.json"), ("records", "claims"),
    ),
    product(
        "figure2", "Draw Figure 2: failures, and the rewards of shared failures.",
        ("figure2.json", "figure2.svg"), ("explorations",),
    ),
    product(
        "figure3", "Draw Figure 3: average reward per iteration.", ("figure3.json", "figure3.svg"), ("records",),
    ),
    product(
        "differences", "Compare the methods, paired by task and seed.", ("differences.json",), ("records",),
    ),
    product(
        "failures", "Analyse explorations, failures, log-probs before and after training, and compute.",
        ("analysis.json", "analysis.md", "failure_rewards.svg", "mechanism.svg"),
        ("records", "explorations", "experts", "pairs", "gradients", "claims", "machine", "machine_parents"),
        behind=lambda files: paths_of(files.records(files.suite.methods)),
    ),
    product(
        "regime", "Check whether the suite could decide between methods.", ("regime.json", "regime.md"),
        ("records", "explorations", "summaries", "practice"), (*TABLE, "regime"),
        behind=lambda files: paths_of(files.measured()),
    ),
    product(
        "pair_counts", "Count the pairs and drops of every pairing.", ("pairs.json", "pairs.svg"), ("summaries",),
    ),
    product(
        "examples", "Show failures of two agents on the same instructions, selected by a fixed rule.",
        ("examples.md",), ("explorations",),
    ),
    product(
        "costs", "Compare estimated and measured hours of all jobs.", ("costs.md", "costs.json", "costs.svg"),
        ("machine", "machine_parents"), ("models", "recipes"), behind=_all_measured,
    ),
    product(
        "summary", "Write the differences between methods, and each method's source, pairs and drops.",
        ("summary.md",), ("summaries", "differences", "figure3", "drops"),
    ),
    product(
        "tables", "Write the tidy tables of episodes, pairs, training steps and jobs, for a notebook.",
        tuple(f"{name}.parquet" for name in tables.NAMES),
        ("all.records", "all.explorations", "all.pairs", "all.summaries"),
        behind=lambda files: paths_of(files.measured()),
    ),
)  # fmt: skip
ABLATION = product(
    "ablation", "Write an ablation's table: its methods side by side.",
    ("table.md", "table.tex", "table.json", "summary.md"), ("drops", "claims"), (*TABLE, "ablations"),
)  # fmt: skip
TASK_GROWTH = product(
    "task_growth", "Show how pools of synthetic tasks grow, and compare with the second paper's numbers.",
    ("growth.md", "growth.svg", "new_tasks.svg", "growth.json", "comparison.md"),
    ("records", "claims", "rounds.episodes", "rounds.pools"), (*TABLE, "task_evolution"),
)  # fmt: skip


def products(files: SuiteFiles) -> dict[str, PlannedJob]:
    """The products of a suite by name: what its page shows, and the page."""
    add = files.paper.add
    made = {each.name: add(each, f"paper/{each.name}", each.inputs(files), {}) for each in PRODUCTS}
    if any(has_pool(files.suite.recipes[method]) for method in files.suite.methods):
        made[TASK_GROWTH.name] = growth(files)
    inputs = page.inputs(files, list(made.values())) | provenances(files, paths_of(files.measured()))
    return made | {page.STAGE.name: add(page.STAGE, "paper/page", inputs, {})}


def growth(files: SuiteFiles) -> PlannedJob:
    """The tables of the pools of synthetic tasks."""
    return files.paper.add(TASK_GROWTH, "task_growth", TASK_GROWTH.inputs(files), {})


def ablation_table(files: SuiteFiles, name: str) -> PlannedJob:
    """The table of an ablation's methods, with all models."""
    methods = files.suite.ablations[name].methods
    measured: Inputs = {"records": files.records(methods, True), "summaries": files.summaries(methods, True)}
    return files.paper.add(ABLATION, f"ablations/{name}", measured | ABLATION.inputs(files), {"ablation": name})


def provenances(files: SuiteFiles, results: Iterable[str]) -> Inputs:
    """The input `provenance`: that of every job behind the results."""
    made = files.paper.makers
    waiting, behind = [made[path] for path in dict.fromkeys(results)], dict[str, PlannedJob]()
    while waiting:
        job = waiting.pop()
        if job.key not in behind:
            behind[job.key] = job
            waiting += [made[path] for path in files_of(job.inputs) if path in made]
    return {"provenance": sorted(job[PROVENANCE] for job in behind.values() if job.leaves_provenance)}
