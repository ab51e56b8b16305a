"""A suite of seconds, really run: WebShop, which needs nothing beside Python, and a very small policy."""

import contextlib
import shlex
import shutil
from pathlib import Path

import pytest
from report.view.chromium import Browser

from coevolve import cli
from coevolve.config.suite import load_suite
from coevolve.workflow.plan import Plan

SUITE = """
extends: [small.yaml, envs/webshop-small.yaml]
suite: glance
iterations: {webshop: 1}
envs:
  webshop:
    tasks: {sft: 6, explore: 4, evaluate: 3}
    workers: 2
models:
  tiny:
    context: 512
    tiny: {vocab_size: 420, hidden_size: 32, layers: 1, heads: 2, intermediate_size: 64}
    pretrain: {epochs: 4, batch_size: 4}
sft: {epochs: 4, batch_size: 4}
dpo: {epochs: 1, batch_size: 4}
rollout: {max_new_tokens: 24}
report: {bootstrap: 100}
"""


@pytest.fixture(scope="session")
def made(root, tmp_path_factory):
    """A folder in which the whole suite `glance` was run, with `configs` and `results`."""
    folder = tmp_path_factory.mktemp("made")
    shutil.copytree(root / "configs", folder / "configs")
    (folder / "data").symlink_to(root / "data")
    (folder / "configs/glance.yaml").write_text(SUITE)
    with contextlib.chdir(folder):
        plan = Plan(load_suite("configs/glance.yaml"))
        for target in plan.targets():
            make(plan, target)
    return folder


@pytest.fixture(scope="session")
def browser(tmp_path_factory):
    """A browser, where there is one."""
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if program is None:
        pytest.skip("no chromium on this machine (Debian: apt-get install chromium): its pages are not opened")
    one = Browser(program, tmp_path_factory.mktemp("profile"))
    yield one
    one.close()


def make(plan, path):
    """Run the stages that `path` needs, as the DAG would."""
    job = plan.maker(path)
    if job is None or Path(path).exists():
        return
    for needed in plan.inputs(*job).values():
        for one in [needed] if isinstance(needed, str) else needed:
            make(plan, one)
    command = ["stage", job[0], "--suite", "glance", *shlex.split(plan.arguments(*job))]
    with pytest.raises(SystemExit) as ended:
        cli.main(command)
    assert ended.value.code == 0, command
