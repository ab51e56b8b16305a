"""The products of a suite that the landing page of its view links to."""

from collections.abc import Iterator
from pathlib import Path

from coevolve.config.suite import supports
from coevolve.pipeline.plan import Plan
from coevolve.report.html import section_title
from coevolve.report.view import SiteDocument
from coevolve.storage import provenance


def site_documents(plan: Plan) -> Iterator[SiteDocument]:
    """The products and ablations on disk, the report first; the parts of a product that are missing are left out."""
    products = sorted(plan.products.items(), key=lambda product: product[0] != "page")
    jobs = [(job, "Report" if name == "page" else section_title(name)) for name, job in products]
    for name, ablation in plan.suite.ablations.items():
        if all(supports(plan.suite, method) for method in ablation.methods):
            jobs.append((plan.ablation(name), ablation.label or name))
    for job, title in jobs:
        if there := [provenance.checked(path) for path in map(Path, job.files) if path.is_file()]:
            yield SiteDocument(title, job.stage.help, there)
