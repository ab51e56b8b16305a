"""The simulated rollout: its committed page, and what it claims."""

import importlib

import pytest


@pytest.fixture
def simulated(root, monkeypatch):
    """The program as a module."""
    monkeypatch.syspath_prepend(root / "benchmarks")
    return importlib.import_module("simulated_rollout")


def test_the_page_is_what_it_prints(root, simulated):
    assert (root / "benchmarks/simulated_rollout.md").read_text() == simulated.page()


def test_both_together_gain_more_than_each(simulated):
    """Also where the cache holds no prompt twice, every token is then prefilled once."""
    for shares in (True, False):
        steps, held, alone, both = simulated.simulate("webshop", shares=shares)
        assert steps["gain"] == 1 < max(held["gain"], alone["gain"]) < both["gain"]
        assert both["prefill"] < 1.2 < 4 < min(steps["prefill"], alone["prefill"])
