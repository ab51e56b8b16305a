"""The four promises of the DAG, on the real DAG with real episodes and real training (a suite of seconds)."""

import contextlib
import json
import os
import random
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import psutil
import pytest
from checkout import copy_of, decided, environment

pytestmark = pytest.mark.dag

SNAKEMAKE = [sys.executable, "-m", "snakemake", "--profile", "smoke", "--config", "suite=nano"]
EVIDENCE = [sys.executable, "-m", "coevolve", "export", "evidence", "--suite", "nano", "--out"]


@pytest.fixture(scope="module")
def repo(root, tmp_path_factory):
    return nano(root, tmp_path_factory.mktemp("repo"))


@pytest.fixture(scope="module")
def finished(repo):
    """The repository after an uninterrupted run, and in `progress` what that printed."""
    (repo / "progress").write_text(run(repo))
    return repo


def test_it_ends_with_the_table_and_full_provenance(finished):
    table = (finished / "results/nano/paper/table1/table1.md").read_text()
    for row in ("Untrained", "SFT", "ETO", "Co-evolving"):
        assert row in table
    records = [json.loads(path.read_text()) for path in (finished / "results/nano").rglob("provenance.json")]
    stages = Counter(record["stage"] for record in records)
    assert (stages["train"], stages["reference"]) == (5, 5)
    for record in records:
        assert record["code_digest"] and record["outputs"] and record["versions"]["python"]
        assert record["protocol"] == "fixed"


def test_a_run_prints_a_line_for_each_job_and_the_report_page(finished):
    profile, suite, *jobs, log, page = (finished / "progress").read_text().splitlines()
    total = jobs_of(finished)
    assert profile.startswith("Using profile smoke")
    assert re.fullmatch(rf"Suite nano: {total} jobs; about \d+ (s|min) left\.", suite)
    lines = [re.fullmatch(rf"(.+)  (\d:\d\d)  \[(\d+)/{total}(, about \d+ (?:s|min) left)?\]", line) for line in jobs]
    assert [int(line[3]) for line in lines if line] == list(range(1, total + 1))
    assert [bool(line[4]) for line in lines if line] == (total - 1) * [True] + [False]
    labels = [line[1] for line in lines if line]
    assert len(set(labels)) == total
    expected = {
        "WebShop · untrained",
        "WebShop · untrained · evaluate",
        "WebShop · seed 0 · reference target (experts, target)",
        "WebShop · Co-evolving · seed 0 · iteration 2 · train target",
        "table1",
    }
    assert expected <= set(labels)
    assert "Finished jobid: " in (finished / log.removeprefix("Snakemake's log: ")).read_text()
    assert page == "Report page: results/nano/paper/page/report.html"
    assert (finished / page.removeprefix("Report page: ")).is_file()


def test_a_second_run_has_nothing_to_do(finished):
    assert jobs_to_run(finished) == Counter()
    _, nothing, page = run(finished).splitlines()
    assert nothing.startswith("Nothing to be done") and page == "Report page: results/nano/paper/page/report.html"


def test_an_unknown_target_is_a_sentence_with_a_suggestion(finished):
    done = snakemake(finished, command=[*SNAKEMAKE, "--", "tabel1"])
    assert done.returncode != 0
    assert done.stderr.splitlines()[1:] == ["coevolve: suite `nano` has no target `tabel1`; did you mean `table1`?"]


def test_editing_a_docstring_or_comment_reruns_nothing(finished):
    with edited(
        finished, "coevolve/train/losses.py", lambda text: '"""Another docstring."""\n# a remark\n' + body(text)
    ):
        assert jobs_to_run(finished) == Counter()


