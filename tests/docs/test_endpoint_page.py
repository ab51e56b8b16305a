"""The page about endpoints is true: its suite runs, by its commands, against a server on this machine."""

import pytest
from policies.chatserver import MODEL, serving
from policies.shopper import PLAYER

#: Few tasks are enough for the page's commands.
FEW = """
envs: {webshop: {tasks: {sft: 2, explore: 2, evaluate: 2}}}
"""


def test_the_commands_and_the_suite_run(read, kit):
    page = read("endpoints")
    (suite,) = page.blocks("yaml")
    assert f"model: {MODEL}" in suite
    kit.write("configs/asked.yaml", suite + FEW)
    with serving(PLAYER, count=lambda messages: 10 * len(messages), key="any-word") as server:
        printed = kit.shell("".join(page.blocks("console")).replace("http://127.0.0.1:8000/v1", server.url))
    tokens = sum(10 * len(body["messages"]) for body in server.bodies)
    assert float(printed.split()[-1]) == pytest.approx(tokens * 0.5 / 1e6)
    assert "| In context " in (kit.folder / "results/asked/paper/table1/table1.md").read_text()
