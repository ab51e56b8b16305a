"""Bad input ends in one sentence that names the file, the key and the fix; a non-zero exit; nothing half-written."""

import json
import resource
import signal
import subprocess
import sys
import time

import pytest

from coevolve.storage import files


@pytest.fixture
def coevolve(root, tmp_path):
    """Runs the command line in the repository, results in a folder of the test's own."""

    def run(*arguments, limit=None, **options):
        def cap():
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

        return subprocess.run(
            [sys.executable, "-m", "coevolve", *arguments],
            cwd=root,
            capture_output=True,
            text=True,
            check=False,
            preexec_fn=cap if limit is not None else None,
            **options,
        )

    return run


def data(experts, *overrides):
    settings = [item for override in overrides for item in ("--set", override)]
    command = ["stage", "data", "--suite", "smoke", *settings, "--out", "OUT", "--on", "env=sciworld"]
    return [*command, f"experts={experts}"]


def refused(done, out, *needles):
    """One last sentence on stderr with all the needles, exit status 2, no output."""
    assert done.returncode == 2, done.stderr
    sentence = done.stderr.strip().splitlines()[-1]
    assert sentence.startswith("coevolve: ")
    assert "Traceback" not in done.stderr
    for needle in needles:
        assert needle in sentence, sentence
    assert not out.exists()
    assert [path.name for path in out.parent.iterdir() if path.name.endswith(".tmp")] == []


def test_an_unknown_config_key(coevolve, tmp_path):
    out = tmp_path / "out"
    done = coevolve(*at(out, data("x", "dpo.betta=[0.1]")))
    refused(done, out, "configs/suites/smoke.yaml", "`dpo.betta`", "did you mean `beta`")


def test_a_job_that_is_not_told_what_it_is_about(coevolve, tmp_path):
    out = tmp_path / "out"
    job = ("stage", "sft", "--suite", "smoke", "--out", str(out))
    refused(coevolve(*job), out, "stage `sft`", "which model?", "--on model=NAME")
    names = [
        word for name in ("model=tiny", "env=sciworld", "branch=base/seed0", "agent=target") for word in ("--on", name)
    ]
    refused(coevolve(*job, *names), out, "results/smoke/data/sciworld/sft.jsonl", "input `experts` does not exist")


def test_a_missing_expert_file(coevolve, tmp_path):
    out = tmp_path / "out"
    refused(coevolve(*at(out, data("nowhere.jsonl"))), out, "nowhere.jsonl", "`experts`")


def test_an_expert_file_of_another_content(coevolve, tmp_path, gold):
    path, out = tmp_path / "experts.jsonl", tmp_path / "out"
    path.write_bytes(gold.read_bytes()[:-1000])
    done = coevolve(*at(out, data(path, f"envs.sciworld.experts.path={path}")))
    refused(done, out, "experts.jsonl", "sha256", "`envs.sciworld.experts.sha256`")


def test_a_truncated_expert_file_whose_checksum_was_adapted(coevolve, tmp_path, gold):
    path, out = tmp_path / "experts.jsonl", tmp_path / "out"
    path.write_bytes(gold.read_bytes()[:-1000])
    done = coevolve(*at(out, data(path, *source(path, "gold"))))
    refused(done, out, "experts.jsonl", "not a valid Trajectory")


@pytest.mark.parametrize(
    "content",
    ['[{"id": "1_2", "conversations": [', '[{"id": "1_2"}]', '{"a": 1}'],
    ids=["truncated", "schema", "shape"],
)
def test_a_malformed_file_in_etos_format(coevolve, tmp_path, content):
    path, out = tmp_path / "experts.json", tmp_path / "out"
    path.write_text(content)
    refused(coevolve(*at(out, data(path, *source(path, "eto")))), out, "experts.json")


def test_an_empty_split(coevolve, tmp_path, gold):
    out = tmp_path / "out"
    done = coevolve(*at(out, data(gold, "envs.sciworld.tasks.sft=10000", "envs.sciworld.tasks.explore=null")))
    refused(done, out, "`tasks.explore`", "no task is left")


def test_a_full_disk(coevolve, tmp_path, gold):
    out = tmp_path / "out"
    done = coevolve(*at(out, data(gold)), limit=4096)
    refused(done, out, "cannot be written", "make room")


def test_a_jvm_without_memory(coevolve, tmp_path):
    """py4j logs tracebacks of the lost connection, but the command ends with a sentence."""
    out = tmp_path / "out"
    job = ("stage", "gold", "--suite", "smoke", "--set", "envs.sciworld.memory_mb=2", "--on", "env=sciworld")
    done = coevolve(*job, "--out", str(out))
    last = done.stderr.splitlines()[-1]
    assert last.startswith("coevolve: the ScienceWorld JVM failed during making a world in a heap of 2 MB"), last
    assert (done.returncode, out.exists()) == (2, False)


def test_a_database_server_without_memory(coevolve, tmp_path, upstream):
    out, dump = tmp_path / "out", upstream / "intercode/ic_spider_dbs.sql"
    settings = ("--set", f"envs.intercode_sql.dump.path={dump}", "--set", "envs.intercode_sql.server.memory_mb=10")
    job = ("stage", "data", "--suite", "smoke", *settings, "--on", "env=intercode_sql", "--out", str(out))
    refused(coevolve(*job, f"dump={dump}"), out, "did not start", "`server.memory_mb`")