@pytest.mark.parametrize(
    ("change", "counts"),
    [
        ("coevolve/train/losses.py:pair_losses", {"train": 5, "reference": 2}),
        # The first iteration's log-probs are of trajectories, and stand.
        ("coevolve/methods/pairing.py:preference_pair", {"pairs": 6, "train": 5, "reference": 2}),
        ("dpo={max_grad_norm: 0.5}", {"train": 5, "reference": 2}),
        ("recipes={eto: {settings: {dpo: {epochs: 4}}}}", {"train": 2}),  # not those of the other methods
    ],
)
def test_a_change_reruns_its_readers_and_what_follows(finished, change, counts):
    file, _, name = change.partition(":")
    if file.endswith(".py"):
        with edited(finished, file, lambda text: f"{text}\n{name} = {name}\n"):
            jobs = jobs_to_run(finished)
    else:
        jobs = jobs_to_run(finished, change)
    assert jobs.items() >= counts.items()
    assert {"rollout", "evaluate", "table1", "page"} <= set(jobs)
    assert not {"data", "untrained", "pretrain", "sft"} & set(jobs)


def test_a_suite_that_extends_another_takes_its_results(finished):
    """Every reuse is printed, and a second run has nothing to do."""
    (finished / "configs/mine.yaml").write_text("extends: nano.yaml\nsuite: mine\n")
    fine_tuned = "tiny/webshop/base/seed0/policy/target"
    mine = [*SNAKEMAKE[:-1], "suite=mine"]
    until = ["--", f"results/mine/{fine_tuned}/policy.json"]
    done = snakemake(finished, *until, command=mine)
    assert done.returncode == 0, done.stderr[-4000:]
    printed = re.findall(r"^(.*)  reused from results/nano  \[", done.stderr, re.MULTILINE)
    assert sorted(label.rpartition(" · ")[2] for label in printed) == [
        "data", "prepare", "pretrain", "sft target", "untrained",
    ]  # fmt: skip
    record = json.loads((finished / f"results/mine/{fine_tuned}/provenance.json").read_text())
    assert record["reused_from"] == f"results/nano/{fine_tuned}"
    weights = [finished / f"results/{suite}/{fine_tuned}/model.safetensors" for suite in ("mine", "nano")]
    assert weights[0].read_bytes() == weights[1].read_bytes()
    again = snakemake(finished, *until, command=mine)
    assert "Nothing to be done" in again.stderr + again.stdout


def test_the_products_can_be_made_from_the_evidence_alone(root, finished, tmp_path):
    """In a checkout without results, byte for byte; no weights are needed."""
    archive = tmp_path / "nano.tar.xz"
    ablation = "ablations={mine: {label: Mine, source: none, methods: [sft, coevolve], default: true}}"
    done = snakemake(finished, str(archive), "--set", ablation, command=EVIDENCE)
    assert done.returncode == 0, done.stderr
    rules = re.search(r"`(--allowed-rules .*)` to", done.stdout)[1].split()
    other = nano(root, tmp_path)
    subprocess.run(["tar", "-xJf", archive], cwd=other, check=True)
    assert not list(other.rglob("*.safetensors"))
    done = snakemake(other, "dpo={max_grad_norm: 0.5}", *rules)
    assert done.returncode != 0 and "this evidence was made with other settings" in done.stderr + done.stdout
    assert not (other / "results/nano/paper/table1/table1.md").exists()
    done = snakemake(other, ablation, *rules)
    assert done.returncode == 0, done.stderr[-4000:]
    assert "Co-evolving" in (other / "results/nano/ablations/mine/table.md").read_text()
    require_equal_products(other, finished, at_least=len(rules))
    exit_status, (_, whole, _) = status(other)
    assert exit_status == 0 and re.search(r"of the whole suite 14 of \d+ jobs are done, \d+ made elsewhere\.$", whole)


@pytest.mark.slow
def test_the_products_of_two_seeds_can_be_made_from_an_archive_of_each(root, finished, tmp_path):
    """As if each seed had run on a machine of its own, and byte for byte as from one run of both."""
    both = Path(shutil.copytree(finished, tmp_path / "both", symlinks=True))
    done = snakemake(both, "seeds=[0,1]")
    assert done.returncode == 0, done.stderr[-4000:]
    other = nano(root, tmp_path)
    for seed in (0, 1):
        archive = tmp_path / f"{seed}.tar.xz"
        done = snakemake(both, str(archive), "--set", f"seeds=[{seed}]", command=EVIDENCE)
        assert done.returncode == 0, done.stderr
        names = subprocess.run(["tar", "-tJf", archive], capture_output=True, text=True, check=True).stdout
        assert f"/seed{seed}/" in names and f"/seed{1 - seed}/" not in names
        subprocess.run(["tar", "-xJf", archive], cwd=other, check=True)
    rules = re.search(r"`(--allowed-rules .*)` to", done.stdout)[1].split()
    done = snakemake(other, "seeds=[0,1]", *rules)
    assert done.returncode == 0, done.stderr[-4000:]
    require_equal_products(other, both, at_least=len(rules))


