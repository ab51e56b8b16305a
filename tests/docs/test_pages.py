"""All pages: the index names each, links lead somewhere, and pages that say they are run are read by a test."""

import importlib
import re
import subprocess
import tomllib

import pytest


@pytest.fixture(scope="module")
def pages(root):
    return {path.name: path.read_text() for path in sorted((root / "docs").rglob("*.md"))}


def test_the_index_names_every_page_once(pages):
    listed = re.findall(r"^\| \[(\w+\.md)\]\(\w+/\1\)", pages["README.md"], re.MULTILINE)
    assert sorted(listed) == sorted(set(pages) - {"README.md"})


def words(text):
    """The number of words, without the tables that a program writes."""
    return len(re.sub(r"<!-- \w+ -->\n(?:(?!<!-- end).*\n)*<!-- end -->", "", text).split())


def test_the_pages_can_be_read(pages, root):
    """Who adds to a page says it once, or takes something away."""
    readme, contributing = (words((root / name).read_text()) for name in ("README.md", "CONTRIBUTING.md"))
    assert words("<!-- a -->\n| 1 |\n<!-- end -->\ntwo words") == 2
    assert readme <= 900 and contributing <= 2000
    assert readme + sum(map(words, pages.values())) <= 22000


def test_the_table_of_extras_names_each(pages, root):
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    extras = re.findall(r"^\| `([\w-]+)` \|", pages["installing.md"], re.MULTILINE)
    assert sorted(extras) == sorted(project["optional-dependencies"])


def anchor(heading):
    """The anchor that GitHub gives a heading."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def test_links_lead_to_files_and_headings(root):
    listed = subprocess.run(["git", "ls-files", "*.md"], cwd=root, capture_output=True, text=True, check=False)
    names = listed.stdout.split() or [path.relative_to(root).as_posix() for path in (root / "docs").rglob("*.md")]
    dead, checked = [], 0
    for path in (root / name for name in names):
        for target, heading in re.findall(r"\]\(([^)#:\s]*)(?:#([^)\s]+))?\)", path.read_text()):
            checked += 1
            file = path.parent / target if target else path
            headings = re.findall(r"^#+ (.+)$", file.read_text(), re.MULTILINE) if heading and file.is_file() else []
            if not file.exists() or (heading and file.suffix == ".md" and heading not in map(anchor, headings)):
                dead.append((path.relative_to(root).as_posix(), target, heading))
    assert checked > 50
    assert dead == []


def test_what_is_said_to_be_run_is_read_by_a_test(pages, root):
    tests = "".join(path.read_text() for path in (root / "tests").rglob("test_*.py"))
    starred = re.findall(r"^\| \[(\w+)\.md\]\S+ \*", pages["README.md"], re.MULTILINE)
    assert len(starred) == 17
    assert [name for name in starred if f'/{name}.md"' not in tests and f'read("{name}")' not in tests] == []


def test_the_interfaces_that_the_site_shows_have_docstrings(pages):
    named = re.findall(r"^::: (coevolve[\w.]+)\.(\w+)$", pages["api.md"], re.MULTILINE)
    assert {"Env", "Policy", "pair", "pair_losses"} <= {name for _, name in named}
    assert pages["api.md"].count("\n:::") == len(named)
    assert [name for module, name in named if not getattr(importlib.import_module(module), name).__doc__] == []