def test_a_policy_directory_without_weights(coevolve, tmp_path):
    out, policy = tmp_path / "out", tmp_path / "policy" / "policy.json"
    policy.parent.mkdir()
    policy.write_text(json.dumps({"name": "x", "sha256": "0" * 64}))
    (tmp_path / "tasks.jsonl").write_text("")
    (tmp_path / "instruction.txt").write_text("")
    done = coevolve(
        "stage", "evaluate", "--suite", "smoke", "--out", out, "--on", "model=tiny", "--on", "env=sciworld",
        "--on", "branch=base/seed0", f"policy={policy}", f"tasks={tmp_path / 'tasks.jsonl'}",
        f"instruction={tmp_path / 'instruction.txt'}",
    )  # fmt: skip
    refused(done, out, str(policy.parent), "weights")


def test_an_interrupted_tokenizer_build_leaves_nothing_and_starts_again(coevolve, root, tmp_path, gold):
    out = tmp_path / "untrained"
    command = [
        "stage", "untrained", "--suite", "smoke", "--out", str(out), "--on", "model=tiny", "--on", "env=sciworld",
        "--on", "branch=base/untrained", f"corpus={gold}",
    ]  # fmt: skip
    # Killed when its scratch folder is there and nothing is imported yet, then while it writes its files.
    for first in (".work-untrained", ".untrained*/*"):
        process = subprocess.Popen([sys.executable, "-m", "coevolve", *command], cwd=root, stderr=subprocess.DEVNULL)
        while not list(tmp_path.glob(first)):
            assert process.poll() is None
            time.sleep(0.001)
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
        assert not out.exists()
    assert coevolve(*command).returncode == 0
    assert json.loads((out / "policy.json").read_text())["sha256"]
    assert sorted(path.name for path in out.parent.iterdir() if path.name.startswith(".untrained")) == []


def test_overlapping_splits_stop_fixed_and_are_counted_by_paper(coevolve, tmp_path, gold):
    """ETO's seen items overlap its training list: `fixed` refuses to keep them, `paper` keeps and counts them."""
    lists = ["envs.sciworld.tasks.lists=eto", "envs.sciworld.tasks.sft=null", "envs.sciworld.tasks.evaluate=null"]
    lists += [
        "envs.sciworld.tasks.explore=null",
        "envs.sciworld.tasks.explore_sft=true",
        "envs.sciworld.tasks.kinds=null",
    ]
    out = tmp_path / "fixed"
    done = coevolve(*at(out, data(gold, *lists, "protocols.fixed.overlap=keep")))
    refused(done, out, "envs.sciworld.tasks", "54 tasks are in training and in evaluation", "`overlap: remove`")
    assert coevolve(*at(tmp_path / "removed", data(gold, *lists))).returncode == 0
    assert coevolve(*at(tmp_path / "paper", data(gold, *lists, "protocol=paper"))).returncode == 0
    notes = {
        name: json.loads((tmp_path / name / "provenance.json").read_text())["notes"] for name in ("removed", "paper")
    }
    assert (notes["removed"]["overlap"], notes["removed"]["still_overlapping"]) == (54, 0)
    assert (notes["paper"]["overlap"], notes["paper"]["still_overlapping"]) == (54, 54)


@pytest.fixture
def gold(root):
    return root / "data/sciworld/gold.jsonl"


def at(out, arguments):
    return [str(out) if argument == "OUT" else argument for argument in arguments]


def source(path, format_):
    prefix = "envs.sciworld.experts"
    return [f"{prefix}.path={path}", f"{prefix}.format={format_}", f"{prefix}.sha256='{files.sha256(path)}'"]


def test_a_job_that_the_suite_does_not_have(coevolve, tmp_path):
    out = tmp_path / "out"
    about = [word for name in ("model=tiny", "env=sciworld", "agent=target") for word in ("--on", name)]
    done = coevolve("stage", "train", "--suite", "smoke", "--out", out, *about, "--on", "branch=nothing/seed0/iter1")
    refused(done, out, "stage `train`", "suite `smoke` has no job with", "branch=nothing/seed0/iter1", "correct --on")


def test_a_pool_without_a_task_is_not_explored(coevolve, tmp_path):
    """Its explorations would have no episode, which no product takes."""
    pool, instruction, out = tmp_path / "pool.jsonl", tmp_path / "instruction.txt", tmp_path / "out"
    pool.write_text("")
    instruction.write_text("")
    on = ("model=tiny", "env=bfcl", "branch=coevolve_agent_data/seed0/iter1")
    names = [word for name in on for word in ("--on", name)]
    command = ["stage", "pool_experts", "--suite", "smoke_agent_data", *names, "--out", str(out)]
    done = coevolve(*command, f"pool={pool}", f"instruction={instruction}")
    refused(done, out, "pool.jsonl: the pool has no task; raise `task_evolution.initial_fragments`")


def test_an_input_that_the_stage_does_not_read(coevolve, tmp_path):
    out, record = tmp_path / "out", tmp_path / "records.jsonl"
    record.write_text("")
    done = coevolve("stage", "figure3", "--suite", "smoke", "--out", out, f"record={record}")
    refused(done, out, "stage `figure3` has no input `record`", "did you mean `records`?")
    done = coevolve("stage", "figure3", "--suite", "smoke", "--out", out, f"machine={record}")
    refused(done, out, "stage `figure3` has no input `machine`", "it reads records")
