"""`coevolve status` on the results of a whole run that another process made without Snakemake."""

import contextlib
import os
import shutil
import time
from pathlib import Path

import pytest

from coevolve import cli
from coevolve.config.suite import load_suite
from coevolve.storage.files import ProcessLock
from coevolve.workflow import status
from coevolve.workflow.plan import Plan
from coevolve.workflow.run_record import RunRecord
from coevolve.workflow.stage_table import load_machine
from coevolve.workflow.status import JobState, SuiteState

ITERATION = "results/glance/tiny/webshop/eto/seed0/iter1"


@pytest.fixture
def suite(made, tmp_path):
    """A copy of the finished run; tests change it in the current folder."""
    folder = shutil.copytree(made, tmp_path / "run", symlinks=True)
    with contextlib.chdir(folder):
        yield Plan(load_suite("configs/glance.yaml"))


def changed(plan: Plan, record: RunRecord | None = None) -> dict[str, str]:
    """The jobs that are not done by stage, with their states and texts."""
    state = SuiteState.of(plan, record, "glance")
    jobs = {state.jobs[key][0]: job for key, job in state.states().items() if job.state is not JobState.DONE}
    return {stage: f"{job.state}: {job.text}".removesuffix(": ") for stage, job in jobs.items()}


def printed(capsys, expected: int) -> list[str]:
    with pytest.raises(SystemExit) as ended:
        cli.main(["status", "configs/glance.yaml"])
    assert ended.value.code == expected
    return capsys.readouterr().out.splitlines()


def run_of(plan: Plan, stages: set[str], started: float) -> RunRecord:
    """A run that has to make the jobs of some stages."""
    jobs = list(plan.jobs())
    todo = [number for number, (stage, _) in enumerate(jobs) if stage in stages]
    command = "snakemake --profile smoke --config suite=glance -- table1"
    settings = {"machine": "cpu", "overrides": [], "cluster": False, "slots": 2}
    return RunRecord(command=command, started=started, jobs=jobs, todo=todo, **settings)


def test_jobs_of_a_method_that_is_no_more_are_left_out(suite):
    """A run is asked about after its method was renamed."""
    record = run_of(suite, set(), 0.0)
    stage, wildcards = next(job for job in record.jobs if job[1].get("branch", "").startswith("eto/"))
    gone = (stage, {**wildcards, "branch": wildcards["branch"].replace("eto", "mine")})
    assert suite.has_job(stage, wildcards) and not suite.has_job(*gone)
    assert changed(suite, record.model_copy(update={"jobs": [*record.jobs, gone]})) == {}


def test_a_finished_suite_is_done(suite, capsys):
    total = len(list(suite.jobs()))
    assert printed(capsys, 0) == [
        f"Suite glance: {total} of {total} jobs are done.",
        "Report page: results/glance/paper/page/report.html",
    ]


def test_deleted_and_edited_results_are_named_producers_first(suite, capsys):
    """No reader has to be made again, so Snakemake would find nothing to do."""
    Path(f"{ITERATION}/policy/target/model.safetensors").unlink()
    shutil.rmtree(next(Path(f"{ITERATION}/pairs").glob("target")))
    with Path("results/glance/data/webshop/experts.jsonl").open("a") as file:
        file.write("\n")
    Path("results/glance/paper/figure3/figure3.json").touch()  # newer, with the same bytes
    counts, *lines, _ = printed(capsys, 1)
    assert counts.endswith("jobs are done, 3 changed.")
    eto = "CHANGED  WebShop · ETO · seed 0 · iteration 1 ·"
    edited = "results/glance/data/webshop/experts.jsonl: the file was changed after its stage made it"
    assert lines[::2] == [
        f"CHANGED  WebShop · data: {edited}",
        f"{eto} pairs target: {ITERATION}/pairs/target/summary.json: the file was deleted",
        f"{eto} train target: {ITERATION}/policy/target/model.safetensors: the file was deleted",
    ]
    folder = f"{ITERATION}/policy/target"
    fix = f"rm -rf {folder} && snakemake --profile PROFILE --config suite=configs/glance.yaml -- {folder}/policy.json"
    assert lines[-1] == f"         to make it again: {fix}"


