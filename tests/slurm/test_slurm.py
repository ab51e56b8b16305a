"""The DAG on a real Slurm, and what goes wrong on a cluster: each ends in a resumed run with the same results."""

import shlex
import signal
import subprocess
import sys

import pytest
from slurm.harness import Run, copied, ended, machine, restarts, results, same, until

from coevolve.records.episodes import Trajectory
from coevolve.storage import jsonl, provenance

pytestmark = pytest.mark.slow


def test_the_dag_runs_to_its_table_and_to_the_results_of_a_run_without_slurm(cluster, repo, alone, tmp_path):
    run = Run(cluster, copied(repo, tmp_path / "repo"))
    run.finish("--", "all")
    assert results(run.repo) == results(alone)
    assert len(results(run.repo)) > 15
    assert "Nothing to be done" in run.finish("--", "all")


def test_gpus_reach_the_job_and_ctrl_c_cancels_it(run, alone):
    process = run.start()
    frozen = run.frozen()
    assert len(frozen.environ()["CUDA_VISIBLE_DEVICES"].split(",")) == 3
    (shown,) = run.cluster.jobs("running", "%j %k")
    assert shown.startswith("coevolve_") and "rule_pretrain" in shown
    process.send_signal(signal.SIGINT)
    assert process.wait() != 0
    until(lambda: not run.training(), "the cancelled job's end")
    run.finish()
    assert resumed(run) and same(run, alone)


def test_a_cancelled_job_is_tried_again(run, alone):
    process = run.start()
    run.frozen()
    run.cluster.ask("scancel", *run.cluster.jobs("running"))
    ended(process, run.repo)
    assert run.cluster.jobs("cancelled") and resumed(run) and same(run, alone)


def test_a_job_whose_node_is_set_down_goes_on_at_another(run, alone):
    process = run.start()
    run.frozen()
    (job,) = run.cluster.jobs("running")
    (node,) = run.cluster.jobs("running", "%N")
    run.cluster.ask("scontrol", "update", f"nodename={node}", "state=down", "reason=test")
    try:
        ended(process, run.repo)
    finally:
        run.cluster.ask("scontrol", "update", f"nodename={node}", "state=resume")
    assert job in run.cluster.jobs("completed") and restarts(run, job) == 1
    assert resumed(run) and same(run, alone)


def test_a_preempted_job_goes_back_into_the_queue_and_on(run, alone):
    machine(run.repo, partition="spot")
    process = run.start()
    run.frozen()
    (job,) = run.cluster.jobs("running")
    run.cluster.ask("sbatch", "--partition=h100", "--nodes=2", "--exclusive", "--output=/dev/null", "--wrap=sleep 3")
    ended(process, run.repo)
    assert job in run.cluster.jobs("completed") and restarts(run, job) == 1
    assert resumed(run) and same(run, alone)


def test_a_job_over_its_memory_is_tried_again_with_more(run, alone):
    machine(run.repo, stages={"pretrain": {"memory_gb": 0.45}})
    run.finish()
    shown = [line.split() for line in run.cluster.jobs("all", "%Z %m %T")]
    own = {memory: state for folder, memory, state in shown if folder == str(run.repo)}
    assert own == {"450M": "FAILED", "900M": "COMPLETED"}
    assert same(run, alone)


def test_a_job_over_its_time_is_tried_again_with_more(run, alone):
    process = run.start()
    run.frozen()
    (job,) = run.cluster.jobs("running")
    run.cluster.ask("scontrol", "update", f"jobid={job}", "timelimit=0:01")
    ended(process, run.repo)
    assert job in run.cluster.jobs("timeout")
    assert "20:00" in run.cluster.jobs("completed", "%l")
    assert resumed(run) and same(run, alone)


def test_a_job_that_outlives_its_killed_snakemake_is_waited_for_and_never_run_beside(run, alone):
    first = run.start()
    orphan = run.frozen()
    first.kill()
    first.wait()
    second = run.start()
    until(lambda: "waiting for it" in run.log(), "the second job to find the first")
    assert len(run.cluster.jobs("running")) == 2 and orphan.is_running()
    orphan.resume()
    ended(second, run.repo)
    assert same(run, alone)


@pytest.fixture
def unreliable(run, tmp_path):
    """An sbatch before Slurm's: a line of the file is an error in place of a call, or after it ("lost")."""
    program, failures, calls = (tmp_path / name for name in ("bin/sbatch", "failures", "calls"))
    program.parent.mkdir()
    program.write_text(
        f"""#!/bin/bash
PATH=${{PATH//"{program.parent}:"/}}
echo "$*" >>{calls}
failure=$(head -1 {failures}; sed -i 1d {failures})
case $failure in
  "") exec sbatch "$@" ;;
  lost*) sbatch "$@" >/dev/null ;;
esac
echo "sbatch: error: Batch job submission failed: ${{failure#lost }}" >&2
exit 1
"""
    )
    program.chmod(0o755)
    variables = {"PATH": f"{program.parent}:{run.cluster.environment['PATH']}", "COEVOLVE_SBATCH_WAITS": "0.1 0.2 0.4"}
    return Run(run.cluster, run.repo, variables), failures, calls


