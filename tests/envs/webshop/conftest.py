"""A small generated shop."""

import pytest

from coevolve.envs.webshop.catalogue_generator import ProductShares, generate
from coevolve.envs.webshop.shop import Shop


@pytest.fixture(scope="session")
def catalogue(tmp_path_factory):
    """A catalogue of 300 products with much that is odd, many near copies and many instructions."""
    folder = tmp_path_factory.mktemp("webshop") / "catalogue"
    generate(folder, 300, seed=7, shares=ProductShares(human=0.3, synthetic=0.2, copies=0.1, edge_cases=0.3))
    return folder


@pytest.fixture(scope="session")
def shop(catalogue, tmp_path_factory):
    """The shop of that catalogue."""
    return Shop.build(catalogue, tmp_path_factory.mktemp("webshop") / "shop")
