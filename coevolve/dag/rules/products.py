"""Stages that make tables, figures and texts of the results."""

import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from coevolve.config.derived.methods import models_of, with_model
from coevolve.config.yaml_files import extended_files
from coevolve.dag.layout import Layout
from coevolve.dag.stage import Inputs, Stage, Wildcards

CLAIMS = "configs/claims.yaml"
TABLE = (
    "suite", "protocol", "methods", "seeds", "looks", "models", "envs", "iterations", "recipes", "report", "without",
)  # fmt: skip


def product(name: str, **fields: Any) -> Stage:
    """The declaration of a product; its files lie in a folder with its name."""
    common: dict[str, Any] = {"name": name, "reads": TABLE, "folder": f"paper/{name}"}
    return Stage(**common | {"product": True, "remade": True} | fields)


def first(layout: Layout) -> Layout:
    """The layout with the suite's first model alone."""
    return replace(layout, suite=with_model(layout.suite))


def _machine_parents(layout: Layout) -> list[str]:
    """The files that the machine's file `extends`."""
    path = Path(layout.machine)
    return [str(parent) for parent in extended_files(path)] if path.is_file() else []


def _judged(layout: Layout) -> list[str]:
    """The suite's methods, and those of the ablations that a full run makes."""
    ablations = (ablation.methods for ablation in layout.suite.ablations.values() if ablation.default)
    return list(dict.fromkeys(itertools.chain(layout.suite.methods, *ablations)))


def _verdicts_inputs(layout: Layout, wildcards: Wildcards) -> Inputs:
    """The results of the suite's methods and of its default ablations, and the claims."""
    methods, suite = _judged(layout), first(layout)
    return {"records": suite.records(methods), "explorations": suite.explorations(methods), "claims": CLAIMS}


#: Inputs of products by name; files of the suite's methods are those with its first model.
_SOURCES: dict[str, Callable[[Layout], Any]] = {
    "records": lambda layout: first(layout).records(layout.suite.methods),
    "explorations": lambda layout: first(layout).explorations(layout.suite.methods),
    "summaries": lambda layout: first(layout).summaries(layout.suite.methods),
    "pairs": lambda layout: first(layout).training_pairs(),
    "gradients": lambda layout: first(layout).gradients(),
    "practice": lambda layout: first(layout).practice(),
    "experts": Layout.experts,
    "drops": Layout.drops,
    "differences": lambda layout: f"{layout.home}/paper/differences/differences.json",
    "figure3": lambda layout: f"{layout.home}/paper/figure3/figure3.json",
    "claims": lambda layout: CLAIMS,
    "machine": lambda layout: layout.machine,
    "machine_parents": _machine_parents,
}


def made_of(*names: str) -> Callable[[Layout, Wildcards], Inputs]:
    """The `inputs` of a product that reads the files of these names."""
    return lambda layout, wildcards: {name: _SOURCES[name](layout) for name in names}


def _evaluated(layout: Layout, wildcards: Wildcards) -> list[str]:
    """History: the evaluation records of the suite's methods with the first model."""
    return sorted({*first(layout).records(layout.suite.methods).values()})


def measured(layout: Layout, wildcards: Wildcards) -> list[str]:
    """History: everything that the products are made of, with all models."""
    layouts = (replace(layout, suite=with_model(layout.suite, model)) for model in models_of(layout.suite))
    return [path for each in layouts for path in each.results()]


def _costed(layout: Layout, wildcards: Wildcards) -> list[str]:
    """History: all that a full run's tables and products are made of, and the gradients if they are measured."""
    gradients = first(layout).gradients().values() if layout.suite.gradients.pairs else ()
    return [*measured(layout, wildcards), *sorted({*gradients, *first(layout).records(_judged(layout)).values()})]


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
    remade=True,
)


def _failures_inputs(layout: Layout, wildcards: Wildcards) -> Inputs:
    """The gradients, if the suite measures them, beside what the analysis always reads."""
    names = ["records", "explorations", "experts", "pairs", "claims", "machine", "machine_parents"]
    return made_of(*names, *(["gradients"] if layout.suite.gradients.pairs else []))(layout, wildcards)


STAGES = (
    product(
        name="verdicts",
        help="Judge each claim of the paper: reproduced, consistent, contradicted, undecided or not run.",
        files=("verdicts.json", "verdicts.md"),
        inputs=_verdicts_inputs,
    ),
    product(
        name="table1",
        help="Write Table 1 with the paper's numbers.",
        files=("table1.md", "table1.tex", "table1.json"),
        inputs=made_of("records", "claims"),
    ),
    product(
        name="figure2",
        help="Draw Figure 2: failures, and the rewards of shared failures.",
        files=("figure2.json", "figure2.svg"),
        inputs=made_of("explorations"),
    ),
    product(
        name="figure3",
        help="Draw Figure 3: average reward per iteration.",
        files=("figure3.json", "figure3.svg"),
        inputs=made_of("records"),
    ),
    product(
        name="differences",
        help="Compare the methods, paired by task and seed.",
        files=("differences.json",),
        inputs=made_of("records"),
    ),
    product(
        name="failures",
        help="Analyse explorations, failures, log-probs before and after training, and compute.",
        files=("analysis.json", "analysis.md", "failure_rewards.svg", "mechanism.svg"),
        inputs=_failures_inputs,
        environment=("observations",),
        history=_evaluated,
    ),
    product(
        name="regime",
        help="Check whether the suite could decide between methods.",
        reads=(*TABLE, "regime"),
        files=("regime.json", "regime.md"),
        inputs=made_of("records", "explorations", "summaries", "practice"),
        history=measured,
    ),
    product(
        name="pair_counts",
        help="Count the pairs and drops of every pairing.",
        files=("pairs.json", "pairs.svg"),
        inputs=made_of("summaries"),
    ),
    product(
        name="examples",
        help="Show failures of two agents on the same instructions, selected by a fixed rule.",
        files=("examples.md",),
        inputs=made_of("explorations"),
    ),
    product(
        name="costs",
        help="Compare estimated and measured hours of all jobs.",
        reads=("models", "recipes"),
        files=("costs.md", "costs.json", "costs.svg"),
        inputs=made_of("machine", "machine_parents"),
        history=_costed,
        remade=False,  # it also reads Slurm's accounting
    ),
    product(
        name="summary",
        help="Write the differences between methods, and each method's source, pairs and drops.",
        files=("summary.md",),
        inputs=made_of("summaries", "differences", "figure3", "drops"),
    ),
)
