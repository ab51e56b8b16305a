"""The DAG on a real Slurm, and what goes wrong on a cluster: each ends in a resumed run with the same results."""

import signal

import pytest
from slurm.harness import Run, copied, ended, machine, results, same, until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


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
    assert process.wait(timeout=120) != 0
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


def resumed(run: Run) -> bool:
    """Whether the last attempt went on from a checkpoint."""
    return "resuming from checkpoint-" in run.log()


def restarts(run: Run, job: str) -> int:
    """How often Slurm itself put a job back into its queue."""
    shown = run.cluster.ask("scontrol", "show", "job", job)
    return int(shown.split("Restarts=")[1].split()[0])
