"""`docs/run/agent_data.md` shows the prompts as they are, every reason for a drop, and commands that plan."""

import re
import shlex
import subprocess
import sys

import pytest

from coevolve.methods.task_evolution import prompts
from coevolve.methods.task_evolution.records import FragmentDropReason


@pytest.fixture(scope="module")
def page(root):
    return (root / "docs/run/agent_data.md").read_text()


def test_the_prompts_are_those_of_the_module(page):
    shown = dict(re.findall(r"```text ([A-Z_]+)\n(.*?)\n```", page, re.DOTALL))
    names = {name for name, value in vars(prompts).items() if name.isupper() and isinstance(value, str)}
    assert shown == {name: getattr(prompts, name).strip() for name in names}


def test_every_reason_for_a_drop_is_explained(page):
    assert {reason.value for reason in FragmentDropReason} <= set(re.findall(r"`(\w+)`", page))


def test_the_commands_plan(page, root):
    (block,) = re.findall(r"```console\n(.*?)```", page, re.DOTALL)
    for command in block.splitlines():
        done = subprocess.run(
            [sys.executable, "-m", *shlex.split(command)], cwd=root, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        assert re.search("grpo.round", done.stdout + done.stderr)
