"""The tables of the artifact appendix are what `tools/artifact.py` makes from claims, plan and committed results."""

import functools
import itertools
import re
import shlex

import pytest
import yaml

from coevolve.config.loading import as_overrides, load_suite
from coevolve.pipeline.machine import load_machine
from coevolve.pipeline.plan import Plan
from coevolve.pipeline.targets import targets
from coevolve.report import claims
from tools import artifact  # the repository is on the path (pyproject.toml)

CLAIM = """
  made_up:
    {kind: difference, better: ppo, than: rft, column: webshop, value: 2.9, rival: 0.0, place: "Table 1",
     text: "PPO | RFT"}
"""


@pytest.fixture(scope="module")
def text(read):
    return read("artifact").text


def test_the_page_is_what_the_script_writes(root, text):
    assert artifact.fill(text) == text, "run `python -m tools.artifact`"
    listed = re.findall(r"^\| `(\w+)` \|.*\| (R\d+|out of reach) \|", text, re.MULTILINE)
    assert [name for name, _ in listed] == list(claims.load(root / "configs/claims.yaml").by_name())
    sizes = r"([\d.,]+ (?:h|min)) \| [\d.,]+ \([\d.,]+ to [\d.,]+\) \| ([\d.,]+ [kMG]B)"
    runs = re.findall(rf"^\| (R\d+)\b[^|]* \|.* \| {sizes} \|$", text, re.MULTILINE)
    assert {run for _, run in listed} == {run for run, _, _ in runs} | {"out of reach"}


def test_the_plans_numbers_on_other_pages_are_what_the_script_writes():
    pages = artifact.plan_pages()
    assert [page.name for page in pages] == ["README.md", "cluster.md", "training.md"]
    for page, written in pages.items():
        assert page.read_text() == written, "run `python -m tools.artifact`"


def test_a_claim_that_is_added_is_missing_on_the_page(root, text, tmp_path):
    before = (root / "configs/claims.yaml").read_text()
    added = tmp_path / "claims.yaml"
    added.write_text(before.replace("\nstatements:\n", f"\nstatements:{CLAIM}"))
    after = artifact.fill(text, added)
    assert len(after.splitlines()) == len(text.splitlines()) + 3  # the claim, its run and its power
    (line,) = [line for line in after.splitlines() if "`made_up`" in line]
    assert line.startswith("| `made_up` | PPO \\| RFT (Table 1) | 2.9, not 0.0 points | R")
    assert line.endswith("| not judged |")


@pytest.mark.parametrize(
    ("value", "shown"), [(3.0, "at most 8.0 %"), (50.0, "45.0 to 55.0 %"), (97.0, "at least 92.0 %")]
)
def test_the_range_of_a_share_has_no_end_beyond_0_and_100(root, value, shown):
    paper = claims.load(root / "configs/claims.yaml")
    share = paper.statements["sparse_sql"].model_copy(update={"value": value, "tolerance": 5.0})
    (row,) = artifact.blocks(paper.model_copy(update={"rows": {}, "ablations": {}, "statements": {"s": share}}))[
        "claims"
    ].splitlines()[2:]
    assert f" | {shown} | out of reach | " in row


def test_every_path_that_the_page_names_exists(root, text):
    named = set(re.findall(r"(?:configs|docs|benchmarks|results)/[\w./-]*\w", text))
    assert len(named) > 5 and [name for name in sorted(named) if not (root / name).exists()] == []


def parsed(command):
    """Suite, overrides and targets of a call of Snakemake, as the Snakefile reads them."""
    words = shlex.split(command)
    first, last = words.index("--config") + 1, words.index("--")
    config = {key: yaml.safe_load(value) for key, _, value in (word.partition("=") for word in words[first:last])}
    load_machine(config.pop("machine", "h100"))
    return config.pop("suite", "paper"), tuple(as_overrides(config)), words[last + 1 :]


def test_the_commands_of_the_runs_name_what_exists(text, tmp_path, monkeypatch, coevolve):
    rows = re.findall(r"^\| R\d+\b[^|]* \| `(snakemake [^`]+)`<br>`coevolve ([^`]+)` \|", text, re.MULTILINE)
    names = functools.cache(lambda suite, settings: {t.name for t in targets(Plan(load_suite(suite, settings)))})
    assert len(rows) > 10
    for command, judge in rows:
        suite, settings, goals = parsed(command)
        assert goals and set(goals) <= names(suite, settings)
        words = shlex.split(judge)
        assert words[:3] == ["verify", "--suite", suite]
        assert tuple(word for before, word in itertools.pairwise(words) if before == "--set") == settings
    monkeypatch.chdir(tmp_path)
    for judge in {judge for _, judge in rows}:
        status, printed, _ = coevolve(*shlex.split(judge))
        assert status == 3 and printed.startswith("## Verdicts\n\nNone of 62 claims judged in this suite.")
