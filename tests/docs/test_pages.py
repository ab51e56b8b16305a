"""All pages: the index names each, links lead somewhere, and pages that say they are run are read by a test."""

import re
import tomllib

import pytest


@pytest.fixture(scope="module")
def pages(root):
    return {path.name: path.read_text() for path in sorted((root / "docs").glob("*.md"))}


def test_the_index_names_every_page_once(pages):
    listed = re.findall(r"^\| \[(\w+\.md)\]\(\1\)", pages["README.md"], re.MULTILINE)
    assert sorted(listed) == sorted(set(pages) - {"README.md"})


def test_the_table_of_extras_names_each(pages, root):
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    extras = re.findall(r"^\| `([\w-]+)` \|", pages["installing.md"], re.MULTILINE)
    assert sorted(extras) == sorted(project["optional-dependencies"])


def test_links_lead_to_files(pages, root):
    links = [(name, link) for name, text in pages.items() for link in re.findall(r"\]\(([^)#:]+)\)", text)]
    assert links
    assert [(name, link) for name, link in links if not (root / "docs" / link).exists()] == []


def test_what_is_said_to_be_run_is_read_by_a_test(pages, root):
    tests = "".join(path.read_text() for path in (root / "tests").rglob("test_*.py"))
    starred = re.findall(r"^\| \[(\w+)\.md\]\S+ \*", pages["README.md"], re.MULTILINE)
    assert len(starred) == 14
    assert [name for name in starred if f'"docs/{name}.md"' not in tests and f'read("{name}")' not in tests] == []
