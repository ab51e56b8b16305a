"""A job as a file: it has all that the process needs, which loads no suite and plans nothing."""

import dataclasses
import json
import subprocess
import sys

import pytest

from coevolve.config.loading import load_suite
from coevolve.config.restriction import as_dict, part_of, whole
from coevolve.errors import UserError
from coevolve.pipeline.job_file import JobFile, planned_file
from coevolve.pipeline.machine import load_machine
from coevolve.pipeline.plan import Plan
from coevolve.pipeline.stage import Stage, results_by_name


@pytest.mark.parametrize("machine", ["cpu", "h100"])
@pytest.mark.parametrize("suite", ["smoke", "smoke_methods", "smoke_agent_data", "paper"])
def test_a_file_has_the_settings_inputs_and_keys_of_its_job(suite, machine):
    """The digest leaves out what is about a machine, such as a number of workers; the file does not."""
    on = load_machine(machine)
    plan = Plan(load_suite(suite), shards=on.shards, vllm=on.vllm)
    jobs = plan.jobs()
    assert len(jobs) > 40
    for job in jobs:
        planned = JobFile.of(plan, job)
        read = JobFile.from_json(planned.to_json())
        settings = part_of(read.settings)
        assert as_dict(settings) == as_dict(plan.settings(job)) and whole(settings) == whole(plan.settings(job))
        assert read.results == results_by_name(job.inputs) and read.inputs == planned.inputs
        assert (read.out, read.vllm, read.fingerprint) == (job.folder, on.vllm, plan.fingerprint(job))


def test_settings_that_a_job_does_not_declare_are_not_there():
    plan = Plan(load_suite("smoke"))
    job = next(job for job in plan.jobs() if job.stage.name == "pairs")
    settings = part_of(JobFile.of(plan, job).settings)
    assert {*settings.recipes} == {job.subject.branch.method}
    with pytest.raises(AttributeError):
        _ = settings.rollout


def test_the_process_of_a_job_plans_nothing(tmp_path, root):
    """Neither the suite's files nor the loops that make jobs are imported, before the job reads its first input."""
    plan = Plan(load_suite("smoke"), root=str(tmp_path))
    job = next(job for job in plan.jobs() if job.stage.name == "pairs")
    JobFile.of(plan, job).write(file := planned_file(job))
    code = f"""
import sys
from coevolve.cli import main
try:
    main(["job", {str(file)!r}])
except SystemExit as ended:
    print(ended.code, sorted(name for name in sys.modules if name.startswith("coevolve.")))
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True)
    assert f"{job.inputs['tasks']}: input `tasks` does not exist; run the stage that makes it." in done.stderr
    assert done.stdout.startswith("2 ")
    for module in ("pipeline.plan", "pipeline.paper", "pipeline.registry", "config.loading", "train.trainer", "report"):
        assert f"'coevolve.{module}'" not in done.stdout


def test_a_file_of_other_code_is_a_sentence(tmp_path):
    plan = Plan(load_suite("smoke"), root=str(tmp_path))
    (job,) = (job for job in plan.jobs() if job.stage.name == "figure2")
    file = planned_file(job)
    JobFile.of(plan, job).write(file)
    content = json.loads(file.read_text()) | {"unknown": 1}
    file.write_text(json.dumps(content))
    with pytest.raises(UserError, match=r"figure2\.json: not a job of this version of the kit; run the same snakemake"):
        JobFile.read(file)


def test_a_stage_has_at_most_ten_fields():
    assert len(dataclasses.fields(Stage)) <= 10