def require_equal_products(other: Path, repo: Path, *, at_least: int) -> None:
    """The products of two checkouts have the same bytes, but for their provenance."""
    made = [path for path in (repo / "results/nano/paper").rglob("*.*") if path.name != "provenance.json"]
    assert len(made) > at_least
    for path in made:
        assert (other / path.relative_to(repo)).read_bytes() == path.read_bytes(), path.name


def test_evidence_that_is_missing_or_changed_is_one_sentence(finished, tmp_path):
    records, archive = finished / "results/nano/tiny/webshop/base/seed0/eval/records.jsonl", tmp_path / "nano.tar.xz"
    with edited(finished, records.relative_to(finished), lambda text: text + " \n"):
        changed = snakemake(finished, str(archive), command=EVIDENCE)
    elsewhere = records.rename(records.with_name("elsewhere"))
    missing = snakemake(finished, str(archive), command=EVIDENCE)
    elsewhere.rename(records)
    for done, words in ((missing, "no such file"), (changed, "the file was changed")):
        assert done.returncode != 0 and words in done.stderr and len(done.stderr.splitlines()) == 1
    assert not archive.exists()


def test_a_missing_input_that_no_rule_makes_is_an_error_before_anything_runs(finished):
    claims = finished / "configs/claims.yaml"
    claims.rename(claims.with_name("elsewhere"))
    for settings in ([], ["dpo={max_grad_norm: 0.5}"]):
        done = snakemake(finished, *settings)
        assert done.returncode != 0
        sentence = "coevolve: configs/claims.yaml: input `claims` of stage `verdicts` does not exist; put it there."
        assert done.stderr.splitlines()[1:] == [sentence]
    claims.with_name("elsewhere").rename(claims)


def test_a_failed_job_is_a_sentence_and_its_log(finished):
    """An evaluation was edited: the products that read it fail, and nothing is printed of how Snakemake ran them."""
    with edited(finished, "results/nano/tiny/webshop/eto/seed0/iter2/eval/records.jsonl", lambda text: text + " \n"):
        done = snakemake(finished, command=[*SNAKEMAKE, "--", "differences", "figure3"])
    assert done.returncode != 0
    lines = done.stderr.splitlines()[2:]
    assert {line.split(": ")[0] for line in lines if line.startswith("FAILED")} == {
        "FAILED  differences",
        "FAILED  figure3",
    }
    (first,) = (number for number, line in enumerate(lines) if line.startswith("FAILED  figure3"))
    fix = r"delete \S+ and run the suite again; `coevolve status` prints the command\.$"
    problem = rf"records\.jsonl: the file was changed: .*; {fix}"
    assert re.search(problem, lines[first])
    assert lines[first + 1] == "        log: results/nano/logs/figure3.log"
    assert re.fullmatch(r"\d+ of \d+ jobs are done, 2 failed, 0 did not run\. Correct the cause, .*", lines[4])
    assert len(lines) == 7 and "Traceback" not in done.stderr
    exit_status, shown = status(finished)
    assert exit_status == 1
    (line,) = (line for line in shown if line.startswith("FAILED   figure3: results/nano/tiny/webshop/eto"))
    assert re.search(problem, line)


def test_status_gives_the_command_that_makes_a_deleted_result_again(finished):
    """Snakemake does not miss a result whose readers are there. `tests/watch/test_status.py` has more states."""
    run(finished)
    all_done = f"Suite nano: {jobs_of(finished)} of {jobs_of(finished)} jobs are done."
    assert status(finished) == (0, [all_done, "Report page: results/nano/paper/page/report.html"])
    weights = finished / "results/nano/tiny/webshop/eto/seed0/iter2/policy/target/model.safetensors"
    trained = weights.read_bytes()
    weights.unlink()
    assert "train" not in jobs_to_run(finished)
    exit_status, (_, changed, command, _) = status(finished)
    assert exit_status == 1 and changed.startswith("CHANGED  WebShop · ETO · seed 0 · iteration 2 · train target: ")
    done = snakemake(finished, command=["bash", "-c", command.strip().removeprefix("to make it again: ")])
    assert done.returncode == 0, done.stderr
    assert weights.read_bytes() == trained and status(finished)[0] == 0


