"""Episodes and pairs as a static site: it opens from a folder, without a server and without a network."""

from coevolve.report.view.place import Place, link, places
from coevolve.report.view.write import Shown, build

__all__ = ["Place", "Shown", "build", "link", "places"]
