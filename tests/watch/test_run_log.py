"""What a run prints of Snakemake's log records. Runs of the real DAG are in `tests/dag` and `tests/slurm`."""

import logging

import pytest
from snakemake.logging import LogEvent

from coevolve.config.loading import load_suite
from coevolve.pipeline.plan import Plan
from coevolve.watch.run_log import RunLog, end_message
from coevolve.watch.run_record import RunRecord

#: Stage and name.
JOBS = [("data", "data/webshop"), ("untrained", "tiny/webshop/base/untrained/policy/target")]


class Printed:
    """A run of two jobs, and the lines that it prints for each record."""

    def __init__(self, capsys, cluster: bool = False) -> None:
        self._capsys = capsys
        plan = Plan(load_suite("smoke"))
        self._log = RunLog(plan)
        record = {"command": "snakemake", "machine": "cpu", "overrides": [], "started": 0.0, "slots": 2}
        jobs = [f"{plan.home}/{name}" for _, name in JOBS]
        self._log.begin(RunRecord(**record, cluster=cluster, jobs=jobs, todo=[0, 1]))
        self.first = self._lines()

    def lines(self, text: str = "", level: int = logging.INFO, **fields) -> list[str]:
        record = logging.LogRecord("snakemake", level, "", 0, text, (), None)
        vars(record).update(fields)
        self._log.receive(record)
        return self._lines()

    def start(self, number: int) -> list[str]:
        stage, name = JOBS[number]
        return self.lines("rule", event=LogEvent.JOB_INFO, jobid=number, rule_name=stage, wildcards={"job": name})

    def finish(self, number: int) -> list[str]:
        return self.lines("Finished", event=LogEvent.JOB_FINISHED, job_id=number)

    def fail(self, number: int, *logs: object, message: str | None = None) -> list[str]:
        paths = [str(log) for log in logs]
        fields = {"jobid": number, "rule_name": JOBS[number][0], "rule_msg": message, "log": paths}
        return self.lines("Error", logging.ERROR, event=LogEvent.JOB_ERROR, **fields)

    def _lines(self) -> list[str]:
        return self._capsys.readouterr().err.splitlines()


@pytest.fixture
def printed(capsys, monkeypatch, root):
    monkeypatch.chdir(root)
    return Printed(capsys)


def test_a_finished_job_is_a_line_and_all_else_is_none(printed):
    (first,) = printed.first
    assert first.startswith("Suite smoke: 2 jobs; about ") and first.endswith(" s left.")
    assert printed.lines("host: a\nBuilding DAG of jobs...") == [] == printed.start(0)
    assert printed.lines("1 of 2 steps (50%) done", event=LogEvent.PROGRESS) == []
    (line,) = printed.finish(0)
    assert line.startswith("WebShop · data  0:00  [1/2, about ") and line.endswith(" s left]")
    printed.start(1)
    assert printed.finish(1) == ["WebShop · untrained  0:00  [2/2]"]
    assert printed.lines("Suspicious", logging.WARNING) == ["Suspicious"]


def test_a_failed_job_is_its_sentence_and_is_repeated_at_the_end(printed, tmp_path):
    log = tmp_path / "job.log"
    log.write_text("12:00:00 begun\ncoevolve: a.yaml: key `b`: no.\n")
    printed.start(0)
    assert printed.fail(0, log) == ["FAILED  WebShop · data: a.yaml: key `b`: no.", f"        log: {log}"]
    assert printed.lines("RuleException:\nCalledProcessError in file", logging.ERROR, event=LogEvent.ERROR) == []
    end = "WorkflowError:\nAt least one job did not complete successfully."
    assert printed.lines(end, logging.ERROR, event=LogEvent.ERROR) == [
        "0 of 2 jobs are done, 1 failed, 1 did not run. Correct the cause, then run the same command again.",
        f"        WebShop · data: {log}",
    ]


def test_a_job_that_slurm_refuses_is_slurms_sentence_without_the_log_of_an_earlier_attempt(printed, tmp_path):
    earlier, empty = tmp_path / "job.log", tmp_path / "slurm.log"
    earlier.write_text("coevolve: a.yaml: key `b`: no.\n")
    empty.touch()
    error = (
        "sbatch: error: invalid partition specified: x\nsbatch: error: Batch job submission failed: Invalid partition"
    )
    printed.start(0)
    message = (
        f"SLURM sbatch failed. The error message was '{error}'.\n    sbatch call:\n        sbatch --wrap='it''s'\n"
    )
    assert printed.fail(0, earlier, message=message) == [f"FAILED  WebShop · data: {' '.join(error.split())}"]
    message = "Job submission failed with exception: The given account x appears to be invalid. Accounts:\n0123"
    assert printed.fail(0, earlier, message=message)[0].endswith(
        "data: The given account x appears to be invalid. Accounts: 0123"
    )
    silent = "FAILED  WebShop · data: it ended without an error message, and its log is empty."
    assert printed.fail(0, empty, tmp_path / "none.log") == [silent]


def test_a_job_that_is_run_again_and_succeeds_is_not_among_the_failed(printed, tmp_path):
    printed.start(0)
    assert printed.fail(0, tmp_path / "none.log", message="SLURM-job '7' failed, its status is OUT_OF_MEMORY")[0] == (
        "FAILED  WebShop · data: SLURM-job '7' failed, its status is OUT_OF_MEMORY"
    )
    assert printed.lines("Trying to restart job 0.") == ["        WebShop · data: runs again."]
    printed.start(0)
    assert printed.finish(0)[0].startswith("WebShop · data  0:00  [1/2")
    end = "WorkflowError:\nAt least one job did not complete successfully."
    assert len(printed.lines(end, logging.ERROR, event=LogEvent.ERROR)) == 1


def test_an_error_of_snakemake_is_shown_without_its_traceback(printed):
    error = (
        'InputFunctionException in rule data in file "Snakefile", line 9:\nError:\n  UserError: x.json: put it there.\n'
    )
    error += 'Wildcards:\n  job=data/webshop\nTraceback:\n  File "Snakefile", line 9, in inputs'
    assert printed.lines(error, logging.ERROR, event=LogEvent.ERROR) == ["coevolve: x.json: put it there."]
    other = 'WorkflowError:\nNo space.\n  File "a.py", line 3, in b\nTraceback (most recent call last):'
    assert printed.lines(other, logging.ERROR, event=LogEvent.ERROR) == ["WorkflowError:", "No space."]
    missing = "MissingRuleException:\nNo rule to produce webshop_sfd (if you use input functions make sure ...)."
    assert printed.lines(missing, logging.ERROR, event=LogEvent.ERROR) == [
        "coevolve: suite `smoke` has no target `webshop_sfd`; did you mean `webshop_sft`?"
    ]


def test_the_end_names_the_page_if_it_was_a_target():
    plan = Plan(load_suite("smoke"))
    page = "results/smoke/paper/page/report.html"
    assert end_message(plan, ["a", page], ["log"]) == f"Snakemake's log: log\nReport page: {page}"
    assert end_message(plan, list("abcde"), []) == "Made: a, b, c, d, ..."
