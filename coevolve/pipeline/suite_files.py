"""The files of a suite's results by what they are results of, as tables and figures read them."""

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from coevolve.agent_data.loop import BothPapers
from coevolve.config.derived.methods import iterations_of, models_of
from coevolve.config.derived.recipes import has_pool
from coevolve.config.machine import VLLM_DEVICES, Shards, VllmDevices
from coevolve.config.suite import Suite
from coevolve.config.yaml_files import extended_files
from coevolve.pipeline.branch import AgentName, Branch
from coevolve.pipeline.paper import Iteration
from coevolve.pipeline.stage import Inputs, Subject
from coevolve.records.evaluation import EvaluationKey, ExplorationKey, SummaryKey

UNDIVIDED = Shards(rollout=1, evaluate=1)
CLAIMS = "configs/claims.yaml"


@dataclass(frozen=True)
class SuiteFiles:
    """The files of one suite under `root`; `shards`: jobs that play one rollout, and one evaluation.

    `machine` names the file with the costs that a report compares with what was measured, `vllm` are its devices. The
    files are those of the suite's first model, and of rows that have a model for themselves, or of `every_model`.
    """

    suite: Suite
    root: str = "results"
    shards: Shards = UNDIVIDED
    machine: str = "configs/machines/cpu.yaml"
    vllm: VllmDevices = VLLM_DEVICES

    @property
    def home(self) -> str:
        """Folder of the suite's results."""
        return f"{self.root}/{self.suite.suite}"

    @functools.cached_property
    def paper(self) -> BothPapers:
        """The loops that make the suite's jobs."""
        return BothPapers(self.suite, self.home, self.shards)

    def iterations(self, method: str, every_model: bool = False) -> Iterator[tuple[EvaluationKey, Iteration]]:
        """A method's iterations with (model, env, seed, number); number 0 is what it starts from."""
        models = models_of(self.suite, method)
        models = models if every_model or self.suite.recipes[method].model else models[:1]
        for model, env, seed in product(models, self.suite.envs, self.suite.seeds):
            for number in range(iterations_of(self.suite, env, method) + 1):
                yield (
                    (model, env, seed, number),
                    self.paper.iteration(Subject(model, env, Branch(method, seed, number))),
                )

    def records(self, methods: Sequence[str], every_model: bool = False) -> dict[tuple[str, *EvaluationKey], str]:
        """Evaluation records by (method, model, env, seed, iteration)."""
        return {
            (method, *key): each.evaluation["records.jsonl"]
            for method in methods
            for key, each in self.iterations(method, every_model)
        }

    def explorations(self, methods: Sequence[str], every_model: bool = False) -> dict[ExplorationKey, str]:
        """Episodes by (method, env, seed, iteration, agent); methods share those of their first iteration."""
        return {
            (method, env, seed, number, agent): job["episodes.jsonl"]
            for method in methods
            for (_, env, seed, number), each in self.iterations(method, every_model)
            for agent, job in each.rollouts.items()
        }

    def summaries(self, methods: Sequence[str], every_model: bool = False) -> dict[SummaryKey, str]:
        """Pairing summaries by (method, model, env, seed, iteration, agent)."""
        return {
            (method, *key, agent): job["summary.json"]
            for method in methods
            for key, each in self.iterations(method, every_model)
            for agent, job in each.pairs.items()
        }

    def training_pairs(self) -> dict[SummaryKey, str]:
        """The pairs of each preference training, by (method, model, env, seed, iteration, agent).

        A method that shares another's iterations has none in them.
        """
        return {key: each.pairs[agent]["pairs.jsonl"] for key, agent, each in self._preference_trainings()}

    def gradients(self) -> dict[SummaryKey, str]:
        """The gradients of each training of `training_pairs`, by the same keys."""
        return {key: each.gradients[agent]["gradients.json"] for key, agent, each in self._preference_trainings()}

    def _preference_trainings(self) -> Iterator[tuple[SummaryKey, AgentName, Iteration]]:
        for method in self.suite.methods:
            for key, each in self.iterations(method):
                if each.branch.method == method:
                    yield from (((method, *key, agent), agent, each) for agent in each.pairs if agent in each.trainings)

    def practice(self) -> dict[tuple[str, int], str]:
        """The episodes that the row `regime.learnability` trains on, by (env, seed); of a suite with one model.

        Empty if the suite has no such row, or one that trains on no episodes of its own.
        """
        method = self.suite.regime.learnability
        if method not in self.suite.methods or self.suite.recipes[method].learns not in ("ppo", "grpo"):
            return {}
        return {
            (env, seed): each.episodes["target"]
            for (_, env, seed, number), each in self.iterations(method)
            if number == 1
        }

    def rounds(self) -> dict[tuple[str, str, int, int], Iteration]:
        """The rounds of the methods with a pool of tasks, by (method, env, seed, number)."""
        return {
            (method, env, seed, number): each
            for method in self.suite.methods
            if has_pool(self.suite.recipes[method])
            for (_, env, seed, number), each in self.iterations(method)
            if number
        }

    def drops(self) -> dict[str, str]:
        """The drops of each environment's `data`, by environment."""
        return {env: self.paper.data(env)["drops.jsonl"] for env in self.suite.envs}

    def experts(self) -> dict[str, str]:
        """The experts of each environment's explored tasks, by environment."""
        return {env: self.paper.data(env)["experts.jsonl"] for env in self.suite.envs}

    def default_ablations(self) -> list[str]:
        """The ablations whose tables a full run makes."""
        return [name for name, ablation in self.suite.ablations.items() if ablation.default]

    def judged(self) -> list[str]:
        """The suite's methods, and those of the ablations that a full run makes."""
        ablations = (self.suite.ablations[name].methods for name in self.default_ablations())
        return list(dict.fromkeys(itertools.chain(self.suite.methods, *ablations)))

    def measured(self) -> list[str]:
        """Everything that tables and figures are made of, with all models."""
        methods = self.suite.methods
        keyed = (self.records(methods, True), self.explorations(methods, True), self.summaries(methods, True))
        files = [path for each in keyed for path in each.values()]
        return sorted({*files, *self.drops().values(), *self.experts().values()})

    def of(self, *names: str) -> Inputs:
        """Inputs of a product by name, for the suite's methods."""
        methods, paper = self.suite.methods, f"{self.home}/paper"
        made: dict[str, Callable[[], Any]] = {
            "records": lambda: self.records(methods),
            "explorations": lambda: self.explorations(methods),
            "summaries": lambda: self.summaries(methods),
            "pairs": self.training_pairs,
            "gradients": self.gradients,
            "practice": self.practice,
            "experts": self.experts,
            "drops": self.drops,
            "differences": lambda: f"{paper}/differences/differences.json",
            "figure3": lambda: f"{paper}/figure3/figure3.json",
            "claims": lambda: CLAIMS,
            "machine": lambda: self.machine,
            "machine_parents": lambda: _machine_parents(Path(self.machine)),
        }
        return {name: made[name]() for name in names}


def _machine_parents(path: Path) -> list[str]:
    """The files that the machine's file `extends`."""
    return [str(parent) for parent in extended_files(path)] if path.is_file() else []
