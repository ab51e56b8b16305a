"""Stages that make tables, figures and texts of the results."""

from __future__ import annotations

import functools
from dataclasses import replace
from pathlib import Path

from coevolve.config.derived.methods import with_model
from coevolve.config.yaml_files import extended_files
from coevolve.dag.layout import Layout
from coevolve.dag.rules.common import unique
from coevolve.dag.stage import Inputs, Stage, Wildcards
from coevolve.dag.task_pools import practice

CLAIMS = "configs/claims.yaml"
TABLE = ("suite", "protocol", "methods", "seeds", "models", "envs", "iterations", "recipes", "report")
product = functools.partial(Stage, reads=TABLE, product=True)


def first(layout: Layout) -> Layout:
    """The layout with the suite's first model alone."""
    return replace(layout, suite=with_model(layout.suite))


def _records(layout: Layout, wildcards: Wildcards) -> Inputs:
    """The evaluation records of the suite's methods with the first model."""
    return {"records": first(layout).records(layout.suite.methods)}


def _explorations(layout: Layout, wildcards: Wildcards) -> Inputs:
    """The explorations of the suite's methods with the first model."""
    return {"explorations": first(layout).explorations(layout.suite.methods)}


def _summaries(layout: Layout, wildcards: Wildcards) -> Inputs:
    """The pairing summaries of the suite's methods with the first model."""
    return {"summaries": first(layout).summaries(layout.suite.methods)}


def _machine(layout: Layout, wildcards: Wildcards) -> Inputs:
    """The machine's file and those that it `extends`."""
    path = Path(layout.machine)
    parents = extended_files(path) if path.is_file() else []
    return {"machine": layout.machine, "machine_parents": [str(parent) for parent in parents]}


def _evaluated(layout: Layout, wildcards: Wildcards) -> list[str]:
    """History: the evaluation records of the suite's methods with the first model."""
    return unique(first(layout).records(layout.suite.methods).values())


def measured(layout: Layout, wildcards: Wildcards) -> list[str]:
    """History: everything that the products are made of, with all models."""
    layouts = (replace(layout, suite=with_model(layout.suite, model)) for model in layout.suite.models)
    return [path for each in layouts for path in each.results()]


def _costed(layout: Layout, wildcards: Wildcards) -> list[str]:
    """History: everything that the products are made of, with all models, and the gradients if they are measured."""
    gradients = first(layout).gradients().values() if layout.suite.gradients.pairs else ()
    return [*measured(layout, wildcards), *unique(gradients)]


def _ablation_inputs(layout: Layout, wildcards: Wildcards) -> Inputs:
    """Everything that the table of the ablation's methods is made of, with all models."""
    methods = layout.suite.ablations[wildcards["ablation"]].methods
    return {
        "records": layout.records(methods),
        "summaries": layout.summaries(methods),
        "drops": layout.drops(),
        "claims": CLAIMS,
    }


ABLATION = Stage(
    name="ablation",
    help="Write an ablation's table: its methods side by side.",
    reads=(*TABLE, "ablations"),
    files=("table.md", "table.tex", "table.json", "summary.md"),
    folder="ablations/{ablation}",
    inputs=_ablation_inputs,
)


def _verdicts_inputs(layout: Layout, wildcards: Wildcards) -> Inputs:
    """Everything that a claim of the paper is about."""
    return _records(layout, wildcards) | _explorations(layout, wildcards) | {"claims": CLAIMS}


VERDICTS = product(
    name="verdicts",
    help="Judge each claim of the paper: reproduced, contradicted, underpowered or not run.",
    files=("verdicts.json", "verdicts.md"),
    folder="paper/verdicts",
    inputs=_verdicts_inputs,
)


def table1_inputs(layout: Layout, wildcards: Wildcards) -> Inputs:
    """Evaluation records and the paper's cells."""
    return _records(layout, wildcards) | {"claims": CLAIMS}


