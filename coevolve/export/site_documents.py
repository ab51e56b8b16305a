"""The products of a suite that the landing page of its view links to."""

from collections.abc import Iterator
from pathlib import Path

from coevolve.pipeline.plan import Plan
from coevolve.pipeline.registry import STAGES
from coevolve.pipeline.rules.page import PAGE, exported
from coevolve.pipeline.rules.products import ABLATION
from coevolve.report.html import section_title
from coevolve.report.view import SiteDocument
from coevolve.storage import provenance


def site_documents(plan: Plan) -> Iterator[SiteDocument]:
    """The products and ablations on disk, the report first; the parts of a product that are missing are left out."""
    stages = sorted(map(STAGES.__getitem__, exported(plan.suite)), key=lambda stage: stage is not PAGE)
    jobs = [(stage, section_title(stage.name), dict[str, str]()) for stage in stages]
    jobs += [(ABLATION, ablation.label or name, {"ablation": name}) for name, ablation in plan.suite.ablations.items()]
    for stage, title, wildcards in jobs:
        if there := [
            provenance.checked(path) for path in map(Path, plan.files(stage.name, wildcards)) if path.is_file()
        ]:
            yield SiteDocument("Report" if stage is PAGE else title, stage.help, there)
