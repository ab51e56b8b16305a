"""The simulated rollout: its committed page, and what it claims."""

import importlib
import re

import pytest


@pytest.fixture
def simulated(root, monkeypatch):
    """The program as a module."""
    monkeypatch.syspath_prepend(root / "benchmarks")
    return importlib.import_module("simulated_rollout")


def test_the_page_is_what_it_prints_and_its_gains_stand_in_the_documentation(root, simulated):
    page = simulated.page()
    assert (root / "benchmarks/simulated_rollout.md").read_text() == page
    gains = re.findall(r"on their own \| what the cache holds \| +\d+ \| +([\d.]+) \|", page)
    _, _, paragraph = (root / "docs/run/sampling.md").read_text().partition("[A simulation]")
    shared, unshared = gains[:3], gains[3:]
    for name, gain in zip(("ScienceWorld", "WebShop", "SQL"), shared, strict=True):
        assert f"{gain} ({name})" in paragraph
    assert f"{unshared[0]}, {unshared[1]} and {unshared[2]}." in paragraph


def test_both_together_gain_more_than_each(simulated):
    """Also where the cache holds no prompt twice, every token is then prefilled once."""
    for shares in (True, False):
        steps, held, alone, both = simulated.simulate("webshop", shares=shares)
        assert steps["gain"] == 1 < max(held["gain"], alone["gain"]) < both["gain"]
        assert both["prefill"] < 1.2 < 4 < min(steps["prefill"], alone["prefill"])
