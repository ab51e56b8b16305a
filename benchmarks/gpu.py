"""A GPU's first ten minutes: is it right, is it fast, does the plan know it? One table, one line and one verdict each.

    make gpu
    python benchmarks/gpu.py --out DIR --minutes 8 --lines "rollout 7B"

It needs torch, transformers and the kit's own packages, and no network; a line that wants another package prints
"skipped: no deepspeed". A line is written when it is measured, and the same command goes on after the last one.
`--minutes` ends the measuring: what was not reached says so. `--small` runs the same lines with tiny shapes, on a CPU
too: it tests this script, not a machine.

Weights are random. An MFU counts 6 N operations for each trained token of either side of a pair, and 2 N for each
token that is only read or sampled, over the data sheet's peak. The planned figures are those of `configs/machines/
h100.yaml` and of `training_memory` (coevolve/config/models.py). A committed table has those of its commit.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import multiprocessing
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures import TimeoutError as OutOfTime
from dataclasses import asdict, dataclass, field, replace
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from tabulate import tabulate

ROOT = Path(__file__).parents[1]
#: Operations per second in bfloat16 without sparsity, by a part of the device's name: NVIDIA's data sheets.
PEAKS = {"H100": 989e12, "H200": 989e12, "A100": 312e12, "L40S": 362e12}
#: The largest relative difference of losses and gradients between devices: float32, and bfloat16 by autocast.
ROUNDING = {"float32": 1e-4, "bfloat16": 5e-2}
Values = dict[str, float]


@dataclass(frozen=True)
class Sizes:
    """What the lines measure: shapes as hidden, layers, heads, intermediate and vocabulary; tokens of a side."""

    small: tuple[int, ...] = (64, 2, 2, 128, 900)
    one: tuple[int, ...] = (2048, 22, 32, 5632, 32000)
    seven: tuple[int, ...] = (4096, 32, 32, 11008, 32000)
    length: int = 4096
    pairs: int = 16
    episodes: int = 64
    matrix: int = 8192


SMALL = Sizes(one=(64, 2, 2, 128, 900), seven=(64, 2, 2, 128, 900), length=96, pairs=6, episodes=4, matrix=256)


@dataclass(frozen=True)
class Outcome:
    """A line of the table; `values` are what other lines and the machine file take from it."""

    verdict: str
    figures: str
    values: Values = field(default_factory=dict)


@dataclass(frozen=True)
class Line:
    """`needs`: packages; `seconds`: after these the line counts as hanging."""

    measure: Callable[[Sizes, Path], Outcome]
    needs: tuple[str, ...] = ("pydantic",)
    seconds: int = 120


def on_gpu() -> bool:
    """Whether the lines run on a GPU."""
    return torch.cuda.is_available()


def synchronised() -> float:
    """The time in seconds when the device has done what it was given."""
    if on_gpu():
        torch.cuda.synchronize()
    return time.perf_counter()


def seconds_of(run: Callable[[], object], times: int = 10) -> float:
    """Mean seconds of a call, after one to warm up."""
    run()
    began = synchronised()
    for _ in range(times):
        run()
    return (synchronised() - began) / times


@functools.cache
def peak() -> float:
    """The device's operations per second by its data sheet; without one that of the matrix products measured here."""
    name = torch.cuda.get_device_name() if on_gpu() else ""
    known = [value for part, value in PEAKS.items() if part in name]
    return known[0] if known else products(8192 if on_gpu() else 256)


def products(size: int) -> float:
    """Operations per second of square matrix products: bfloat16 on a GPU, float32 on a CPU."""
    device, dtype = ("cuda", torch.bfloat16) if on_gpu() else ("cpu", torch.float32)
    one = torch.randn(size, size, device=device, dtype=dtype)
    return 2 * size**3 / seconds_of(lambda: one @ one, 20)


