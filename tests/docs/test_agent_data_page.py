"""`docs/run/agent_data.md` shows the prompts as they are, every reason for a drop, and commands that plan."""

import re

import pytest

from coevolve.methods.task_evolution import prompts
from coevolve.methods.task_evolution.records import FragmentDropReason


@pytest.fixture(scope="module")
def page(read):
    return read("agent_data")


def test_the_prompts_are_those_of_the_module(page):
    shown = dict(re.findall(r"```text ([A-Z_]+)\n(.*?)\n```", page.text, re.DOTALL))
    names = {name for name, value in vars(prompts).items() if name.isupper() and isinstance(value, str)}
    assert shown == {name: getattr(prompts, name).strip() for name in names}


def test_every_reason_for_a_drop_is_explained(page):
    assert {reason.value for reason in FragmentDropReason} <= set(re.findall(r"`(\w+)`", page.text))


def test_the_commands_plan(page, kit):
    for command in page.commands:
        assert re.search("grpo.round", kit.shell(f"{command} 2>&1"))
