"""The page about reading results is true: its commands and its Python run."""

import contextlib
import json
import re
import shlex
import subprocess
import sys

import pytest


@pytest.fixture(scope="module")
def page(root):
    return (root / "docs/read/reading.md").read_text().replace("smoke", "glance")


def test_the_commands_answer(page, made):
    commands = [line for block in re.findall(r"```console\n(.*?)```", page, re.DOTALL) for line in block.splitlines()]
    assert len(commands) == 6
    answers = [run(made, *shlex.split(command)[1:]) for command in commands]
    assert "table1: Co-evolving, WebShop\n" in answers[0]
    assert answers[1].endswith("all as they were\n")
    assert answers[2].startswith("{") and '"broken":[]' in answers[2]
    assert " 0 differ, 0 could not be checked; " in answers[3].splitlines()[-1]
    assert {each["status"] for each in json.loads(answers[4])["files"]} == {"same"}
    assert (made / "results/glance/view/index.html").is_file()


def test_the_python_runs(page, made):
    names = {}
    with contextlib.chdir(made):
        blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
        for block in blocks:
            exec(compile(block, "docs/read/reading.md", "exec"), names)
    assert len(blocks) == 1


def run(folder, *arguments):
    done = ask(folder, *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_broken_chain_is_an_exit_status_of_one(made):
    path = made / "results/glance/tiny/webshop/eto/seed0/iter1/eval/records.jsonl"
    before = path.read_bytes()
    path.write_bytes(before.replace(b'"reward":0.0', b'"reward":1.0', 1))
    done = ask(made, "why", "--suite", "glance", "eto webshop")
    path.write_bytes(before)
    assert done.returncode == 1
    assert done.stdout.splitlines()[-1].startswith(
        "results/glance/tiny/webshop/eto/seed0/iter1/eval/records.jsonl is not"
    )


def test_an_unknown_cell_is_one_sentence(made):
    done = ask(made, "why", "--suite", "glance", "nothing of the kind")
    assert done.returncode == 2
    assert done.stderr.startswith("coevolve: `nothing of the kind` fits no cell")
    assert len(done.stderr.splitlines()) == 1


def ask(folder, *arguments):
    command = [sys.executable, "-m", "coevolve", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
