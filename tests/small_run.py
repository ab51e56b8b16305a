"""A suite of seconds, really run without Snakemake: WebShop, which needs only Python, and a very small policy."""

import contextlib
import shutil
from pathlib import Path

from command_line import exit_status, stage_command

from coevolve.config.loading import load_suite
from coevolve.pipeline.layout import UNDIVIDED
from coevolve.pipeline.plan import Plan
from coevolve.pipeline.stage import files_of

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
gradients: {pairs: 3}
"""


def run_suite(root, folder):
    """Run the whole suite `glance` in a folder, which then has `configs` and `results`."""
    shutil.copytree(root / "configs", folder / "configs")
    (folder / "data").symlink_to(root / "data")
    (folder / "configs/glance.yaml").write_text(SUITE)
    with contextlib.chdir(folder):
        plan = Plan(load_suite("configs/glance.yaml"))
        for target in plan.targets():
            make(plan, target)


def make(plan, path, suite="glance"):
    """Run the stages that `path` needs, as the DAG would, in the current folder."""
    job = plan.maker(path)
    if job is None or Path(path).exists():
        return
    for needed in files_of(plan.inputs(*job)):
        make(plan, needed, suite)
    run_job(plan, job, suite)


def machine(plan):
    """The option for a machine that divides rollouts and evaluations as the plan does."""
    if plan.shards == UNDIVIDED:
        return []
    cpu = Path(__file__).parents[1] / "configs/machines/cpu.yaml"
    Path("divided.yaml").write_text(f"extends: {cpu}\nshards: {plan.shards.model_dump_json()}\n")
    return ["--machine", "./divided.yaml"]


def run_job(plan, job, suite="glance"):
    """Run one job in this process, in the current folder."""
    command = stage_command(job, suite, plan.folder(*job), options=machine(plan))
    assert exit_status(*command) == 0, command
