"""`docs/run/agent_data.md` explains every reason for a drop, and its commands plan."""

import re

import pytest

from coevolve.agent_data.records import FragmentDropReason


@pytest.fixture(scope="module")
def page(read):
    return read("agent_data")


def test_every_reason_for_a_drop_is_explained(page):
    assert {reason.value for reason in FragmentDropReason} <= set(re.findall(r"`(\w+)`", page.text))


def test_the_commands_plan(page, kit, console, monkeypatch):
    monkeypatch.chdir(kit.folder)
    for command in page.commands:
        printed = console(command) if command.startswith("coevolve ") else kit.shell(f"{command} 2>&1")
        assert re.search("grpo.round", printed)
