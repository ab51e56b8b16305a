"""Every command that prints or copies a result refuses a file that was edited by hand, whatever its time of change."""

import contextlib
import os
import shutil
from pathlib import Path

import pytest

SUITE = ("--suite", "configs/glance.yaml")
ITERATION = "results/glance/tiny/webshop/coevolve/seed0/iter1"
RECORDS, EPISODES = f"{ITERATION}/eval/records.jsonl", f"{ITERATION}/eval/episodes.jsonl"
PAIRS, POLICY = f"{ITERATION}/pairs/target/pairs.jsonl", f"{ITERATION}/policy/target/policy.json"


@pytest.fixture
def here(made, tmp_path):
    """A copy of the finished suite, to edit."""
    with contextlib.chdir(shutil.copytree(made, tmp_path / "run", symlinks=True)):
        yield


def lose_a_line(file: str) -> None:
    """Edit a file so that it can still be read; by its time of change it is older than its provenance."""
    path = Path(file)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:-1]) or lines[0].rstrip() + b" \n")
    os.utime(path, (1e9, 1e9))


@pytest.mark.parametrize(
    ("file", "command"),
    [
        (RECORDS, ("compare", f"{ITERATION}/eval")),
        (EPISODES, ("compare", f"{ITERATION}/eval")),
        (RECORDS, ("verify", *SUITE)),
        (RECORDS, ("regime", *SUITE)),
        ("results/glance/tiny/webshop/base/seed0/rollout/target/episodes.jsonl", ("regime", *SUITE)),
        (f"{ITERATION}/pairs/target/summary.json", ("regime", *SUITE)),
        (EPISODES, ("view", *SUITE)),
        (PAIRS, ("view", *SUITE)),
        ("results/glance/paper/table1/table1.md", ("view", *SUITE)),
        (RECORDS, ("export", "inspect", f"{ITERATION}/eval", "--out", "OUT")),
        (RECORDS, ("export", "reference", *SUITE, "--out", "OUT")),
        (RECORDS, ("export", "evidence", *SUITE, "--out", "OUT")),
        (EPISODES, ("export", "dataset", f"{ITERATION}/eval", "--out", "OUT")),
        (PAIRS, ("export", "trl", f"{ITERATION}/pairs/target", "--out", "OUT")),
        (POLICY, ("export", "model", f"{ITERATION}/policy/target", "--out", "OUT")),
    ],
    ids=lambda value: " ".join(value[:2]) if isinstance(value, tuple) else Path(value).name,
)
def test_an_edited_file_is_refused(here, coevolve, tmp_path, file, command):
    arguments = [str(tmp_path / "out") if word == "OUT" else word for word in command]
    assert coevolve(*arguments)[0] in (0, 1, 3), "as it was made"
    shutil.rmtree(tmp_path / "out", ignore_errors=True)
    shutil.rmtree("results/glance/view", ignore_errors=True)
    lose_a_line(file)
    status, out, error = coevolve(*arguments)
    assert (status, out) == (2, "") and f"{file}: the file was changed: its sha256 is" in error
    assert not (tmp_path / "out").is_dir() and not Path("results/glance/view").exists()


def test_a_file_without_provenance_is_called_unchecked(here, coevolve, caplog):
    Path("theirs.yaml").write_text("label: theirs\nsettings: {}\nsplits: {test: {tasks: 9, mean_reward: 0.5}}\n")
    assert coevolve("compare", "theirs.yaml", f"{ITERATION}/eval")[0] == 0
    assert [record.getMessage() for record in caplog.records if "unchecked" in record.getMessage()] == [
        "theirs.yaml: unchecked: no provenance.json beside it lists its sha256."
    ]


def test_status_finds_an_edit_that_is_older_than_the_provenance(here, coevolve):
    assert "Report page: results/glance/paper/page/report.html" in coevolve("status", *SUITE)[1]
    lose_a_line(RECORDS)
    status, out, _ = coevolve("status", *SUITE)
    assert status == 1 and f"{RECORDS}: the file was changed after its stage made it" in out


def test_status_takes_weights_by_their_time_and_reads_all_with_full(here, coevolve):
    weights = Path(f"{ITERATION}/policy/target/model.safetensors")
    made = weights.stat()
    weights.write_bytes(weights.read_bytes()[:-1] + b"\0")
    os.utime(weights, ns=(made.st_atime_ns, made.st_mtime_ns))
    assert coevolve("status", *SUITE)[0] == 0, "it is no newer than its provenance"
    status, out, _ = coevolve("status", *SUITE, "--full")
    assert status == 1 and f"{weights}: the file was changed" in out