def test_without_a_run_no_time_is_estimated_and_no_profile_is_guessed(suite, capsys):
    shutil.rmtree("results/glance/paper/page")
    counts, last = printed(capsys, 0)
    assert counts.endswith("jobs are done, 1 to do.")
    assert last == "No run yet; `coevolve plan --suite configs/glance.yaml --machine MACHINE` estimates its hours."


def test_an_edited_setting_leaves_its_readers_and_what_follows_to_do(suite):
    assert changed(Plan(load_suite("configs/glance.yaml", ["report.bootstrap=99"]))).keys() >= {"table1", "page"}
    todo = changed(Plan(load_suite("configs/glance.yaml", ["dpo.max_grad_norm=0.5"])))
    assert {"train", "evaluate", "table1", "page"} <= todo.keys() and set(todo.values()) == {"to do"}
    assert not {"data", "sft", "pretrain", "rollout"} & todo.keys()


def test_states_of_a_run_that_goes_on(suite, capsys):
    """The run has to make two products; its scheduler and one of the jobs hold their locks."""
    for name in ("table1", "figure3"):
        shutil.rmtree(f"results/glance/paper/{name}")
    now = time.time()
    run = run_of(suite, {"table1", "figure3", "page"}, started=now - 30)
    log = Path("results/glance/logs/table1.log")
    log.parent.mkdir(exist_ok=True)
    log.write_text("coevolve: an error of a run before.\n")
    os.utime(log, (now - 60, now - 60))
    scheduler = ProcessLock(Path("results/glance/.lock"))
    job = ProcessLock(Path("results/glance/paper/.work-figure3/lock"))
    assert scheduler.acquire() and job.acquire()
    Path("results/glance/paper/.work-table1").mkdir()  # killed in the run before
    assert changed(suite, run) == {"figure3": "running", "table1": "to do", "page": "to do"}
    Path("results/glance/paper/.work-table1").rmdir()
    run.write("results/glance")
    total = len(run.jobs)
    counts, running = printed(capsys, 0)
    assert counts.startswith(f"Suite glance: {total - 3} of {total} jobs are done, 1 running, 2 to do; about ")
    assert running.startswith("running  figure3  0:0")
    Path("results/glance/logs/figure3.log").write_text(
        "Loading\n12:00:00 episodes 64/108, reward 0.087, 10:05:21 left\n"
    )
    assert printed(capsys, 0)[1].endswith("  episodes 64/108, reward 0.087, 10:05:21 left")
    log.write_text("12:00:00 begun\ncoevolve: x.json: no such file; run its stage.\n")
    assert changed(suite, run)["table1"] == "failed: x.json: no such file; run its stage."
    job.release()
    scheduler.release()
    assert changed(suite, run)["figure3"] == "stopped"
    lines = printed(capsys, 1)[1:]
    assert lines == [
        "FAILED   table1: x.json: no such file; run its stage.",
        "         log: results/glance/logs/table1.log",
        "stopped  figure3: it was ended, and left no error.",
        "         log: results/glance/logs/figure3.log",
        f"No run is active; to continue: {run.command}",
    ]


def test_jobs_of_the_last_run_are_counted_alone(suite):
    part = run_of(suite, set(), started=0.0)
    part = part.model_copy(update={"jobs": [job for job in part.jobs if job[0] in ("data", "prepare")]})
    shutil.rmtree("results/glance/paper/table1")
    lines = list(status.text(SuiteState.of(suite, part, "glance"), load_machine("cpu")))
    total = len(list(suite.jobs()))
    assert lines[0] == "Suite glance: 2 of 2 jobs are done."
    assert lines[1].startswith("These are the jobs of the last run; of the whole suite ")
    assert lines[1].endswith(f" of {total} are done.")


def test_without_a_suite_it_says_how_to_name_one(capsys):
    with pytest.raises(SystemExit):
        cli.main(["status"])
    assert capsys.readouterr().err == "coevolve: which suite? Write `coevolve status SUITE`.\n"