def test_pruned_weights_are_needed_by_an_edited_evaluation_alone(finished, tmp_path):
    """The run whose evaluation is the last to read a policy deletes its weights; bases and last targets keep theirs.

    Then nothing is left to do, and `status` and `why` miss nothing. After an edit of the evaluation the run names the
    command that makes the weights again; with it, the evaluations run again and nothing else.
    """
    repo = Path(shutil.copytree(finished, tmp_path / "pruned", symlinks=True))
    (repo / "configs/machines/pruning.yaml").write_text("extends: cpu.yaml\nprune_weights: true\n")
    command, before = [*SNAKEMAKE, "machine=pruning"], results(repo)
    policies = [f"results/nano/tiny/webshop/{name}/seed0/iter1/policy/target" for name in ("coevolve", "eto")]
    evaluations = [policy.replace("policy/target", "eval") for policy in policies]
    targets = ["--", *(f"{folder}/records.jsonl" for folder in evaluations)]
    shutil.rmtree(repo / evaluations[1])
    trained = [(repo / policy / "model.safetensors").read_bytes() for policy in policies]
    done = snakemake(repo, command=command)
    assert done.returncode == 0, done.stderr[-4000:]
    evaluated = done.stderr.index("ETO · seed 0 · iteration 1 · evaluate  ")
    assert done.stderr.index("ETO · seed 0 · iteration 1 · train target  weights pruned") > evaluated
    kept = {
        path.parent.relative_to(repo / "results/nano/tiny/webshop")
        for path in (repo / "results/nano").rglob("model.safetensors")
    }
    assert {str(folder) for folder in kept} == {
        *(f"base/{name}/policy/target" for name in ("untrained", "pretrained", "seed0")),
        "base/seed0/policy/failure",
        *(f"{name}/seed0/iter2/policy/target" for name in ("coevolve", "eto")),
    }
    assert "Nothing to be done" in snakemake(repo, command=command).stderr
    assert results(repo) == before and status(repo)[0] == 0
    why = [sys.executable, "-m", "coevolve", "why", "--suite", "nano", "table1: Co-evolving, WebShop"]
    traced = snakemake(repo, command=why)
    assert traced.returncode == 0 and "all as they were" in traced.stdout, traced.stdout + traced.stderr

    with edited(repo, "coevolve/pipeline/stages/evaluate.py", lambda text: text + "\nrun = run\n"):
        refused = snakemake(repo, *targets, command=command)
        assert refused.returncode != 0 and len(refused.stderr.splitlines()) == 2
        again = re.search(r"needs the weights of (\S+) and of 1 more, .* with `(for .*)`, then", refused.stderr)
        assert again[1] in policies
        remade = snakemake(repo, command=["bash", "-c", again[2]])
        assert remade.returncode == 0 and remade.stderr.count(" train target  ") == 2, remade.stderr
        assert [(repo / policy / "model.safetensors").read_bytes() for policy in policies] == trained
        done = snakemake(repo, *targets, command=command)
        assert done.returncode == 0, done.stderr[-4000:]
        assert sorted(re.findall(r"· (\w+)  \d:\d\d  \[", done.stderr)) == ["evaluate", "evaluate"]
        assert results(repo) == before
        assert not [policy for policy in policies if (repo / policy / "model.safetensors").exists()]


