"""The jobs of tables, figures and texts, and of the page that shows them."""

from collections.abc import Iterable

from coevolve.config.derived.recipes import has_pool
from coevolve.pipeline.stage import Inputs, PlannedJob, files_of
from coevolve.pipeline.stages import (
    ablation,
    costs,
    differences,
    examples,
    failures,
    figure2,
    figure3,
    page,
    pair_counts,
    regime,
    summary,
    table1,
    task_growth,
    verdicts,
)
from coevolve.pipeline.suite_files import SuiteFiles
from coevolve.storage.files import PROVENANCE

#: What a full run ends with, beside its ablations and its page.
PRODUCTS = (
    verdicts, table1, figure2, figure3, differences, failures, regime, pair_counts, examples, costs, summary
)  # fmt: skip


def products(files: SuiteFiles) -> dict[str, PlannedJob]:
    """The products of a suite by name: what its page shows, and the page."""
    add, methods = files.paper.add, files.suite.methods
    measured = files.measured()
    gradients = files.gradients().values() if files.suite.gradients.pairs else ()
    read = {
        failures: sorted({*files.records(methods).values()}),
        regime: measured,
        costs: [*measured, *sorted({*gradients, *files.records(files.judged()).values()})],
    }
    made = {}
    for each in PRODUCTS:
        inputs = each.inputs(files) | (provenances(files, read[each]) if each in read else {})
        made[each.STAGE.name] = add(each.STAGE, f"paper/{each.STAGE.name}", inputs, {})
    if any(has_pool(files.suite.recipes[method]) for method in methods):
        made[task_growth.STAGE.name] = growth(files)
    inputs = page.inputs(files, list(made.values())) | provenances(files, measured)
    return made | {page.STAGE.name: add(page.STAGE, "paper/page", inputs, {})}


def growth(files: SuiteFiles) -> PlannedJob:
    """The tables of the pools of synthetic tasks."""
    return files.paper.add(task_growth.STAGE, "task_growth", task_growth.inputs(files), {})


def ablation_table(files: SuiteFiles, name: str) -> PlannedJob:
    """The table of an ablation."""
    return files.paper.add(ablation.STAGE, f"ablations/{name}", ablation.inputs(files, name), {"ablation": name})


def provenances(files: SuiteFiles, results: Iterable[str]) -> Inputs:
    """The input `provenance`: that of every job behind the results."""
    made = files.paper.makers
    waiting, behind = [made[path] for path in results], dict[str, PlannedJob]()
    while waiting:
        job = waiting.pop()
        if job.key not in behind:
            behind[job.key] = job
            waiting += [made[path] for path in files_of(job.inputs) if path in made]
    return {"provenance": sorted(job[PROVENANCE] for job in behind.values() if job.leaves_provenance)}
