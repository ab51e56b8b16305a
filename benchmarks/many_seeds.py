"""What the products of many seeds cost: peak memory and CPU time of `coevolve stage` at the size of a suite.

Explorations, pairs and records are made up: as many, with as many turns and tokens, as the suite's `expected` states.
`--shares` writes a part of the episodes and pairs; two parts give the straight line by which all of them are
estimated. `--against` measures another checkout on the same files.

    python benchmarks/many_seeds.py --seeds 20 --shares 0.05 0.1 --against ../earlier
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from tabulate import tabulate

from coevolve.config.loading import load_suite
from coevolve.config.names import PairKind
from coevolve.config.restriction import as_dict
from coevolve.pipeline.plan import Plan
from coevolve.pipeline.stage import PlannedJob, files_by_name, files_of
from coevolve.records.base import Record
from coevolve.records.episodes import Message, PolicyRef, StopReason, Task, Trajectory, Turn
from coevolve.records.evaluation import EvalRecord
from coevolve.records.pairs import KindCount, PairingSummary, PreferencePair, TrajectoryCount
from coevolve.records.provenance import Provenance
from coevolve.records.training import TrainReport
from coevolve.storage import files, jsonl, provenance

ROOT = Path(__file__).parents[1]
MACHINE = "configs/machines/h100.yaml"
PRODUCTS = ("failures", "regime", "figure2", "verdicts", "examples", "differences")
#: Different turns of an environment; parsing gives each episode strings of its own.
TURNS = 256
#: Steps of a training, and metrics of each, in the notes of its job.
STEPS, METRICS = 150, 20


class Cost(NamedTuple):
    """Peak memory and CPU time of one process."""

    megabytes: float
    seconds: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--suite", default="paper", help="default: %(default)s")
    parser.add_argument("--seeds", type=int, default=20, help="default: %(default)s")
    parser.add_argument("--shares", type=float, nargs=2, default=[0.05, 0.1], help="default: %(default)s")
    parser.add_argument("--against", type=Path, metavar="CHECKOUT", help="an earlier version")
    asked = parser.parse_args()
    checkouts = {"now": ROOT} | ({"before": asked.against.resolve()} if asked.against else {})
    measured: dict[tuple[str, str], list[Cost]] = {}
    for share in asked.shares:
        with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
            _link_configs(ROOT)
            made = Made(asked.suite, asked.seeds, share)
            print(f"{asked.suite}, {asked.seeds} seeds, share {share:g}: {made.write():,} episodes", flush=True)
            for name, product in itertools.product(checkouts, PRODUCTS):
                cost = made.cost(checkouts[name], product)
                measured.setdefault((name, product), []).append(cost)
                print(f"  {name} {product}: {cost.megabytes:,.0f} MB, {cost.seconds:.1f} CPU-s", flush=True)
    whole = {key: estimated(costs, asked.shares) for key, costs in measured.items()}
    head = ["product", *(f"{name}: {unit}" for name in checkouts for unit in ("GB", "CPU-s"))]
    table = [
        [product, *(value for name in checkouts for value in (whole[name, product][0] / 1000, whole[name, product][1]))]
        for product in PRODUCTS
    ]
    print(f"\nEstimated for all episodes of {asked.seeds} seeds:")
    print(tabulate(table, head, tablefmt="github", floatfmt=".1f"))


def estimated(costs: Sequence[Cost], shares: Sequence[float]) -> Cost:
    """The costs at share 1, on the straight line through those at two shares."""
    (first, second), (low, high) = costs, shares
    return Cost(*(a + (b - a) / (high - low) * (1.0 - low) for a, b in zip(first, second, strict=True)))


class Made:
    """Made-up results of a suite in the current folder, and the costs of its products."""

    def __init__(self, suite: str, seeds: int, share: float) -> None:
        self.arguments = ["--suite", suite, "--set", f"seeds={[*range(seeds)]}"]
        self.plan = Plan.on(load_suite(suite, self.arguments[3:]), MACHINE)
        self.share, self.rng = share, np.random.default_rng(0)
        self.turns = {env: self._turns(env) for env in self.plan.suite.envs}

    def write(self) -> int:
        """Write what the products read; returns the number of explored episodes."""
        products = [self.plan.products[product] for product in PRODUCTS]
        inputs = [product.inputs for product in products]
        explorations = files_by_name(inputs[0])["explorations"]
        for path in sorted({path for each in inputs for path in files_of(each) if path.startswith(self.plan.root)}):
            job = self.plan.job(path)
            if job and not Path(path).exists() and not path.endswith(provenance.NAME):
                self._write(Path(path), job)
        for job in self.plan.jobs([path for product in products for path in product.files]):
            if job.stage.name not in PRODUCTS:
                files.write_bytes(Path(job[provenance.NAME]), self._provenance(job).to_json().encode())
        return sum(Path(path).read_bytes().count(b"\n") for path in explorations)

    def cost(self, checkout: Path, product: str) -> Cost:
        """What a product costs in a process of its own, with the code of a checkout."""
        _link_configs(checkout)
        with tempfile.TemporaryDirectory() as out:
            command = ["-m", "coevolve", "stage", product, *self.arguments, "--machine", MACHINE]
            environment = {**os.environ, "PYTHONPATH": str(checkout)}
            process = subprocess.Popen([sys.executable, *command, "--out", f"{out}/{product}"], env=environment)
            _, status, used = os.wait4(process.pid, 0)
        assert status == 0, command
        return Cost(used.ru_maxrss * 1024 / 1e6, used.ru_utime + used.ru_stime)

    def _write(self, path: Path, job: PlannedJob) -> None:
        env = job.wildcards["env"]
        if path.name == "summary.json":
            files.write_bytes(path, _summary().to_json().encode())
            return
        makers = {"episodes.jsonl": self._episodes, "experts.jsonl": self._episodes, "records.jsonl": self._records}
        records = (self._pairs if path.name == "pairs.jsonl" else makers[path.name])(env, job)
        jsonl.write(path, records)

    def _number(self, count: int) -> int:
        return max(4, round(count * self.share))

    def _turns(self, env: str) -> list[Turn]:
        """Turns of an environment, with its `expected` numbers of tokens of four letters."""
        expected = self.plan.suite.envs[env].expected
        assert expected is not None, env
        action, observation = round(expected.action_tokens), round(expected.tokens / expected.turns)
        return [
            Turn(
                text=self._text(action),
                action=self._text(action // 2),
                observation=self._text(observation - action),
                token_ids=tuple(self.rng.integers(32_000, size=action).tolist()),
            )
            for _ in range(TURNS)
        ]

    def _text(self, tokens: int) -> str:
        return " ".join("".join(map(chr, word)) for word in self.rng.integers(97, 123, size=(tokens, 3)))

    def _episodes(self, env: str, job: PlannedJob) -> Iterator[Trajectory]:
        expected = self.plan.suite.envs[env].expected
        assert expected is not None, env
        agent, count = job.wildcards.get("agent", "expert"), self._number(expected.explore)
        policy = None if agent == "expert" else PolicyRef(name=agent, sha256="0" * 64)
        rewards = np.where(self.rng.random(count) < expected.failures, self.rng.integers(20, size=count) / 20, 1.0)
        for number, reward in enumerate(rewards.tolist()):
            turns = [self.turns[env][index] for index in self.rng.integers(TURNS, size=round(expected.turns))]
            yield Trajectory(
                task=Task(env=env, task_id=f"task{number}", split="train", kind="a kind", data={"number": number}),
                agent=agent,
                policy=policy,
                protocol=self.plan.suite.protocol,
                environment=env,
                prompt=(Message(role="user", content=turns[0].observation),),
                turns=tuple(turns),
                reward=reward,
                stop=StopReason.DONE,
            )

    def _pairs(self, env: str, job: PlannedJob) -> Iterator[PreferencePair]:
        for chosen, rejected in itertools.pairwise(self._episodes(env, job)):
            yield PreferencePair(
                task_id=chosen.task.task_id,
                kind=PairKind.EXPERT_TARGET,
                prompt=chosen.prompt,
                chosen=chosen.completion,
                rejected=rejected.completion,
                chosen_token_ids=(),
                rejected_token_ids=tuple(turn.token_ids for turn in rejected.turns),
                chosen_id="0123456789abcdef",
                rejected_id="0123456789abcdef",
                chosen_reward=chosen.reward,
                rejected_reward=rejected.reward,
                lambda_dpo=1.0,
                lambda_sft=0.0,
            )

    def _records(self, env: str, job: PlannedJob) -> Iterator[EvalRecord]:
        """All records of an evaluation, whatever the share."""
        section, seed = self.plan.suite.envs[env], job.subject.branch.seed
        assert section.expected is not None, env
        for split in section.splits:
            for number, reward in enumerate(self.rng.random(section.expected.evaluate // len(section.splits)).tolist()):
                yield EvalRecord(
                    task_id=f"task{number}",
                    split=split,
                    seed=seed,
                    environment=env,
                    reward=reward,
                    success=False,
                    stop=StopReason.DONE,
                    turns=5,
                    trajectory_id=f"{number:016x}",
                )

    def _provenance(self, job: PlannedJob) -> Record:
        return Provenance(
            stage=job.stage.name,
            wildcards=job.wildcards,
            result=job.result,
            config=as_dict(self.plan.settings(job)),
            config_digest="",
            code_digest="",
            commit="",
            dirty=False,
            protocol=self.plan.suite.protocol,
            seeds={},
            versions={},
            container="",
            inputs=dict.fromkeys(files_of(job.inputs), "0" * 64),
            outputs={path.name: files.sha256(path) for path in sorted(Path(job.folder).glob("*"))},
            notes=_trained() if job.stage.name in ("sft", "train") else {},
            workload=self.plan.workload(job),
            started="",
            seconds=1.0,
        )


def _link_configs(checkout: Path) -> None:
    """Let the current folder have the configs of a checkout."""
    Path("configs").unlink(missing_ok=True)
    Path("configs").symlink_to(checkout / "configs")


def _summary() -> PairingSummary:
    count = KindCount(candidates=1, pairs=1, swapped=0, cut=0, drops={})
    trajectories = TrajectoryCount(total=2, paired=2, dropped=0, not_used=0)
    return PairingSummary(kinds={PairKind.EXPERT_TARGET: count}, without_kind={}, trajectories=trajectories, empty=())


def _trained() -> TrainReport:
    step = {f"expert_target/{name}": 1.0 for name in ("pairs", "logps/chosen", "logps/rejected", "rewards/margins")}
    step |= {f"metric{number}": number + 0.5 for number in range(METRICS - len(step))}
    return TrainReport(
        rows=STEPS, truncated=0, dropped=0, steps=STEPS, tokens=1, first_loss=1.0, last_loss=1.0,
        history=tuple({"step": number, **step} for number in range(STEPS)), seconds=1.0, trained_tokens=1,
    )  # fmt: skip


if __name__ == "__main__":
    main()