def device(sizes: Sizes, _: Path) -> Outcome:
    """What the machine is, and how near its products come to the data sheet."""
    flops = products(sizes.matrix)
    block = torch.empty(2**28 if on_gpu() else 2**20, device="cuda" if on_gpu() else "cpu")
    bandwidth = 2 * 4 * block.numel() / seconds_of(block.clone)
    memory = torch.cuda.get_device_properties(0).total_memory if on_gpu() else 0
    figures = f"products {flops / 1e12:.3g} TFLOP/s, copies {bandwidth / 1e9:.4g} GB/s, memory {memory / 1e9:.1f} GB"
    near = flops >= 0.6 * peak()
    return Outcome("ok" if near else "SLOW: products below 0.6 of the data sheet", figures, {"products": flops})


def losses(sizes: Sizes, _: Path) -> Outcome:
    """Eq. 9 and its gradient on the device, in every layout and with both heads, against a CPU's padded rows."""
    reference, _ = gradient_of(sizes, "cpu", "padded", tiled=False, mixed=False)
    worst = dict.fromkeys(ROUNDING, 0.0)
    where = "cuda" if on_gpu() else "cpu"
    for layout in ("padded", "flat", "shared"):
        for tiled in (False, True) if on_gpu() else (False,):
            for dtype in ROUNDING:
                own, _ = gradient_of(sizes, where, layout, tiled=tiled, mixed=dtype == "bfloat16")
                worst[dtype] = max(worst[dtype], float((own - reference).norm() / reference.norm()))
    agree = all(worst[dtype] <= limit for dtype, limit in ROUNDING.items())
    figures = ", ".join(f"{dtype} {value:.1e} (at most {ROUNDING[dtype]:g})" for dtype, value in worst.items())
    return Outcome("ok" if agree else "DIFFERS from the CPU", f"largest relative difference: {figures}", worst)


def gradient_of(sizes: Sizes, where: str, layout: Any, *, tiled: bool, mixed: bool) -> tuple[torch.Tensor, float]:
    """Loss and all gradients of six pairs as one vector of float64, and the loss."""
    import train

    from coevolve.train.collate import PairCollator, add_tiled_head, token_logps
    from coevolve.train.losses import TokenLogps, pair_losses
    from coevolve.train.varlen_attention import enable

    setting = training(replace(sizes, one=sizes.small, length=96, pairs=6))
    torch.manual_seed(0)
    model = train.random_llama(setting, 96, "cpu").to(where)
    if layout != "padded":
        enable(model)
    if tiled:
        add_tiled_head(model)
    batch = PairCollator(train.random_pairs(setting), layout)(range(setting.pairs))
    moved = {name: moved_to(value, where) for name, value in batch.items()}
    with torch.autocast(where, torch.bfloat16, enabled=mixed):
        logps = token_logps(model, moved, tiled=tiled)
    sides = [TokenLogps(p, r, m) for p, r, m in zip(
        logps.chunk(2), (0.9 * logps.detach()).chunk(2), moved["action_mask"].chunk(2), strict=True)]  # fmt: skip
    weights = torch.ones(setting.pairs, device=where, dtype=logps.dtype)
    loss = pair_losses(*sides, weights, 0.5 * weights, 0.1, "mean").loss.mean()
    loss.backward()
    parts = [loss.detach().reshape(1), *(p.grad.flatten() for p in model.parameters())]
    return torch.cat([part.double().cpu() for part in parts]), float(loss)


def moved_to(value: Any, where: str) -> Any:
    """Tensors of a micro-batch on the device."""
    if isinstance(value, dict):
        return {name: moved_to(part, where) for name, part in value.items()}
    return value.to(where) if isinstance(value, torch.Tensor) else value


def attention(sizes: Sizes, _: Path) -> Outcome:
    """PyTorch's kernel for sequences of different lengths against one segment at a time: numbers, then seconds."""
    from coevolve.train import varlen_attention

    dtype = torch.bfloat16 if on_gpu() else torch.float32
    states, segments = packed(sizes, dtype)
    exact, _ = packed(sizes, torch.float32)
    found = []
    for queries in (states, exact):
        given = [state.detach().requires_grad_() for state in queries]
        seen, _ = varlen_attention.attend(torch.nn.Module(), *given, None, scaling=0.125, **segments)
        found.append([seen, *torch.autograd.grad(seen.float().sum(), given)])
    worst = max(float((a.float() - b.float()).norm() / b.float().norm()) for a, b in zip(*found, strict=True))
    lengths = segments["cu_seq_lens_q"], segments["cu_seq_lens_k"]
    kernel = seconds_of(lambda: varlen_attention.attend(torch.nn.Module(), *states, None, scaling=0.125, **segments))
    loop = seconds_of(lambda: varlen_attention._attend_segments(*states, *lengths, 0.125))
    figures = f"largest relative difference {worst:.1e}, one call {loop / kernel:.1f} times as fast as one a segment"
    return Outcome("ok" if worst <= 2e-2 else "DIFFERS from one segment at a time", figures, {"ratio": loop / kernel})


