"""Episodes and pairs as a static site: it opens from a folder, without a server and without a network."""

from coevolve.report.view.origin import FileOrigin, link, record_files
from coevolve.report.view.write import SiteDocument, build

__all__ = ["FileOrigin", "SiteDocument", "build", "link", "record_files"]
