"""The page about endpoints is true: its suite runs, by its commands, against a server on this machine."""

import re
import subprocess

import pytest
from checkout import copy_of, environment
from policies.chatserver import MODEL, serving
from stages.test_in_context import PLAYER

pytestmark = pytest.mark.timeout(300)


def test_the_commands_and_the_suite_run(root, tmp_path):
    page = (root / "docs/extend/endpoints.md").read_text()
    repo = copy_of(root, tmp_path / "repo")
    (suite,) = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    assert f"model: {MODEL}" in suite
    (repo / "configs/asked.yaml").write_text(suite)
    commands = "".join(re.findall(r"```console\n(.*?)```", page, re.DOTALL))
    with serving(PLAYER, count=lambda messages: 10 * len(messages), key="any-word") as server:
        commands = commands.replace("http://127.0.0.1:8000/v1", server.url)
        command = ["bash", "-ec", commands]
        done = subprocess.run(command, cwd=repo, env=environment(repo), capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    tokens = sum(10 * len(body["messages"]) for body in server.bodies)
    assert float(done.stdout.split()[-1]) == pytest.approx(tokens * 0.5 / 1e6)
    assert "| In context " in (repo / "results/asked/paper/table1/table1.md").read_text()