def packed(sizes: Sizes, dtype: torch.dtype) -> tuple[list[torch.Tensor], dict[str, Any]]:
    """Queries, keys and values [1, heads, T, 64] of eight segments, and how they lie."""
    where, heads = ("cuda", 32) if on_gpu() else ("cpu", 2)
    generator = torch.Generator(where).manual_seed(0)
    lengths = [max(1, sizes.length * part // 8) for part in (8, 5, 3, 8, 2, 1, 7, 6)]
    ends = torch.tensor([0, *torch.tensor(lengths).cumsum(0)], dtype=torch.int32, device=where)
    shape = (1, heads, sum(lengths), 64)
    states = [torch.randn(shape, device=where, generator=generator).bfloat16().to(dtype) for _ in range(3)]
    longest = max(lengths)
    return states, {"cu_seq_lens_q": ends, "cu_seq_lens_k": ends, "max_length_q": longest, "max_length_k": longest}


def training(sizes: Sizes, shape: str = "one", **others: Any) -> Any:
    """The setting of a training line: pairs of two random sides that begin alike."""
    import train

    return train.Setting(
        getattr(sizes, shape), pairs=sizes.pairs, length=sizes.length, alike=0.3, batch=2, epochs=3,
        threads=torch.get_num_threads(), peak=peak(), **others,
    )  # fmt: skip


def trained(row: str, shape: str = "one", adapters: bool = False) -> Callable[[Sizes, Path], Outcome]:
    """A line that trains as the row of benchmarks/train.py says."""

    def measure(sizes: Sizes, _: Path) -> Outcome:
        import train

        from coevolve.train.settings import LoraConfig

        lora = LoraConfig(rank=16, alpha=32, dropout=0.0, target_modules="all-linear") if adapters else None
        setting = training(sizes, shape, lora=lora)
        free_memory()
        return judged(train.measure_row(row, setting), setting, row, adapters)

    return measure


def judged(row: Any, setting: Any, name: str, adapters: bool) -> Outcome:
    """Tokens per second, MFU and memory of a training beside the plan's."""
    speed = row.tokens / row.seconds[0]
    mfu = 6 * row.parameters * speed / setting.peak
    memory = planned_memory(row.parameters, setting, name, adapters)
    figures = f"{speed:,.0f} tokens/s, MFU {mfu:.2f} (plan {planned('training'):.2f})"
    figures += (
        f", {row.memory / 1e9:.1f} GB (plan {memory / 1e9:.1f}), losses {row.losses[0]:.4f}, {row.losses[-1]:.4f}"
    )
    slower = "" if mfu >= planned("training") else "slower than planned"
    larger = "" if row.memory <= memory else "more memory than planned"
    verdict = ", ".join(filter(None, (slower, larger))) if on_gpu() else ""
    values = {"speed": speed, "mfu": mfu, "memory": row.memory, "loss": row.losses[-1]}
    if row.scoring[0]:
        values["reading"] = 2 * row.parameters * row.tokens / row.scoring[0] / setting.peak
    return Outcome(verdict or "ok", figures, values)


def planned_memory(parameters: int, setting: Any, row: str, adapters: bool) -> float:
    """Bytes that the plan counts for the micro-batch of a row: both sides of pairs, or single sequences."""
    from coevolve.config.models import training_memory

    alike = setting.alike if row.startswith("shared") else 0.0
    tokens = setting.batch * setting.length * (1 if row.startswith("SFT") else 2 - alike)
    trained = 0.006 if adapters else 1.0  # rank 16 on all matrices of 7B
    return training_memory(parameters, tokens, shape=setting.shape[:2], trained=trained)


def planned(key: str) -> float:
    """A constant of the example machine's cost model."""
    from coevolve.config.loading import read_machine

    return float(getattr(read_machine("h100").costs, key))


def reference(sizes: Sizes, _: Path) -> Outcome:
    """The log-probs of both sides of the pairs under a frozen policy, as the stage `reference` computes them."""
    import train

    from coevolve.train import reference_logps

    setting = training(sizes)
    free_memory()
    model = train.random_llama(setting, sizes.length)
    rows = [side.input_ids for pair in train.random_pairs(setting) for side in (pair.chosen, pair.rejected)]
    reference_logps.score(model, rows[:1], lambda *_: None)
    began = synchronised()
    reference_logps.score(model, rows, lambda *_: None)
    speed = sum(map(len, rows)) / (synchronised() - began)
    used = 2 * model.num_parameters() * speed / setting.peak
    return Outcome("ok", f"{speed:,.0f} tokens/s, {used:.2f} of the peak (2 N)", {"speed": speed, "share": used})


def loaded(sizes: Sizes, work: Path) -> Outcome:
    """A policy written in float32, hashed, and loaded onto the device."""
    from coevolve.policies import loading
    from coevolve.storage import policy_dir

    folder = policy(sizes, work)
    bytes_ = sum(file.stat().st_size for file in folder.iterdir())
    began = time.perf_counter()
    policy_dir.describe(folder)
    hashed = time.perf_counter() - began
    began = synchronised()
    loading.load_model(folder, torch.float32).to("cuda" if on_gpu() else "cpu")
    read = synchronised() - began
    figures = f"{bytes_ / 1e9:.2f} GB: hashed at {bytes_ / hashed / 1e9:.2f} GB/s, loaded at {bytes_ / read / 1e9:.2f}"
    return Outcome("ok", figures, {"load_bytes": bytes_ / read})


def policy(sizes: Sizes, work: Path) -> Path:
    """A policy directory with random weights of the smaller shape; made once."""
    import rollout

    from coevolve.storage import policy_dir

    folder = work / "policy"
    if not (folder / policy_dir.REF_NAME).exists():
        shutil.rmtree(folder, ignore_errors=True)
        shape = rollout.Shape(*sizes.one)
        made = rollout.random_llama(
            shape, rollout.read_gold(), rollout.CONTEXT, "cuda" if on_gpu() else "cpu", "float32"
        )
        made.model.save_pretrained(folder)
        made.tokenizer.save_pretrained(folder)
        policy_dir.seal(folder, "random", "random", "none")
    return folder


def group_steps(sizes: Sizes, work: Path) -> Outcome:
    """Two steps of GRPO: episodes of recorded observations with a made-up reward, and their update."""
    import rollout

    from coevolve.chat.prompts import prompt_messages
    from coevolve.train import grpo, online, policy_io
    from coevolve.train.settings import GrpoConfig

    group = max(2, sizes.episodes // 8)
    gold = rollout.read_gold()
    tasks = rollout.chosen(gold, sizes.episodes // group)
    setup = online.OnlineSetup(
        tasks, [rollout.Rewarded(gold) for _ in range(sizes.episodes)], prompt_messages, "fixed", "end", 16, 0
    )
    config = GrpoConfig(
        epochs=1, batch_size=sizes.episodes, micro_batch=4, warmup=0.0, schedule="constant", weight_decay=0.0,
        max_grad_norm=1.0, save_steps=1_000_000, learning_rate=1e-6, group=group, beta=0.04, clip=0.2,
    )  # fmt: skip
    free_memory()
    with tempfile.TemporaryDirectory(dir=work) as folder:
        run = policy_io.TrainingRun(policy(sizes, work), Path(folder) / "out", Path(folder) / "work", 0)
        run.work.mkdir()
        trainer = grpo.group_trainer(online.Explorer(setup, run), [tasks, tasks], config, run)
        began = synchronised()
        trainer.train()
        seconds = (synchronised() - began) / 2
    steps = [entry for entry in trainer.state.log_history if "loss" in entry]
    finite = all(abs(entry["grad_norm"]) < 1e6 for entry in steps)
    memory = torch.cuda.max_memory_allocated() / 1e9 if on_gpu() else 0.0
    figures = f"{seconds:.1f} s a step of {sizes.episodes} episodes, {memory:.1f} GB, "
    figures += f"gradient norms {', '.join(format(entry['grad_norm'], '.3g') for entry in steps)}"
    return Outcome("ok" if finite and len(steps) == 2 else "NOT FINITE", figures, {"seconds": seconds})


def played(shape: str, baseline: int) -> Callable[[Sizes, Path], Outcome]:
    """A line that plays recorded observations in bfloat16 by the kit's engine, and a few by re-encoding."""

    def measure(sizes: Sizes, _: Path) -> Outcome:
        import rollout

        where = {"device": "cuda", "dtype": "bfloat16"} if on_gpu() else {}
        free_memory()
        own = rollout.Shape(*getattr(sizes, shape))
        _, fast = rollout.measure(own, episodes=sizes.episodes, envs=sizes.episodes, baseline=baseline, **where)
        figures = f"{fast['episodes']} episodes in {fast['seconds']} s, {fast['sampled/s']} tokens/s sampled and "
        figures += f"{fast['read/s']} read, {fast['ratio']} times re-encoding, same episodes {fast['same']}"
        values = {name: float(fast[f"{name}/s"]) for name in ("sampled", "read")}
        faster = float(fast["ratio"]) > 1
        return Outcome("ok" if faster else "SLOWER than re-encoding", figures, values)

    return measure


def free_memory() -> None:
    """Give back what an earlier line held, and count the peak anew."""
    import gc

    gc.collect()
    if on_gpu():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def dag(_: Sizes, __: Path) -> Outcome:
    """Co-evolving with a tiny model on WebShop, from the data to the evaluation, by Snakemake."""
    target = "results/gpu/tiny/webshop/coevolve/seed0/iter1/eval/records.jsonl"
    shutil.rmtree(ROOT / "results" / "gpu", ignore_errors=True)
    config = ["suite=benchmarks/gpu.yaml", "machine=cpu"]
    began = time.perf_counter()
    run([sys.executable, "-m", "snakemake", "--profile", "smoke", "--config", *config, "--", target], 240)
    jobs = len(list((ROOT / "results" / "gpu").rglob("provenance.json")))
    return Outcome("ok", f"{jobs} results in {time.perf_counter() - began:.0f} s")


def zero3(sizes: Sizes, work: Path) -> Outcome:
    """SFT under DeepSpeed's ZeRO-3 with one process: the loss of the same training without it."""
    small, result = ["--small"] if sizes == SMALL else [], work / "zero3.json"
    result.unlink(missing_ok=True)
    launch = [sys.executable, "-m", "accelerate.commands.launch", "--config_file", "configs/accelerate/zero3.yaml"]
    rank = ["--num_processes", "1", "--num_machines", "1", "--machine_rank", "0", "--main_process_port", "0"]
    run([*launch, *rank, __file__, *small, "--out", str(work), "--zero3", str(result)], 200)
    own = json.loads(result.read_text())
    free_memory()
    alone = trained("SFT, flat")(sizes, work).values["loss"]
    apart = abs(own["values"]["loss"] - alone) / abs(alone)
    figures = f"{own['figures']}; without ZeRO-3 the last loss differs by {apart:.1e}"
    return Outcome("ok" if apart <= 1e-2 else "DIFFERS from the training without ZeRO-3", figures)


def run(command: Sequence[str], seconds: int) -> None:
    """Run a command from the repository's root; raises `RuntimeError` with its last lines if it fails."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path[1:]])}
    if not on_gpu():
        environment["ACCELERATE_USE_CPU"] = "1"
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=seconds)
    if done.returncode:
        raise RuntimeError(" / ".join((done.stdout + done.stderr).strip().splitlines()[-12:]))


TRAINER = ("pydantic", "trl", "datasets")
LINES = {
    "device": Line(device, ()),
    "losses and gradients": Line(losses, TRAINER),
    "attention of packed rows": Line(attention),
    "SFT 1.1B, padded": Line(trained("SFT, padded"), TRAINER),
    "SFT 1.1B, flat": Line(trained("SFT, flat"), TRAINER),
    "DPO 1.1B, TRL's defaults": Line(trained("TRL's defaults"), TRAINER),
    "DPO 1.1B, padded": Line(trained("padded"), TRAINER),
    "DPO 1.1B, flat": Line(trained("flat"), TRAINER),
    "DPO 1.1B, shared": Line(trained("shared"), TRAINER),
    "reference 1.1B": Line(reference, TRAINER),
    "policy 1.1B on disk": Line(loaded),
    "GRPO 1.1B": Line(group_steps, TRAINER),
    "rollout 1.1B": Line(played("one", 2)),
    "rollout 7B": Line(played("seven", 1)),
    "SFT 7B, adapters": Line(trained("SFT, flat", "seven", adapters=True), (*TRAINER, "peft")),
    "DPO 7B, adapters": Line(trained("shared, actions alone", "seven", adapters=True), (*TRAINER, "peft")),
    "tiny DAG": Line(dag, (*TRAINER, "snakemake"), 260),
    "ZeRO-3, one process": Line(zero3, (*TRAINER, "deepspeed"), 260),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "gpu", help="folder of the table (resumes there)")
    parser.add_argument("--minutes", type=float, default=8.0, help="no line starts after these")
    parser.add_argument("--lines", nargs="+", choices=list(LINES), default=list(LINES), metavar="LINE")
    parser.add_argument("--small", action="store_true", help="tiny shapes, also on a CPU")
    parser.add_argument("--zero3", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    sizes = SMALL if options.small else Sizes()
    if not (options.small or on_gpu()):
        parser.error("PyTorch sees no GPU here; `--small` tests the script without one.")
    if options.zero3:
        options.zero3.write_text(json.dumps(asdict(trained("SFT, flat")(sizes, options.out))))
        return
    measured = measure_lines(options.lines, sizes, options.out, 60 * options.minutes)
    (options.out / "gpu.md").write_text(page(machine(), measured))
    (options.out / "machine.yaml").write_text(machine_file(measured, sizes))
    print(f"\n{page(machine(), measured)}\n{machine_file(measured, sizes)}")


def measure_lines(names: Sequence[str], sizes: Sizes, out: Path, seconds: float) -> dict[str, Outcome]:
    """The outcome of each line, printed and written as it comes; those in the journal are not measured again."""
    out.mkdir(parents=True, exist_ok=True)
    began, measured = time.monotonic(), journalled(out / "lines.jsonl")
    with one_process(out / "lines.log") as worker:
        for name in names:
            if name not in measured:
                fresh = measure_line(name, sizes, out, worker, seconds - (time.monotonic() - began))
                measured[name] = fresh
                if fresh.verdict != "not reached":
                    with (out / "lines.jsonl").open("a") as journal:
                        journal.write(
                            json.dumps({"machine": machine(), "commit": commit(), "line": name, **asdict(fresh)}) + "\n"
                        )
            print(f"{name:26}{measured[name].verdict}: {measured[name].figures}", flush=True)
    shutil.rmtree(out / "policy", ignore_errors=True)
    return {name: measured[name] for name in names}


def measure_line(name: str, sizes: Sizes, out: Path, worker: Worker, left: float) -> Outcome:
    """The outcome of a line; whatever goes wrong in it is its verdict."""
    line = LINES[name]
    missing = [package for package in line.needs if not find_spec(package)]
    if missing:
        return Outcome(f"skipped: no {', '.join(missing)}", "")
    if left <= 0:
        return Outcome("not reached", "")
    try:
        return worker.run(name, sizes, out, min(line.seconds, left))
    except OutOfTime:
        return Outcome("FAILED", f"not ready after {min(line.seconds, left):.0f} s")
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a failure is the line's verdict, and the others are measured
        return Outcome("FAILED", f"{type(error).__name__}: {' '.join(str(error).split())[:600]}")


class Worker:
    """A process that measures lines; a new one after a line that hangs or ends it."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self.pool = self._new()

    def run(self, name: str, sizes: Sizes, out: Path, seconds: float) -> Outcome:
        """The line's outcome; raises what it raises, and `OutOfTime`."""
        try:
            return self.pool.submit(measured_there, name, sizes, out).result(seconds)
        except BaseException:
            self.close()
            self.pool = self._new()
            raise

    def close(self) -> None:
        """End the process."""
        for process in (self.pool._processes or {}).values():
            process.kill()
        self.pool.shutdown(wait=False, cancel_futures=True)

    def _new(self) -> ProcessPoolExecutor:
        return ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), write_to, (self._log,))


def write_to(log: Path) -> None:
    """What this process and its children print goes to a file."""
    with log.open("a") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)


@contextlib.contextmanager
def one_process(log: Path) -> Iterator[Worker]:
    """A worker that ends with the block."""
    worker = Worker(log)
    try:
        yield worker
    finally:
        worker.close()


def measured_there(name: str, sizes: Sizes, out: Path) -> Outcome:
    """A line in the worker's process."""
    return LINES[name].measure(sizes, out)


def machine() -> str:
    """The device and the versions that the figures depend on."""
    name = torch.cuda.get_device_name() if on_gpu() else "CPU"
    return f"{name}, torch {torch.__version__}, transformers {version('transformers')}"


def commit() -> str:
    """The commit that is measured, `-dirty` with other changes, or `unknown`."""
    describe = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    done = subprocess.run(describe, cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


def journalled(path: Path) -> dict[str, Outcome]:
    """The lines that were measured on this machine and did not fail."""
    if not path.exists():
        return {}
    entries = [json.loads(line) for line in path.read_text().splitlines()]
    own = [entry for entry in entries if entry["machine"] == machine() and entry["verdict"] != "FAILED"]
    return {entry["line"]: outcome(entry) for entry in own}


def outcome(entry: Mapping[str, Any]) -> Outcome:
    """The outcome in a line of a journal."""
    return Outcome(entry["verdict"], entry["figures"], entry["values"])


def page(name: str, measured: Mapping[str, Outcome]) -> str:
    """The table of a machine in Markdown."""
    rows = [(name, outcome.verdict, outcome.figures) for name, outcome in measured.items()]
    return f"{name}\n\n{tabulate(rows, ['line', 'verdict', 'figures'], 'github')}\n"


def machine_file(measured: Mapping[str, Outcome], sizes: Sizes) -> str:
    """The constants of the cost model that the lines give, as the `costs` of a machine file."""
    values = {name: outcome.values for name, outcome in measured.items()}
    lines = [f"costs: # measured by benchmarks/gpu.py: {machine()}", f"  flops: {peak():.3g}"]
    if "mfu" in (sft := values.get("SFT 7B, adapters", {})):
        lines.append(f"  training: {sft['mfu']:.2g} # SFT of 7B with adapters; with all weights at 1.1B: see the table")
    if "share" in (read := values.get("reference 1.1B", {})):
        lines.append(f"  reading: {read['share']:.2g} # forward passes at 1.1B")
        if "sampled" in (play := values.get("rollout 7B", {})):
            parameters = parameters_of(sizes.seven)
            reading = play["read"] * 2 * parameters / (read["share"] * peak())  # seconds of each second
            share = play["sampled"] * 2 * parameters / max(1e-9, 1 - reading) / peak()
            lines.append(
                f"  writing: {share:.2g} # the built-in engine, {sizes.episodes} episodes at once, 7B in bfloat16"
            )
    if "load_bytes" in (disk := values.get("policy 1.1B on disk", {})):
        load = 4 * parameters_of(sizes.seven) / disk["load_bytes"]
        lines.append(
            f"  startup_seconds: {30 + load:.0f} # 30 s of imports, and 7B in float32 from this machine's disk"
        )
    return "\n".join(lines) + "\n"


def parameters_of(shape: Sequence[int]) -> int:
    """Parameters of a Llama with as many heads for keys as for queries."""
    hidden, layers, _, intermediate, vocabulary = shape
    return layers * (4 * hidden**2 + 3 * hidden * intermediate) + 2 * vocabulary * hidden


if __name__ == "__main__":
    main()
