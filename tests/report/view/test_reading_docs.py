"""The page about reading results is true: its commands run."""

import json
import re
import shlex

import pytest


@pytest.fixture(scope="module")
def page(root):
    return (root / "docs/read/reading.md").read_text().replace("smoke", "glance")


def test_the_commands_answer(page, made, monkeypatch, coevolve):
    commands = [line for block in re.findall(r"```console\n(.*?)```", page, re.DOTALL) for line in block.splitlines()]
    assert len(commands) == 6
    monkeypatch.chdir(made)
    done = [coevolve(*shlex.split(command)[1:]) for command in commands]
    assert {status for status, *_ in done} == {0}
    answers = [printed for _, printed, _ in done]
    assert "table1: Co-evolving, WebShop\n" in answers[0]
    assert answers[1].endswith("all as they were\n")
    assert answers[2].startswith("{") and '"broken":[]' in answers[2]
    assert " 0 differ, 0 could not be checked; " in answers[3].splitlines()[-1]
    assert {each["status"] for each in json.loads(answers[4])["files"]} == {"same"}
    assert (made / "results/glance/view/index.html").is_file()
