"""The tables of the committed results' page are what `docs/reference_page.py` makes from their files."""

import re

from docs import front_page, reference_page  # the repository is on the path (pyproject.toml)


def test_the_page_is_what_the_script_writes():
    text = reference_page.PAGE.read_text()
    assert front_page.fill(text, reference_page.blocks()) == text, "run `python -m docs.reference_page`"
    emptied = re.sub(r"(<!-- \w+ -->\n).*?(<!-- end -->)", r"\1\2", text, flags=re.DOTALL)
    assert emptied != text and front_page.fill(emptied, reference_page.blocks()) == text


def test_no_table_is_typed_by_hand():
    marked = re.sub(r"<!-- \w+ -->\n.*?<!-- end -->", "", reference_page.PAGE.read_text(), flags=re.DOTALL)
    assert not re.findall(r"^\|", marked, re.MULTILINE)


def test_every_folder_of_results_is_on_the_page():
    folders = {path.name for path in front_page.REFERENCE.iterdir() if path.is_dir()}
    described = set(re.findall(r"^`(\w+)/`:", reference_page.PAGE.read_text(), re.MULTILINE))
    assert described == folders
