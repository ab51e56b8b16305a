"""profiles/slurm/bin/sbatch before scripted programs of Slurm; tests/slurm has it before the real ones."""

import subprocess
import sys

import pytest

COMMAND = ["--parsable", "--job-name", "run", "--output", "a b.log", "--comment", "rule_sft_wildcards_a b"]
TIMED_OUT = "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation"
BUSY = [
    TIMED_OUT,
    "sbatch: error: Batch job submission failed: Unable to contact slurm controller (connect failure)",
    "sbatch: error: Batch job submission failed: Resource temporarily unavailable",
    "sbatch: error: Batch job submission failed: Unexpected message received",
    "sbatch: error: AssocMaxSubmitJobLimit\nsbatch: error: Batch job submission failed: Job violates accounting policy",
]
WRONG = [
    "sbatch: error: invalid partition specified: x\nsbatch: error: Batch job submission failed: Invalid partition name",
    "sbatch: error: Batch job submission failed: Invalid account or account/partition combination specified",
    "sbatch: error: Batch job submission failed: Requested node configuration is not available",
]


@pytest.fixture
def submit(root, tmp_path):
    """Submits to a Slurm that fails with these errors, one after the other: the end, and the arguments of all calls."""
    wrapper, programs = root / "profiles/slurm/bin", tmp_path / "programs"
    programs.mkdir()
    calls, errors, answers = (tmp_path / name for name in ("calls", "errors", "answers"))
    fails = f'head -1 {errors} | tr "@" "\\n" >&2; sed -i 1d {errors}; exit 1'
    scripts = {
        "sbatch": f'echo "$*" >>{calls}; if [ -s {errors} ]; then {fails}; fi; cat >{answers}; echo 7',
        "squeue": f"cat {tmp_path}/queue",
        "sleep": f"echo sleep $1 >>{calls}; [ -z $SNAKEMAKE ] || {{ kill -9 $(cat $SNAKEMAKE); /bin/sleep 1; }}",
    }
    for name, text in scripts.items():
        (programs / name).write_text(f"#!/bin/bash\n{text}\n")
        (programs / name).chmod(0o755)

    def submit(*failures, queue="", command=("sbatch", *COMMAND), script="", **variables):
        calls.write_text("")
        errors.write_text("".join(text.replace("\n", "@") + "\n" for text in failures))
        if queue is not None:
            (tmp_path / "queue").write_text(queue)
        path = f"{wrapper}:{programs}:/usr/bin:/bin"
        done = subprocess.run(
            command, input=script, env={"PATH": path, **variables},
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        return done, calls.read_text().splitlines(), answers

    return submit


def test_a_busy_controller_is_asked_again_for_five_minutes(submit):
    done, calls, _ = submit(*BUSY)
    assert (done.returncode, done.stdout) == (0, "7\n")
    assert calls[::2] == [" ".join(COMMAND)] * (len(BUSY) + 1)
    done, calls, _ = submit(*[TIMED_OUT] * 20)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", f"{TIMED_OUT}\n")
    waits = [int(call.split()[1]) for call in calls if call.startswith("sleep")]
    assert waits == sorted(waits) and sum(waits) >= 300
    _, calls, _ = submit(TIMED_OUT, TIMED_OUT, TIMED_OUT, COEVOLVE_SBATCH_WAITS="0.5")
    assert calls == [" ".join(COMMAND), "sleep 0.5", " ".join(COMMAND)]


@pytest.mark.parametrize("error", WRONG)
def test_any_other_error_ends_at_once_with_its_sentence(submit, error):
    done, calls, _ = submit(error)
    assert (done.returncode, done.stderr, len(calls)) == (1, f"{error}\n", 1)


def test_a_job_that_was_accepted_without_an_answer_is_found_and_not_submitted_again(submit, tmp_path):
    others = "3 rule_sft_wildcards_a\n4 rule_sft_wildcards_a b c\n"
    done, calls, _ = submit(TIMED_OUT, queue=f"{others}5 rule_sft_wildcards_a b\n")
    assert (done.returncode, done.stdout, len(calls)) == (0, "5\n", 2)
    assert submit(TIMED_OUT, queue=others)[0].stdout == "7\n"
    (tmp_path / "queue").unlink()  # squeue fails too, so nobody knows
    done, calls, _ = submit(TIMED_OUT, queue=None)
    assert done.returncode == 1 and calls.count(" ".join(COMMAND)) == 1


def test_nothing_is_submitted_after_snakemake_was_killed(submit, tmp_path):
    _, _, answer = submit()
    answer.unlink()
    snakemake = "import os, subprocess, sys\nopen(sys.argv[1], 'w').write(str(os.getpid()))\n"
    snakemake += "subprocess.run('sbatch --parsable', shell=True)"
    number = tmp_path / "number"
    command = [sys.executable, "-c", snakemake, str(number)]
    done, calls, _ = submit(TIMED_OUT, command=command, SNAKEMAKE=str(number))
    assert done.returncode == -9 and calls == ["--parsable", "sleep 5"] and not answer.exists()


def test_a_script_from_standard_input_is_submitted_each_time(submit):
    done, _, answer = submit(TIMED_OUT, command=["sbatch", *COMMAND, "/dev/stdin"], script="#!/bin/sh\ntrue\n")
    assert done.stdout == "7\n" and answer.read_text() == "#!/bin/sh\ntrue\n"