def test_code_that_changes_while_the_suite_runs_makes_no_result(finished):
    """A branch is switched after the plan, before the job: it is refused, on this machine and as Slurm's jobs start."""
    table, code = finished / "results/nano/paper/table1", finished / "coevolve/report/table1.py"
    made, text = (table / "table1.json").read_bytes(), code.read_text()
    switch = finished / "switch.sh"
    switch.write_text(f"#!/bin/sh\necho 'SUCCESS = 1' >> {shlex.quote(str(code))}\nexec {sys.executable} \"$@\"\n")
    switch.chmod(0o755)
    shutil.rmtree(table)
    for command in (
        [*SNAKEMAKE, "--", "table1"],
        # Slurm's executor starts a job so; it reads the Snakefile again, now with the edited code.
        [*SNAKEMAKE, *shlex.split("--mode remote --force --target-jobs table1: --allowed-rules table1 --cores 1")],
    ):
        done = snakemake(finished, command=command, COEVOLVE_PYTHON=str(switch))
        assert done.returncode != 0 and not list(table.glob("*"))
        sentence = (finished / "results/nano/logs/table1.log").read_text()
        assert sentence.startswith("coevolve: stage `table1`: its code changed after the run was planned; run the same")
    code.write_text(text)
    run(finished)
    assert (table / "table1.json").read_bytes() == made
    assert jobs_to_run(finished) == Counter()


def test_killed_at_any_moment_it_resumes_to_the_same_bytes(finished, root, tmp_path):
    """kill -9 while a job of each kind runs, of all processes or of the scheduler alone; then the same command.

    Jobs outlive a scheduler that is killed alone: their restarted twins wait for them, so that no result has a second
    writer.
    """
    repo = nano(root, tmp_path / "repo")
    moments = random.Random(20261121)
    for stage in ("data", "pretrain", "sft", "rollout", "reference", "train"):
        if stage == "reference":
            job_outlives_its_scheduler(repo, stage)
        scheduler, job = running(repo, stage)
        moment = moments.uniform(0, 6)
        if stage == "rollout":
            status_of_a_run(repo, scheduler)  # killed as it is stopped then: it could end before a later moment
        else:
            with contextlib.suppress(psutil.TimeoutExpired):
                job.wait(moment)  # no later than the job's end: on a fast machine the next kinds would end as well
        os.killpg(scheduler.pid, signal.SIGKILL)
        scheduler.wait()
        if stage == "rollout":
            exit_status, (_, *lines, again) = status(repo)
            assert exit_status == 0
            assert any(line.startswith("stopped  WebShop · seed 0 · rollout ") for line in lines)
            assert again == "No run is active; to continue: snakemake --profile smoke --config suite=nano"
    run(repo, "--", *(f"results/nano/{name}" for name in results(finished)))
    assert results(repo) == results(finished)


def is_locked(repo: Path, pattern: str) -> bool:
    """Whether a job holds a lock; a folder that another job replaces may be gone while it is searched."""
    try:
        return any((repo / "results/nano").rglob(pattern))
    except FileNotFoundError:
        return False


def status_of_a_run(repo: Path, scheduler: subprocess.Popen[bytes]) -> None:
    """The state of the jobs while a rollout runs; all processes are stopped, and stay so."""
    while not is_locked(repo, "rollout/.work-*/lock"):
        assert scheduler.poll() is None
        time.sleep(0.01)
    os.killpg(scheduler.pid, signal.SIGSTOP)
    exit_status, (counts, *lines) = status(repo)
    assert exit_status == 0
    assert re.fullmatch(r"Suite nano: \d of \d+ jobs are done, [12] running, \d+ to do; about .* left\.", counts)
    assert any(re.fullmatch(r"running  WebShop · seed 0 · rollout (target|failure)  \d:\d\d", line) for line in lines)
    assert not [line for line in lines if not line.startswith("running")]


def job_outlives_its_scheduler(repo: Path, stage: str) -> None:
    """Kill the scheduler alone while a job holds its lock; the job's twin of the next scheduler waits until it is done.

    All processes are stopped before the kill, so that the job is still there when its twin starts.
    """
    for stale in (repo / "results/nano").rglob(f"{stage}/**/.work-*/lock"):  # of a job that was killed before
        stale.unlink()
    scheduler, _ = running(repo, stage)
    while not is_locked(repo, f"{stage}/**/.work-*/lock"):
        assert scheduler.poll() is None
        time.sleep(0.01)
    os.killpg(scheduler.pid, signal.SIGSTOP)
    scheduler.kill()
    scheduler.wait()
    twin, _ = running(repo, stage)
    logs = repo / "results/nano/logs" / stage
    while not any("waiting for it" in log.read_text(errors="replace") for log in logs.rglob("*.log")):
        assert twin.poll() is None, "the new scheduler ended without waiting for the job"
        time.sleep(0.1)
    os.killpg(scheduler.pid, signal.SIGCONT)
    os.killpg(twin.pid, signal.SIGKILL)
    twin.wait()