def test_a_busy_controller_costs_no_attempt_and_a_job_that_it_took_is_not_submitted_twice(unreliable, alone):
    run, failures, calls = unreliable
    failures.write_text(
        "Unable to contact slurm controller (connect failure)\nlost Socket timed out on send/recv operation\n"
    )
    said, known = run.start(), set(run.cluster.jobs("all"))
    frozen = run.frozen()
    (job,) = run.cluster.jobs("running", "%i %m")
    assert job.split()[1] == "4000M"  # of a first attempt
    frozen.resume()
    text = ended(said, run.repo)
    assert set(run.cluster.jobs("all")) - known == {job.split()[0]}
    assert "FAILED" not in text and "runs again" not in text and len(calls.read_text().splitlines()) == 2
    assert same(run, alone)


def test_a_partition_that_does_not_exist_is_slurms_sentence_at_once(unreliable):
    run, failures, calls = unreliable
    failures.touch()
    accounts = calls.parent / "bin/sacctmgr"  # of a cluster with accounting
    accounts.write_text("#!/bin/sh\necho 0123\n")
    accounts.chmod(0o755)
    machine(run.repo, partition=["nowhere", "h100"], account="0123")
    process = run.start()
    assert process.wait() != 0
    (*failed,) = (line for line in (run.repo / "said.log").read_text().splitlines() if line.startswith("FAILED"))
    assert len(failed) == len(calls.read_text().splitlines()) == 3  # attempts
    assert failed[0].endswith("sbatch: error: Batch job submission failed: Invalid partition name specified")
    assert " -A 0123 -p nowhere,h100 " in calls.read_text()


def test_a_job_that_gets_fewer_gpus_than_its_stage_requests_says_so(cluster, repo):
    on = ["--on", "model=tiny", "--on", "env=sciworld", "--on", "branch=base/pretrained"]
    log, words = repo / "fewer.log", ["stage", "pretrain", "--suite", "slurm", *on, "--gpus", "3", "--out", "fewer"]
    wrapped = shlex.join([sys.executable, "-m", "coevolve", *words])
    variables = {**cluster.environment, "PYTHONPATH": str(repo)}
    job = ["sbatch", "--wait", "--parsable", "--gpus=1", "--mem=1G", f"--output={log}", "--wrap", wrapped]
    done = subprocess.run(job, cwd=repo, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and f"--gpus 3: Slurm job {done.stdout.strip()} has 1 on n1; " in log.read_text()


def test_grpo_on_two_nodes_plays_the_episodes_of_one_process_and_trains_on_them(cluster, alone, tmp_path):
    """A job of two nodes starts `coevolve stage grpo` on both, without GPUs: each plays one group of a step's two."""
    repo = copied(alone, tmp_path / "repo")
    stage = [sys.executable, "-m", "coevolve", "stage", "grpo", "--suite", "slurm", "--machine", "tests"]
    stage += ["--on", "model=tiny", "--on", "env=sciworld", "--on", "branch=grpo/seed0/iter1", "--on", "agent=target"]
    nodes = ["--processes", "2", "--nodes", "2", "--launch", "configs/accelerate/ddp.yaml"]
    job = ["sbatch", "--wait", "--nodes=2", "--ntasks-per-node=1", "--mem=8G", "--output=job.log", "--wrap"]
    commands = {"one": [*stage, "--out", "one"], "two": [*job, shlex.join([*stage, *nodes, "--out", "two"])]}
    variables = {**cluster.environment, "PYTHONPATH": str(repo), "HOME": str(repo), "ACCELERATE_USE_CPU": "1"}
    for out, command in commands.items():
        done = subprocess.run(command, cwd=repo, env=variables, capture_output=True, text=True, check=False)
        log = repo / "job.log"
        assert done.returncode == 0, done.stderr[-8000:] + (log.read_text() if log.exists() else "")
        assert (repo / out / "policy.json").exists()
    one, two = (provenance.read(repo / out / "provenance.json") for out in commands)
    assert one.slurm_job is None and two.slurm_job is not None
    assert (two.notes.launch["processes"], two.notes.launch["nodes"]) == (2, 2) and one.notes.launch is None
    assert two.notes.steps == one.notes.steps == 3
    played = [jsonl.read(repo / out / "episodes.jsonl", Trajectory) for out in commands]
    keys = [[(each.task.task_id, each.sample, each.policy.name) for each in episodes] for episodes in played]
    assert keys[0] == keys[1] and len(set(keys[1])) == len(keys[1]) == 12, "each episode is played once"
    steps = list(zip(one.notes.history, two.notes.history, strict=True))
    # Steps of equal rewards have no gradient; from the first one with a gradient on, weights differ by rounding.
    first = next(number for number, (step, _) in enumerate(steps) if step["grad_norm"])
    assert steps[first][1]["grad_norm"] == pytest.approx(steps[first][0]["grad_norm"], rel=1e-4)
    until_first = [[each.turns for each in episodes[: 4 * (first + 1)]] for episodes in played]
    assert until_first[0] == until_first[1]


def resumed(run: Run) -> bool:
    """Whether the last attempt went on from a checkpoint."""
    return "resuming from checkpoint-" in run.log()
