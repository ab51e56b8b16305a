"""`make gpu` on a CPU with tiny shapes: its lines, its journal, its verdicts."""

import importlib
import json
import subprocess
import sys

import pytest

FAST = ["losses and gradients", "attention of packed rows", "SFT 1.1B, flat", "reference 1.1B", "policy 1.1B on disk"]


@pytest.fixture
def gpu(root, monkeypatch):
    """The program as a module, for its processes too; packages of tests have the names of two other benchmarks."""
    monkeypatch.syspath_prepend(root / "benchmarks")
    others = {name: sys.modules.pop(name) for name in list(sys.modules) if name.split(".")[0] in ("train", "rollout")}
    yield importlib.import_module("gpu")
    for name in ("train", "rollout"):
        sys.modules.pop(name, None)
    sys.modules.update(others)


def run(root, out, *options):
    command = [sys.executable, root / "benchmarks/gpu.py", "--small", "--out", out, *options]
    return subprocess.run(
        command, cwd=root, env={"PYTHONPATH": str(root), "PATH": "/usr/bin:/bin"}, capture_output=True, text=True
    )


def test_lines_are_written_as_they_come_and_not_measured_again(root, tmp_path):
    none = run(root, tmp_path, "--lines", *FAST, "--minutes", "0")
    assert none.stdout.count("not reached") == 2 * len(FAST) and not (tmp_path / "lines.jsonl").exists()
    some = run(root, tmp_path, "--lines", *FAST[:2])
    assert some.returncode == 0, some.stderr
    first = (tmp_path / "lines.jsonl").read_text()
    every = run(root, tmp_path, "--lines", *FAST)
    lines = [json.loads(line) for line in (tmp_path / "lines.jsonl").read_text().splitlines()]
    assert (tmp_path / "lines.jsonl").read_text().startswith(first)
    assert [line["line"] for line in lines] == FAST and {line["verdict"] for line in lines} == {"ok"}
    assert 0 < lines[0]["values"]["float32"] < 1e-5 < lines[0]["values"]["bfloat16"] < 5e-2
    assert all(name in every.stdout for name in FAST) and "reading: " in (tmp_path / "machine.yaml").read_text()


def test_a_line_that_fails_or_wants_a_package_says_so(gpu, tmp_path, monkeypatch):
    monkeypatch.setitem(gpu.LINES, "device", gpu.Line(gpu.device, ("torch", "no_such_package")))
    assert gpu.measure_line("device", gpu.SMALL, tmp_path, None, 9).verdict == "skipped: no no_such_package"
    broken = gpu.replace(gpu.SMALL, pairs=1)
    with gpu.one_process(tmp_path / "log") as worker:
        failed = gpu.measure_line("SFT 1.1B, flat", broken, tmp_path, worker, 99)
        hanging = gpu.measure_line("losses and gradients", gpu.SMALL, tmp_path, worker, 0.01)
        after = gpu.measure_line("losses and gradients", gpu.SMALL, tmp_path, worker, 99)
    assert failed.verdict == "FAILED" and "--pairs" in failed.figures
    assert hanging.verdict == "FAILED" and "not ready after 0 s" in hanging.figures
    assert after.verdict == "ok"


@pytest.mark.parametrize("device", ["h100"])
def test_a_committed_table_is_that_of_its_lines(root, gpu, device):
    folder = root / "benchmarks" / "measured" / device
    lines = [json.loads(line) for line in (folder / "lines.jsonl").read_text().splitlines()]
    (name,) = {line["machine"] for line in lines}
    assert (folder / "gpu.md").read_text() == gpu.page(name, {line["line"]: gpu.outcome(line) for line in lines})
    assert all(len(line["commit"]) == 40 for line in lines)


def test_the_planned_memory_of_a_training_is_what_was_measured(root, gpu):
    """Within 5 %, on one device; at 7B with adapters."""
    lines = (root / "benchmarks/measured/h100/lines.jsonl").read_text().splitlines()
    measured = {line["line"]: line["values"].get("memory") for line in map(json.loads, lines)}
    shapes = {"1.1B": gpu.Sizes().one, "7B": gpu.Sizes().seven}
    rows = {
        "SFT 1.1B, flat": "SFT, flat", "DPO 1.1B, padded": "padded", "DPO 1.1B, shared": "shared",
        "SFT 7B, adapters": "SFT, flat", "DPO 7B, adapters": "shared, actions alone",
    }  # fmt: skip
    for line, row in rows.items():
        shape = shapes[line.split()[1].rstrip(",")]
        setting = gpu.training(gpu.Sizes(one=shape))
        plan = gpu.planned_memory(gpu.parameters_of(shape), setting, row, "adapters" in line)
        assert plan == pytest.approx(measured[line], rel=0.05), line


@pytest.mark.slow
def test_every_line_runs_on_a_cpu(root, tmp_path):
    done = run(root, tmp_path, "--minutes", "30")
    lines = [json.loads(line) for line in (tmp_path / "lines.jsonl").read_text().splitlines()]
    failed = [line for line in lines if line["verdict"] == "FAILED" or line["verdict"].startswith("DIFFERS")]
    assert done.returncode == 0 and not failed and len(lines) == 18
