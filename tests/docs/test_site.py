"""The pages as a site: every link leads somewhere, nothing comes from a network, and code has the pages' structure."""

import json
import os
import re
import subprocess
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import pytest
from checkout import copy_of
from markdown_it import MarkdownIt
from web_server import served

pytestmark = pytest.mark.slow
GROUPS = ("Run", "Read and publish results", "Extend", "Environments")
COUNTED = {"li", "pre", "table", "tr", "h1", "h2", "h3", "h4", "img"}


class Parsed(HTMLParser):
    """Links, loaded files, anchors, and counts of the tags in a text or in the article of a page."""

    def __init__(self, text, inside=False):
        super().__init__()
        self.links, self.loaded, self.anchors, self.counts, self._inside = [], [], set(), Counter(), inside
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        values = dict(attrs)
        self._inside |= tag == "article"
        self.anchors.add(values.get("id"))
        self.counts[tag] += self._inside and tag in COUNTED
        if tag in ("a", "area") and "href" in values:
            self.links.append(values["href"])
        elif tag in ("script", "img", "iframe") and "src" in values:
            self.loaded.append(values["src"])
        elif tag == "link" and values.get("rel") in ("stylesheet", "preload", "icon", "preconnect"):
            self.loaded.append(values["href"])

    def handle_endtag(self, tag):
        self._inside &= tag != "article"


def build(python, root, site):
    """The finished process of a build as `make docs` does it."""
    command = [python.path, "-m", "mkdocs", "build", "--strict", "--site-dir", site]
    quiet = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    return subprocess.run(command, cwd=root, env=quiet, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def python(other_environment):
    return other_environment("docs")


@pytest.fixture(scope="module")
def site(root, python, tmp_path_factory):
    folder = tmp_path_factory.mktemp("docs") / "site"
    done = build(python, root, folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture(scope="module")
def parsed(site):
    return {path: Parsed(path.read_text()) for path in sorted(site.rglob("*.html"))}


def html(page: Path) -> str:
    """The site's file of a page, whose path is below docs/."""
    return "pages.html" if page.stem == "README" else page.with_suffix(".html").as_posix()


def test_every_page_is_in_the_site_and_every_link_leads_somewhere(site, parsed, root):
    pages = {html(path.relative_to(root / "docs")) for path in (root / "docs").rglob("*.md")}
    assert pages <= {path.relative_to(site).as_posix() for path in site.rglob("*.html")}
    assert [path for path in site.rglob("*.py*") if path.suffix != ".html"] == []
    dead, checked = [], 0
    for path in parsed:
        if path.is_relative_to(site / "source/results") or path.name == "404.html":
            continue  # a copied report page has tests of its own
        for link in parsed[path].links:
            name, _, anchor = unquote(link).partition("#")
            if re.match(r"\w+:", name):
                continue
            checked += 1
            goal = path if not name else Path(os.path.normpath(path.parent / name))
            known = parsed[goal].anchors if anchor and goal in parsed else {anchor}
            dead += [(path.name, link)] * (not goal.is_file() or (anchor not in known and not anchor.startswith("__")))
    assert checked > 1000 and dead == []
    assert "hard_negative" in (site / "source/configs/claims.yaml.html").read_text()


def test_nothing_is_loaded_from_a_network(parsed):
    assert [url for page in parsed.values() for url in page.loaded if re.match(r"(\w+:)?//", url)] == []


def test_the_pages_have_the_structure_that_commonmark_gives_them(site, root):
    markdown = MarkdownIt("gfm-like", {"linkify": False})
    different = {}
    pages = {html(path.relative_to(root / "docs")): path for path in sorted((root / "docs").rglob("*.md"))}
    for name, path in (pages | {"index.html": root / "README.md"}).items():
        shown = Parsed((site / name).read_text()).counts
        written = Parsed(markdown.render(path.read_text()), inside=True).counts
        if shown != written and path.stem != "api":
            different[name] = (written - shown, shown - written)
    assert different == {}


def test_the_navigation_has_the_readme_four_groups_and_the_results(site, parsed):
    home = (site / "index.html").read_text()
    titles = re.findall(r'<span class="md-ellipsis">\s*(.+?)\s*</span>', home)
    assert [title for title in titles if title in GROUPS] == list(GROUPS)
    assert "<h1" in home and "to reproduce <em>Co-Evolving Agents" in home
    assert "source/results/reference/index.html" in parsed[site / "index.html"].links
    index = json.loads((site / "search/search_index.json").read_text())
    found = {entry["location"].partition("#")[0] for entry in index["docs"]}
    assert "source/results/reference/science.html" in found and "source/configs/claims.yaml.html" not in found


def test_the_page_of_interfaces_has_docstrings_and_signatures(site):
    text = re.sub(r"<[^>]+>", "", (site / "extend/api.html").read_text())
    assert "One episode at a time, history-free" in text
    assert re.search(r"step\(action: str \| None\)\s+-&gt;\s+StepResult", text)
    assert "with weights (1, 0) it is eq. 7" in text and "lambda_dpo: Tensor" in text


def test_a_reader_finds_an_interface_by_its_name(site, browser):
    with served(site) as address:
        browser.visit(f"{address}/index.html?q=StepResult")
        goal = "extend/api.html?h=stepresult#coevolve.envs.base.StepResult"
        browser.until(f"[...document.links].some((link) => link.href.endsWith({json.dumps(goal)}))")
        assert [url for url in browser.requests() if not url.startswith((address, "data:", "blob:"))] == []
        assert browser.complaints() == []


def test_a_dead_link_ends_the_build(root, tmp_path, python):
    links = ("[a page](nowhere.md)", "[a setting](../../configs/nowhere.yaml)", "[a heading](training.md#nowhere)")
    complaints = ("nowhere.md", "../../configs/nowhere.yaml", "#nowhere")
    repo = copy_of(root, tmp_path / "repo")
    page = repo / "docs/run/reuse.md"
    text = page.read_text()
    for lines, names in ((links, complaints), (["::: coevolve.records.Nowhere"], ["coevolve.records.Nowhere"])):
        page.write_text("\n\n".join([text, *lines]))
        done = build(python, repo, tmp_path / "site")
        assert done.returncode != 0
        assert [name for name in names if name not in done.stdout + done.stderr] == []
