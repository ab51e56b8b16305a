"""The report page, which shows the files of all other products."""

from coevolve.config.derived.recipes import has_pool
from coevolve.config.suite import Suite
from coevolve.dag.layout import Layout
from coevolve.dag.rules import products
from coevolve.dag.rules.task_pool import TASK_GROWTH
from coevolve.dag.stage import Inputs, Stage, Wildcards


def shown(suite: Suite) -> list[Stage]:
    """The stages whose files the page shows: the products, and `task_growth` if a method has a pool."""
    has_pools = any(has_pool(suite.recipes[method]) for method in suite.methods)
    return [*products.STAGES, *([TASK_GROWTH] if has_pools else [])]


def _page_inputs(layout: Layout, wildcards: Wildcards) -> Inputs:
    """The files of all stages that the page shows."""
    files = [f"{layout.home}/{stage.folder}/{name}" for stage in shown(layout.suite) for name in stage.files]
    return {"products": files, "claims": products.CLAIMS}


PAGE = products.product(
    name="page",
    help="Put all products on one HTML page.",
    files=("report.html", "training_curves.svg"),
    inputs=_page_inputs,
    history=products.measured,
)


def exported(suite: Suite) -> list[str]:
    """The stages whose files an export of a suite holds."""
    return [stage.name for stage in (*shown(suite), PAGE)]
