"""The metadata of a release agree, and its steps in CONTRIBUTING name only commands and files that exist."""

import json
import re
import tomllib

import pytest
import yaml

import coevolve


@pytest.fixture(scope="module")
def project(root):
    return tomllib.loads((root / "pyproject.toml").read_text())["project"]


def test_version_licence_and_title_are_the_same_in_all_metadata(root, project):
    citation = yaml.safe_load((root / "CITATION.cff").read_text())
    zenodo = json.loads((root / ".zenodo.json").read_text())
    title = f"{project['name']}: {project['description']}"
    expected = (project["version"], project["license"], title)
    assert (citation["version"], citation["license"], citation["title"]) == expected
    assert (zenodo["version"], zenodo["license"], zenodo["title"]) == expected
    assert [author["name"] for author in citation["authors"]] == [creator["name"] for creator in zenodo["creators"]]
    assert citation["abstract"] == zenodo["description"] and citation["keywords"] == zenodo["keywords"]
    assert citation["references"][0]["notes"] == zenodo["related_identifiers"][0]["identifier"]
    assert coevolve.__version__ == project["version"]
    assert f"## {project['version']} (" in (root / "CHANGELOG.md").read_text()
    assert f"{project['name']}-{project['version']}-py3" in (root / "docs/run/installing.md").read_text()


def test_the_steps_name_targets_and_files_that_exist(root):
    text = (root / "CONTRIBUTING.md").read_text().partition("## A release\n")[2]
    made = re.findall(r"`(?:.*&& )?make ([\w-]+)`", text)
    rules = set(re.findall(r"^([\w-]+):", (root / "Makefile").read_text(), re.MULTILINE))
    assert len(made) > 5 and set(made) <= rules
    without_labels = re.sub(r"\[[^]]*\](?=\()", "", text)
    named = re.findall(r"[\w./-]+\.(?:py|toml|cff|json|md)\b", without_labels)
    assert len(named) > 5 and [name for name in named if not (root / name).exists()] == []
