"""The report: one file that needs nothing beside it, made of what lies in the folder and nothing else."""

import contextlib
import json
import re
import shutil
from pathlib import Path

import pytest

from coevolve.report import claims, html, view
from coevolve.storage import provenance
from coevolve.types import Provenance

HOME = "results/glance"
VERDICT = {
    "claim": "Co-evolving > ETO on <b>WebShop</b>",
    "verdict": "underpowered",
    "text": "12 seeds & more",
    "place": "Table 1",
    "says": "ours is better",
    "kind": "ordering",
}


@pytest.fixture(scope="module")
def folder(made, tmp_path_factory):
    """The suite's folder of results, with verdicts and costs beside its tables, and the view."""
    home = tmp_path_factory.mktemp("report") / "glance"
    shutil.copytree(made / HOME / "paper", home / "paper")
    (home / "paper/verdicts/verdicts.json").write_text(json.dumps([VERDICT]))
    with contextlib.chdir(made):
        view.build(made / HOME, home / "view", "suite glance", {})
    return home / "paper"


@pytest.fixture(scope="module")
def make(made, folder):
    """The page made of the products, but for those left out."""

    def page(without=()):
        stage = Provenance.from_json((made / HOME / "paper/page/provenance.json").read_bytes())
        products = [folder / Path(name).relative_to(f"{HOME}/paper") for name in stage.inputs if "/paper/" in name]
        jobs = [provenance.read(made / name) for name in stage.inputs if name.endswith("/provenance.json")]
        with contextlib.chdir(made):
            paper = claims.load("configs/claims.yaml")
            return html.report([path for path in products if path.name not in without], "Suite glance", paper, jobs)

    return page


@pytest.fixture(scope="module")
def page(make, folder):
    (folder / "page/report.html").write_text(make(), encoding="utf-8")
    return folder / "page/report.html"


def test_it_needs_nothing_beside_it(browser, page):
    browser.open(page)
    assert browser.complaints() == []
    assert [address for address in browser.requests() if not address.startswith("data:")] == [page.resolve().as_uri()]
    assert browser.run("document.scripts.length") == 0
    assert browser.run("[...document.images].every((image) => image.naturalWidth > 100)")
    assert browser.run("document.images.length") == 2, "Figures 2 and 3"


def test_it_holds_tables_figures_verdicts_drops_and_provenance(browser, page, folder):
    browser.open(page)
    text = browser.text()
    for table in json.loads((folder / "table1/table1.json").read_text()):
        for cell in table["cells"]:
            if cell["estimate"]:
                shown = "{mean:.1f} [{low:.1f}, {high:.1f}]".format_map(cell["estimate"])
                assert shown in text
            if cell["paper"] is not None:
                assert f"paper {cell['paper']:.1f}" in text
    assert "Co-evolving > ETO on <b>WebShop</b>" in text and "12 seeds & more" in text
    assert "failure_failure" in text
    provenance = json.loads((folder / "table1/provenance.json").read_text())
    assert provenance["commit"] in text and f"torch {provenance['versions']['torch']}" in text
    assert re.search(r"\d+ evaluate, .*\d+ sft, .*\d+ train", text), "every job that the products rest on"
    assert "WebShop (catalogue" in text


def test_rows_and_columns_are_in_the_papers_order(browser, page, made):
    browser.open(page)
    paper = claims.load(made / "configs/claims.yaml")
    rows = browser.run("[...document.querySelectorAll('tbody')][1].innerText")
    places = [rows.index(row.label) for row in paper.rows.values()]
    assert places == sorted(places)


def test_a_number_links_to_its_episodes(browser, page):
    browser.open(page)
    address = browser.run("[...document.querySelectorAll('td a')].find((a) => a.hash.includes('coevolve')).href")
    assert "method=coevolve&env=webshop&iteration=1&part=eval&split=test" in address
    browser.run(f"location.href = {json.dumps(address)}")
    browser.until("document.getElementById('count') !== null")
    assert browser.run("document.getElementById('count').innerText").startswith("6 of ")


def test_equal_inputs_give_equal_bytes_without_a_time(make, page):
    assert make() == page.read_text(encoding="utf-8")
    assert not re.search(r"\d\d:\d\d:\d\d", make())


def test_without_verdicts_there_is_no_such_section(make):
    text = make(without=["verdicts.json", "verdicts.md"])
    assert "<h2>Verdicts</h2>" not in text and "<h2>Provenance</h2>" in text


def test_text_of_the_files_is_escaped_and_numbers_stand_beside_the_papers(make, folder):
    text = make()
    assert "Co-evolving &gt; ETO on &lt;b&gt;WebShop&lt;/b&gt;" in text and "12 seeds &amp; more" in text
    cells = json.loads((folder / "table1/table1.json").read_text())[0]["cells"]
    measured = [cell for cell in cells if cell["estimate"] and cell["paper"] is not None]
    assert measured
    for cell in measured:
        shown = '{mean:.1f}</a> <span class="quiet">[{low:.1f}, {high:.1f}]</span>'.format_map(cell["estimate"])
        assert f'{shown}<br><span class="quiet">paper {cell["paper"]:.1f}' in text
