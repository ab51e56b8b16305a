"""`coevolve status` on the results of a whole run that another process made without Snakemake."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace

import pytest
from checkout import heed_ctrl_c
from small_run import make

from coevolve.config.loading import as_overrides, load_suite
from coevolve.config.machine import Shards
from coevolve.config.restriction import as_dict
from coevolve.export import suite_evidence
from coevolve.pipeline.job_file import JobFile, planned_file
from coevolve.pipeline.machine import load_machine
from coevolve.pipeline.plan import Plan
from coevolve.pipeline.run_job import execute
from coevolve.records.provenance import Provenance
from coevolve.storage import policy_dir
from coevolve.storage.locks import ProcessLock
from coevolve.watch import status
from coevolve.watch.run_record import RunRecord
from coevolve.watch.status import JobState, SuiteState

ITERATION = "results/glance/tiny/webshop/eto/seed0/iter1"
#: Settings of a model that its dequantised weights do not depend on, and do.
OTHER_SETTING, OTHER_WEIGHTS = ["models.tiny.context=9"], ["models.tiny.gguf.weights_sha256=three"]


@pytest.fixture
def suite(made, tmp_path):
    """A copy of the finished run; tests change it in the current folder."""
    folder = shutil.copytree(made, tmp_path / "run", symlinks=True)
    with contextlib.chdir(folder):
        yield Plan(load_suite("configs/glance.yaml"))


def changed(plan: Plan, record: RunRecord | None = None) -> dict[str, str]:
    """The jobs that are not done by stage, with their states and texts."""
    state = SuiteState.of(plan, record, "glance")
    jobs = {state.jobs[key].stage.name: job for key, job in state.states().items() if job.state is not JobState.DONE}
    return {stage: f"{job.state}: {job.text}".removesuffix(": ") for stage, job in jobs.items()}


@pytest.fixture
def printed(coevolve):
    """The lines of `coevolve status`, which ends with the expected status."""

    def run(expected: int) -> list[str]:
        status, out, _ = coevolve("status", "configs/glance.yaml")
        assert status == expected
        return out.splitlines()

    return run


def run_of(plan: Plan, stages: set[str], started: float) -> RunRecord:
    """A run that has to make the jobs of some stages."""
    jobs = plan.jobs()
    todo = [number for number, job in enumerate(jobs) if job.stage.name in stages]
    command = "snakemake --profile smoke --config suite=glance -- table1"
    settings = {"machine": "cpu", "overrides": [], "cluster": False, "slots": 2}
    return RunRecord(command=command, started=started, jobs=[job.key for job in jobs], todo=todo, **settings)


@pytest.mark.parametrize(
    ("gone", "another"),
    [
        ("tiny/webshop/mine/seed0/iter1/policy/target", "tiny/webshop/eto/seed0/iter1/policy/target"),
        ("tiny/webshop/eto/seed0/iter1/rollout/failure", "tiny/webshop/base/seed0/rollout/failure"),
        (
            "tiny/webshop/base/untrained/parts/rollout/failure/1of2",
            "tiny/webshop/base/seed0/parts/rollout/failure/1of2",
        ),
        ("paper/teach", None),
        ("tiny/webshop", None),
    ],
    ids=["a method", "an agent", "a part of an agent's", "a stage", "a name"],
)
def test_jobs_of_the_last_run_that_the_suite_no_longer_has_are_left_out(suite, gone, another):
    """A run is asked about after its method was renamed, a row lost its failure agent, or the kit changed."""
    divided = replace(suite, shards=Shards(rollout=2, evaluate=1))
    plan = divided if "/parts/" in gone else suite
    gone = f"{suite.home}/{gone}"
    assert plan.by_key(gone) is None
    assert another is None or plan.by_key(f"{suite.home}/{another}").stage.name in ("train", "rollout", "shard")
    record = run_of(suite, set(), 0.0)
    assert changed(suite, record.model_copy(update={"jobs": [*record.jobs, gone]})) == {}


def test_a_finished_suite_is_done_and_an_edited_setting_leaves_its_readers_and_what_follows_to_do(suite, printed):
    total = len(suite.jobs())
    assert printed(0) == [
        f"Suite glance: {total} of {total} jobs are done.",
        "Report page: results/glance/paper/page/report.html",
    ]
    assert changed(Plan(load_suite("configs/glance.yaml", ["report.confidence=0.9"]))).keys() >= {"table1", "page"}
    todo = changed(Plan(load_suite("configs/glance.yaml", ["dpo.max_grad_norm=0.5"])))
    assert {"train", "evaluate", "table1", "page"} <= todo.keys() and set(todo.values()) == {"to do"}
    assert not {"data", "sft", "pretrain", "rollout"} & todo.keys()


def test_deleted_and_edited_results_are_named_producers_first(suite, printed):
    """No reader has to be made again, so Snakemake would find nothing to do."""
    Path(f"{ITERATION}/policy/target/model.safetensors").unlink()
    shutil.rmtree(next(Path(f"{ITERATION}/pairs").glob("target")))
    with Path("results/glance/data/webshop/experts.jsonl").open("a") as file:
        file.write("\n")
    Path("results/glance/paper/figure3/figure3.json").touch()  # newer, with the same bytes
    counts, *lines, _ = printed(1)
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


def test_unpacked_evidence_was_made_elsewhere(suite, tmp_path, printed):
    """It has no weights and not every file, which nobody deleted."""
    paths = suite_evidence.write(suite, tmp_path / "glance.tar.xz")
    shutil.rmtree("results")
    subprocess.run(["tar", "-xJf", tmp_path / "glance.tar.xz"], check=True)
    jobs, products = len(suite.jobs()), len(suite.products)
    counts, last = printed(0)
    assert counts == f"Suite glance: 0 of {jobs} jobs are done, {jobs - products} made elsewhere, {products} to do."
    assert last.startswith("No run yet; ")
    for path in Path("results").rglob("provenance.json"):  # as another version of the kit wrote it
        path.write_text(json.dumps(json.loads(path.read_text()) | {"code_digest": "0" * 64}))
    assert printed(0)[0] == counts
    (episodes,) = (path for path in paths if path.endswith("base/seed0/rollout/target/episodes.jsonl"))
    with Path(episodes).open("a") as file:
        file.write("\n")
    edited = f"rollout target: {episodes}: the file was changed after its stage made it"
    assert printed(1)[1] == f"CHANGED  WebShop · seed 0 · {edited}"
    make(suite, suite.products["table1"].files[0])
    assert "table1" not in changed(suite), "done here"
    assert changed(Plan(load_suite("configs/glance.yaml", ["dpo.max_grad_norm=0.5"])))["train"] == "to do"


def test_without_a_run_no_time_is_estimated_and_no_profile_is_guessed(suite, printed):
    """And a result that is replaced while it is looked at is to do."""
    state = SuiteState.of(suite, None, "glance")
    shutil.rmtree("results/glance/paper/page")
    states = {state.jobs[key].stage.name: job.state for key, job in state.states().items()}
    assert states["page"] is JobState.TODO and states["figure3"] is JobState.DONE
    counts, last = printed(0)
    assert counts.endswith("jobs are done, 1 to do.")
    assert last == "No run yet; `coevolve plan --suite configs/glance.yaml` estimates its hours."


def test_a_result_whose_provenance_cannot_be_read_is_to_do(suite, coevolve):
    """Damaged, or of another version of the kit; the next commands neither call it done nor end in a traceback."""
    Path("results/glance/paper/table1/provenance.json").write_text('{"stage": "ta')
    assert changed(suite) == {"table1": "to do", "page": "to do"}
    status, out, _ = coevolve("plan", "--suite", "configs/glance.yaml", "--machine", "cpu")
    assert status == 0 and "| all " in out


def test_an_edited_file_from_outside_leaves_its_readers_and_what_follows_to_do(suite):
    Path("configs/claims.yaml").touch()
    assert changed(suite) == {}, "newer, with the same bytes"
    with Path("configs/claims.yaml").open("a") as file:
        file.write("# edited\n")
    assert changed(suite).keys() == {"table1", "verdicts", "failures", "page"}


def test_another_pin_makes_what_was_fetched_again(suite):
    """Of a stage whose digest is that of the pin alone."""
    gguf = "{path: a.gguf, sha256: one, weights_sha256: two}"
    model = [f"models.tiny.{setting}" for setting in ("tiny=null", "pretrain=null", "parameters=1e6", f"gguf={gguf}")]
    plans = [Plan(load_suite("configs/glance.yaml", [*model, *more])) for more in ([], OTHER_SETTING, OTHER_WEIGHTS)]
    job = plans[0].require("convert", {"model": "tiny"})
    made = next(Path(ITERATION).rglob("provenance.json")).read_bytes()
    own = {"stage": "convert", "wildcards": job.wildcards, "result": job.result}
    record = Provenance.from_json(made).model_copy(update=own | {"config": as_dict(plans[0].settings(job))})
    assert [plan.changed_since(record) for plan in plans] == [[], [], ["settings"]]


def test_another_pin_or_another_content_of_a_download(suite, monkeypatch, tmp_path):
    Path("data").unlink()  # a link to the data of this checkout
    content = b"a note\n"
    (tmp_path / "note.txt").write_bytes(content)
    monkeypatch.setenv("COEVOLVE_MIRROR", str(tmp_path))
    note = {"file": "note.txt", "url": "http://localhost:9/", "sha256": sha256(content).hexdigest(), "licence": "none"}
    plan = Plan(load_suite("configs/glance.yaml", as_overrides({"sources": {"note": note}})))
    job = plan.require("download", {"source": "note", "file": "note.txt"})
    record = run_of(plan, set(), 0.0)
    record = record.model_copy(update={"jobs": [*record.jobs, job.key]})
    assert changed(plan, record) == {"download": "to do"}
    execute(JobFile.of(plan, job), threads=1)
    assert changed(plan, record) == {}
    repinned = as_overrides({"sources": {"note": {**note, "sha256": "0" * 64}}})
    assert changed(Plan(load_suite("configs/glance.yaml", repinned)), record) == {"download": "to do"}
    file = Path("data/mirror/note/note.txt")
    file.write_bytes(b"another note\n")
    assert changed(plan, record)["download"] == f"changed: {file}: the file was changed after its stage made it"
    file.with_name("provenance.json").unlink()
    assert changed(plan, record) == {}, "a person put it there: the jobs that read it compare it with their pin"


def test_another_set_of_files_in_a_given_checkpoint_is_read_again(suite, tmp_path):
    made = Path(f"{ITERATION}/policy/target")
    names = policy_dir.checkpoint_files(made)
    checkpoint = tmp_path / "checkpoint"
    checkpoint.mkdir()
    for name in names:
        shutil.copy(made / name, checkpoint)
    given = {"label": "given", "context": 512, "path": f"{checkpoint}/./", "parameters": 1e6}
    whole = load_suite("configs/glance.yaml", as_overrides({"models": {"given": given}}))
    plan = Plan(whole)
    job = plan.require("untrained", {"model": "given", "env": "webshop", "branch": "base/untrained"})
    inputs = {"checkpoint": [str(checkpoint / name) for name in names]}
    execute(JobFile.of(plan, job, inputs), threads=1)
    assert "untrained" not in changed(Plan(whole)), "each command plans anew"
    (checkpoint / "notes.txt").write_text("added\n")
    assert changed(Plan(whole))["untrained"] == "to do"
    (checkpoint / "notes.txt").unlink()
    assert "untrained" not in changed(Plan(whole))
    (checkpoint / "config.json").unlink()
    assert changed(Plan(whole))["untrained"] == "to do"


def test_the_machine_of_the_run_is_the_one_whose_costs_are_read(suite, printed):
    shutil.copy("configs/machines/cpu.yaml", "configs/machines/mine.yaml")
    record = run_of(suite, set(), time.time())
    record.write("results/glance")
    printed(0)
    record.model_copy(update={"machine": "configs/machines/mine.yaml"}).write("results/glance")
    assert ", 3 to do; " in printed(0)[0], "failures, costs, page"


def test_states_of_a_run_that_goes_on(suite, printed):
    """The run has to make two products and what reads them; its scheduler and one of the jobs hold their locks."""
    for name in ("table1", "figure3"):
        shutil.rmtree(f"results/glance/paper/{name}")
    now = time.time()
    run = run_of(suite, {"table1", "figure3", "summary", "page"}, started=now - 30)
    log, running_log = (Path(suite.log(suite.products[name])) for name in ("table1", "figure3"))
    log.parent.mkdir(exist_ok=True)
    log.write_text("coevolve: an error of a run before.\n")
    os.utime(log, (now - 60, now - 60))
    scheduler = ProcessLock(Path("results/glance/.lock"))
    job = ProcessLock(Path("results/glance/paper/.work-figure3/lock"))
    assert scheduler.acquire() and job.acquire()
    Path("results/glance/paper/.work-table1").mkdir()  # killed in the run before
    assert changed(suite, run) == {"figure3": "running"} | dict.fromkeys(("table1", "summary", "page"), "to do")
    Path("results/glance/paper/.work-table1").rmdir()
    run.write("results/glance")
    total = len(run.jobs)
    counts, running = printed(0)
    assert counts.startswith(f"Suite glance: {total - 4} of {total} jobs are done, 1 running, 3 to do; about ")
    assert running.startswith("running  figure3  0:0")
    running_log.write_text("Loading\n12:00:00 episodes 64/108, reward 0.087, 10:05:21 left\n")
    assert printed(0)[1].endswith("  episodes 64/108, reward 0.087, 10:05:21 left")
    log.write_text("12:00:00 begun\ncoevolve: x.json: no such file; run its stage.\n")
    assert changed(suite, run)["table1"] == "failed: x.json: no such file; run its stage."
    job.release()
    scheduler.release()
    assert changed(suite, run)["figure3"] == "stopped"
    lines = printed(1)[1:]
    assert lines == [
        "FAILED   table1: x.json: no such file; run its stage.",
        "         log: results/glance/logs/table1.log",
        "stopped  figure3: it ended without an error message.",
        "         log: results/glance/logs/figure3.log",
        f"No run is active; to continue: {run.command}",
    ]


def test_a_job_that_ctrl_c_ends_is_stopped(suite):
    """It waits for the lock of its result when it is interrupted, and leaves no traceback."""
    shutil.rmtree("results/glance/paper/figure3")
    planned, folder = suite.products["figure3"], Path("results/glance/paper/.work-figure3")
    file, log = planned_file(planned), Path(suite.log(planned))
    JobFile.of(suite, planned).write(file)
    log.parent.mkdir(exist_ok=True)
    log.touch()
    lock = ProcessLock(folder / "lock")
    assert lock.acquire()
    command = f"exec {sys.executable} -m coevolve job {file} > {log} 2>&1"
    job = subprocess.Popen(["bash", "-c", command], preexec_fn=heed_ctrl_c)
    while "waiting for it" not in log.read_text():
        assert job.poll() is None
        time.sleep(0.05)
    job.send_signal(signal.SIGINT)
    assert job.wait() == 128 + signal.SIGINT
    lock.release()
    assert "Traceback" not in log.read_text()
    assert changed(suite)["figure3"] == "stopped"


@pytest.mark.parametrize(
    ("options", "continues", "makes_one"),
    [
        ("--profile smoke -F", "--profile smoke", "--profile smoke"),
        ("-R table1 page --cores 2 --force", "--cores 2", "--cores 2"),
        ("--forcerun=data --config suite=a -- figure3", "--config suite=a -- figure3", "--config suite=a"),
        ("--until data sft -j1 -- figure3", "--until data sft -j1 -- figure3", "-j1"),
        ("--allowed-rules all table1 -j1", "--allowed-rules all table1 -j1", "-j1"),
    ],
)
def test_a_run_goes_on_without_making_finished_jobs_again(suite, monkeypatch, options, continues, makes_one):
    monkeypatch.setattr(sys, "argv", ["snakemake", *options.split()])
    given = SimpleNamespace(cores=2, nodes=None)
    scheduler = SimpleNamespace(resource_settings=given, local_exec=True, dag=SimpleNamespace(needrun_jobs=set))
    state = SuiteState.of(suite, RunRecord.of(scheduler, {}, "cpu", []), "glance")
    assert state.command() == f"snakemake {continues}"
    assert state.command(without_targets=True) == f"snakemake {makes_one}"


def test_jobs_of_the_last_run_are_counted_alone(suite):
    part = run_of(suite, set(), started=0.0)
    jobs = [key for key in part.jobs if suite.by_key(key).stage.name in ("data", "prepare")]
    part = part.model_copy(update={"jobs": jobs})
    shutil.rmtree("results/glance/paper/table1")
    lines = list(status.text(SuiteState.of(suite, part, "glance"), load_machine("cpu")))
    total = len(suite.jobs())
    assert lines[0] == "Suite glance: 2 of 2 jobs are done."
    assert lines[1].startswith("These are the jobs of the last run; of the whole suite ")
    assert lines[1].endswith(f" {total - 1} of {total} jobs are done, 1 changed.")
