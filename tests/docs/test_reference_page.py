"""The tables of the committed results' pages are what `tools/reference_page.py` makes from their files."""

import re

import pytest

from coevolve.config.loading import load_suite
from coevolve.report import table
from coevolve.report.table import Table
from coevolve.storage import product_file
from tools import front_page, reference_folders, reference_page  # the repository is on the path (pyproject.toml)

TEXTS = {page: page.read_text() for page in reference_page.PAGES}
TABLE = re.compile(r"(<!-- \w+ -->\n).*?(<!-- end -->)", re.DOTALL)


def test_the_pages_are_what_the_script_writes(monkeypatch, tmp_path):
    assert reference_page.filled() == TEXTS, "run `python -m tools.reference_page`"
    emptied = {tmp_path / page.name: TABLE.sub(r"\1\2", text) for page, text in TEXTS.items()}
    for page, text in emptied.items():
        page.write_text(text)
    monkeypatch.setattr(reference_page, "PAGES", tuple(emptied))
    made = {page.name: text for page, text in reference_page.filled().items()}
    assert made == {page.name: text for page, text in TEXTS.items()}
    next(iter(emptied)).write_text("no mark")
    with pytest.raises(ValueError, match="overview"):
        reference_page.filled()


def test_the_page_counts_the_finished_seeds_of_running_experiments():
    page = (front_page.REFERENCE / "README.md").read_text()
    counts = re.findall(r"\[`(\w+)`\]\(\S+\): (\d+) of (\d+) seeds are finished", page)
    assert counts
    for suite, finished, planned in counts:
        archives = {path.name for path in front_page.ROOT.glob(f"results/evidence/{suite}_[0-9]*.tar.xz")}
        seeds = load_suite(suite).seeds
        assert archives <= {f"{suite}_{seed}.tar.xz" for seed in seeds}
        assert (int(finished), int(planned)) == (len(archives), len(seeds))


def test_no_table_is_typed_by_hand():
    for text in TEXTS.values():
        assert not re.findall(r"^\|", TABLE.sub("", text), re.MULTILINE)


def test_every_folder_of_results_is_on_one_page():
    folders = sorted(path.name for path in front_page.REFERENCE.iterdir() if path.is_dir())
    described = [name for text in TEXTS.values() for name in re.findall(r"^`(\w+)/`:", text, re.MULTILINE)]
    assert sorted(described) == folders


def test_the_folders_texts_are_made_of_their_json():
    for path, text in reference_folders.texts():
        assert path.read_text() == text, f"{path}: run `python -m tools.reference_folders`"


def test_the_folders_tables_are_made_of_their_json(tmp_path):
    paths = sorted(front_page.REFERENCE.glob("*/table*.json"))
    assert len(paths) == len([path for path in front_page.REFERENCE.iterdir() if path.is_dir()])
    for path in paths:
        table.write(product_file.read(path, list[Table]), tmp_path, path.stem)
        made, kept = (file.read_text() for file in (tmp_path / f"{path.stem}.md", path.with_suffix(".md")))
        if " on each of " in made:
            made, kept = (list(map(cells, text.splitlines())) for text in (made, kept))
        assert made == kept, path


def cells(line):
    """The cells of a line; a cell of equal values as in the tables that were made before it named its tasks."""
    if set(line) <= {"|", "-"}:
        return []
    return [re.sub(r"^(\S+) on each of [\d,]+ tasks", r"\1 [\1, \1]", cell.strip()) for cell in line.split("|")]
