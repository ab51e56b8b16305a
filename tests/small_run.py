"""A suite of seconds, really run without Snakemake: WebShop, which needs only Python, and a very small policy."""

import contextlib
import shutil
from pathlib import Path

from command_line import exit_status

from coevolve.config.loading import load_suite
from coevolve.config.restriction import part_of
from coevolve.pipeline.job import Job
from coevolve.pipeline.job_file import JobFile, planned_file
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


def make(plan, path):
    """Run the jobs that `path` needs, as the DAG would, in the current folder."""
    job = plan.job(path)
    if job is None or Path(path).exists():
        return
    for needed in files_of(job.inputs):
        make(plan, needed)
    run_job(plan, job)


def run_job(plan, job, out=None):
    """Run one job from its file in this process, in the current folder, as the DAG does.

    With `out` as a person does: its inputs need no provenance.
    """
    file = planned_file(job)
    JobFile.of(plan, job, out=out).write(file)
    assert exit_status("job", file) == 0, file


def job_of(plan, planned, work, inputs=None):
    """What a planned job gives to the `run` of its stage, with other inputs where some are given."""
    file = JobFile.of(plan, planned, inputs, work)
    return Job(
        stage=file.stage,
        suite=part_of(file.settings),
        inputs={name: [Path(path) for path in paths] for name, paths in file.inputs.items()},
        wildcards=file.wildcards,
        work=work,
        threads=1,
        results=file.results,
        devices=file.vllm,
        branch=file.branch,
    )