TABLE1 = product(
    name="table1",
    help="Write Table 1 with the paper's numbers.",
    files=("table1.md", "table1.tex", "table1.json"),
    folder="paper/table1",
    inputs=table1_inputs,
)
FIGURE2 = product(
    name="figure2",
    help="Draw Figure 2: failures, and the rewards of shared failures.",
    files=("figure2.json", "figure2.svg"),
    folder="paper/figure2",
    inputs=_explorations,
)
FIGURE3 = product(
    name="figure3",
    help="Draw Figure 3: average reward per iteration.",
    files=("figure3.json", "figure3.svg"),
    folder="paper/figure3",
    inputs=_records,
)
DIFFERENCES = product(
    name="differences",
    help="Compare the methods, paired by task and seed.",
    files=("differences.json",),
    folder="paper/differences",
    inputs=_records,
)


def _failures_inputs(layout: Layout, wildcards: Wildcards) -> Inputs:
    """Records, explorations, experts, pairs, the paper's thresholds and the machine, beside the history's provenance.

    All are those of the first model. The gradients come with them if the suite measures them.
    """
    inputs: Inputs = {"experts": layout.experts(), "pairs": first(layout).training_pairs(), "claims": CLAIMS}
    if layout.suite.gradients.pairs:
        inputs["gradients"] = first(layout).gradients()
    return _records(layout, wildcards) | _explorations(layout, wildcards) | inputs | _machine(layout, wildcards)


FAILURES = product(
    name="failures",
    help="Analyse explorations, failures, log-probs before and after training, and compute.",
    files=("analysis.json", "analysis.md", "failure_rewards.svg", "mechanism.svg"),
    folder="paper/failures",
    inputs=_failures_inputs,
    environment=("observations",),
    history=_evaluated,
)


def _regime_inputs(layout: Layout, wildcards: Wildcards) -> Inputs:
    """Evaluation records, explorations, pairing summaries and online training episodes, with the first model."""
    made = _records(layout, wildcards) | _explorations(layout, wildcards) | _summaries(layout, wildcards)
    return made | {"practice": practice(first(layout))}


REGIME = product(
    name="regime",
    help="Check whether the suite could decide between methods.",
    reads=(*TABLE, "regime"),
    files=("regime.json", "regime.md"),
    folder="paper/regime",
    inputs=_regime_inputs,
    history=measured,
)
PAIR_COUNTS = product(
    name="pair_counts",
    help="Count the pairs and drops of every pairing.",
    files=("pairs.json", "pairs.svg"),
    folder="paper/pair_counts",
    inputs=_summaries,
)
EXAMPLES = product(
    name="examples",
    help="Show failures of two agents on the same instructions, selected by a fixed rule.",
    files=("examples.md",),
    folder="paper/examples",
    inputs=_explorations,
)
COSTS = product(
    name="costs",
    help="Compare estimated and measured hours of all jobs.",
    reads=("models", "recipes"),
    files=("costs.md", "costs.json", "costs.svg"),
    folder="paper/costs",
    inputs=_machine,
    history=_costed,
)


def _summary_inputs(layout: Layout, wildcards: Wildcards) -> Inputs:
    """Differences, pairing summaries, and the drops of each environment's `data`."""
    differences = f"{layout.home}/paper/differences/differences.json"
    return _summaries(layout, wildcards) | {"differences": differences, "drops": layout.drops()}


SUMMARY = product(
    name="summary",
    help="Write the differences between methods, and each method's source, pairs and drops.",
    files=("summary.md",),
    folder="paper/summary",
    inputs=_summary_inputs,
)
STAGES = (
    VERDICTS,
    TABLE1,
    FIGURE2,
    FIGURE3,
    DIFFERENCES,
    FAILURES,
    REGIME,
    PAIR_COUNTS,
    EXAMPLES,
    COSTS,
    SUMMARY,
)
