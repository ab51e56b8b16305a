"""The README's picture and numbers are what `tools/front_page.py` makes from the plan and committed results."""

import re
import xml.etree.ElementTree as ET

import pytest

from coevolve.config.loading import load_suite
from coevolve.pipeline.plan import Plan
from tools import front_page  # the repository is on the path (pyproject.toml)


def test_the_readme_is_what_the_script_writes(root):
    text = (root / "README.md").read_text()
    assert front_page.fill(text) == text
    emptied = re.sub(r"(<!-- times -->\n).*?(<!-- end -->)", r"\1\2", text, flags=re.DOTALL)
    assert emptied != text and front_page.fill(emptied) == text
    with pytest.raises(ValueError, match="0 marks `times`"):
        front_page.fill(text.replace("<!-- times -->", ""))


def test_the_pictures_are_what_the_script_draws(root):
    assert (root / "docs/results.svg").read_bytes() == front_page.results_svg()
    assert (root / "docs/loop.svg").read_text() == front_page.loop_svg()
    ET.fromstring(front_page.loop_svg())


def test_the_pictures_arrows_are_the_papers_loop():
    edges = {(start, end) for start, end, _ in front_page._edges(Plan(load_suite("micro")))}
    both, one = ("target", "failure"), ("data", "")
    expected = {(one, ("sft", agent)) for agent in both}
    expected |= {(("sft", agent), ("rollout", agent)) for agent in both}
    expected |= {(("rollout", agent), ("pairs", learner)) for agent in both for learner in both}
    expected |= {(one, ("pairs", "target")), (("train", "target"), ("evaluate", ""))}
    expected |= {(("pairs", agent), ("train", agent)) for agent in both}
    expected |= {(("train", agent), ("rollout", agent)) for agent in both}
    assert edges == expected