@pytest.mark.slow
def test_divided_into_shards_it_ends_in_the_same_bytes(finished, root, tmp_path):
    repo = nano(root, tmp_path / "repo")
    machine = repo / "configs/machines/cpu.yaml"
    text = machine.read_text()
    machine.write_text(text.replace("{rollout: 1, evaluate: 1}", "{rollout: 3, evaluate: 2}"))
    assert machine.read_text() != text
    run(repo)
    found = results(repo)
    parts = {name for name in found if "/parts/" in name}
    assert len(parts) > 20
    assert jobs_to_run(repo) == Counter()
    assert {name: content for name, content in found.items() if name not in parts} == results(finished)


QUIET = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}


def nano(root: Path, target: Path) -> Path:
    """A copy of the working tree with the nano suite in it, in a folder with blanks and unicode in its path."""
    repo = copy_of(root, target / "\u00fcn\u00ef c\u00f4de dir")
    shutil.copy(root / "tests/dag/nano.yaml", repo / "configs")
    return repo


def running(repo: Path, stage: str) -> tuple[subprocess.Popen[bytes], psutil.Process]:
    """A scheduler, in a process group of its own, and its first job of `stage` as soon as that runs."""
    scheduler = subprocess.Popen(SNAKEMAKE, cwd=repo, env=environment(repo), start_new_session=True, **QUIET)
    watched = psutil.Process(scheduler.pid)
    while scheduler.poll() is None:
        for process in watched.children(recursive=True):
            with contextlib.suppress(psutil.Error):
                words = process.cmdline()[1:]
                is_job = words[:3] == ["-m", "coevolve", "job"]
                if is_job and json.loads((repo / words[3]).read_text())["stage"] == stage:
                    return scheduler, process
        time.sleep(0.05)
    raise AssertionError(f"the run ended without a job of `{stage}`")


def snakemake(repo: Path, *overrides: str, command=SNAKEMAKE, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*command, *overrides],
        cwd=repo,
        env=environment(repo) | variables,
        capture_output=True,
        text=True,
        check=False,
    )


def jobs_of(finished: Path) -> int:
    """The number of jobs of a finished run, each of which left a provenance."""
    return len(list((finished / "results/nano").rglob("provenance.json")))


def status(repo: Path) -> tuple[int, list[str]]:
    """Exit status and lines of `coevolve status`."""
    command = [sys.executable, "-m", "coevolve", "status", "nano"]
    done = snakemake(repo, command=command)
    assert done.returncode in (0, 1) and not done.stderr, done.stderr
    return done.returncode, done.stdout.splitlines()


def run(repo: Path, *targets: str) -> str:
    done = snakemake(repo, *targets)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-8000:]
    return done.stdout + done.stderr


def jobs_to_run(repo: Path, *overrides: str) -> Counter[str]:
    """Jobs by rule that a run would execute."""
    done = snakemake(repo, *overrides, "--dry-run")
    output = done.stdout + done.stderr
    assert done.returncode == 0, output[-4000:]
    stats = re.search(r"Job stats:\n(.*?)\n\n", output, re.DOTALL)
    rows = re.findall(r"^(\w+) +(\d+)$", stats[1], re.MULTILINE) if stats else []
    return Counter({name: int(count) for name, count in rows if name not in ("all", "total")})


def results(repo: Path) -> dict[str, object]:
    found = decided(repo / "results/nano")
    assert len(found) > 30
    return found


@contextlib.contextmanager
def edited(repo, name, change):
    """A file of the copied repository with another text, for the length of a block."""
    path = repo / name
    text = path.read_text()
    path.write_text(change(text))
    yield
    path.write_text(text)


def body(text: str) -> str:
    """A module's text without its docstring."""
    return re.sub(r'\A""".*?"""\n', "", text, count=1, flags=re.DOTALL)
