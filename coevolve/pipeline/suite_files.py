"""The files of a suite's results by what they are results of, as tables and figures read them."""

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from coevolve.agent_data.loop import BothPapers
from coevolve.config.machine import Shards
from coevolve.config.suite import Suite, iterations_of, models_of
from coevolve.methods.recipes import has_pool
from coevolve.pipeline.branch import Branch
from coevolve.pipeline.paper import Iteration, Jobs
from coevolve.pipeline.stage import Inputs, Subject
from coevolve.policies.settings import VLLM_DEVICES, VllmDevices
from coevolve.records.evaluation import ResultFile
from coevolve.settings.yaml_files import extended_files

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

    def iterations(self, methods: Iterable[str], every_model: bool = False) -> Iterator[tuple[ResultFile, Iteration]]:
        """The iterations of some methods, with what they are, without a file; number 0 is what a method starts from."""
        for method in methods:
            models = models_of(self.suite, method)
            models = models if every_model or self.suite.recipes[method].model else models[:1]
            for model, env, seed in product(models, self.suite.envs, self.suite.seeds):
                for number in range(iterations_of(self.suite, env, method) + 1):
                    iteration = self.paper.iteration(Subject(model, env, Branch(method, seed, number)))
                    yield ResultFile("", env, method, model, seed, number), iteration

    def records(self, methods: Iterable[str], every_model: bool = False) -> list[ResultFile]:
        """The evaluation records of some methods."""
        every = self.iterations(methods, every_model)
        return [of._replace(path=each.evaluation["records.jsonl"]) for of, each in every]

    def explorations(self, methods: Iterable[str], every_model: bool = False) -> list[ResultFile]:
        """The episodes that agents explored with; methods share those of their first iteration."""
        every = self.iterations(methods, every_model)
        return [file for of, each in every for file in _of_agents(of, each.rollouts, "episodes.jsonl")]

    def summaries(self, methods: Iterable[str], every_model: bool = False) -> list[ResultFile]:
        """The summaries of the pairings."""
        every = self.iterations(methods, every_model)
        return [file for of, each in every for file in _of_agents(of, each.pairs, "summary.json")]

    def training_pairs(self, every_model: bool = False) -> list[ResultFile]:
        """The pairs of each preference training; a method that shares another's iterations has none in them."""
        return self._of_preference_trainings("pairs", "pairs.jsonl", every_model)

    def gradients(self) -> list[ResultFile]:
        """The gradients of each training of `training_pairs`, if the suite measures them."""
        return self._of_preference_trainings("gradients", "gradients.json") if self.suite.gradients.pairs else []

    def _of_preference_trainings(self, jobs: str, name: str, every_model: bool = False) -> list[ResultFile]:
        return [
            of._replace(agent=agent, path=job[name])
            for of, each in self.iterations(self.suite.methods, every_model)
            for agent, job in getattr(each, jobs).items()
            if each.branch.method == of.method and agent in each.trainings and agent in each.pairs
        ]

    def practice(self) -> list[ResultFile]:
        """The episodes that the row `regime.learnability` trains on in its first iteration; of a suite with one model.

        Empty if the suite has no such row, or one that trains on no episodes of its own.
        """
        method = self.suite.regime.learnability
        if method not in self.suite.methods or self.suite.recipes[method].learns not in ("ppo", "grpo"):
            return []
        rounds = self.iterations([method])
        return [of._replace(path=each.episodes["target"]) for of, each in rounds if of.iteration == 1]

    def rounds(self) -> list[tuple[ResultFile, Iteration]]:
        """The rounds of the methods with a pool of tasks."""
        methods = [method for method in self.suite.methods if has_pool(self.suite.recipes[method])]
        return [(of, each) for of, each in self.iterations(methods) if of.iteration]

    def drops(self) -> list[ResultFile]:
        """The drops of each environment's `data`."""
        return [ResultFile(self.paper.data(env)["drops.jsonl"], env) for env in self.suite.envs]

    def experts(self) -> list[ResultFile]:
        """The experts of each environment's explored tasks."""
        return [ResultFile(self.paper.data(env)["experts.jsonl"], env, agent="expert") for env in self.suite.envs]

    def default_ablations(self) -> list[str]:
        """The ablations whose tables a full run makes."""
        return [name for name, ablation in self.suite.ablations.items() if ablation.default]

    def judged(self) -> list[str]:
        """The suite's methods, and those of the ablations that a full run makes."""
        ablations = (self.suite.ablations[name].methods for name in self.default_ablations())
        return list(dict.fromkeys(itertools.chain(self.suite.methods, *ablations)))

    def measured(self) -> list[ResultFile]:
        """Everything that tables and figures are made of, with all models."""
        methods = self.suite.methods
        played = [*self.records(methods, True), *self.explorations(methods, True), *self.summaries(methods, True)]
        return [*played, *self.drops(), *self.experts()]

    def of(self, *names: str) -> Inputs:
        """Inputs of a product, of the suite's methods; `judged.`: of all judged methods, `all.`: with all models."""
        methods, paper = self.suite.methods, f"{self.home}/paper"
        made: dict[str, Callable[[], Any]] = {
            "records": lambda: self.records(methods),
            "explorations": lambda: self.explorations(methods),
            "all.records": lambda: self.records(methods, True),
            "all.explorations": lambda: self.explorations(methods, True),
            "all.summaries": lambda: self.summaries(methods, True),
            "all.pairs": lambda: self.training_pairs(True),
            "judged.records": lambda: self.records(self.judged()),
            "judged.explorations": lambda: self.explorations(self.judged()),
            "summaries": lambda: self.summaries(methods),
            "pairs": self.training_pairs,
            "gradients": self.gradients,
            "practice": self.practice,
            "rounds.episodes": lambda: [of._replace(path=each.episodes["target"]) for of, each in self.rounds()],
            "rounds.pools": lambda: [
                of._replace(path=each.pool["pool.jsonl"]) for of, each in self.rounds() if each.pool
            ],
            "experts": self.experts,
            "drops": self.drops,
            "differences": lambda: f"{paper}/differences/differences.json",
            "figure3": lambda: f"{paper}/figure3/figure3.json",
            "claims": lambda: CLAIMS,
            "machine": lambda: self.machine,
            "machine_parents": lambda: _machine_parents(Path(self.machine)),
        }
        return {name.rpartition(".")[2]: made[name]() for name in names}


def paths_of(files: Iterable[ResultFile]) -> list[str]:
    """The paths of files."""
    return [file.path for file in files]


def _of_agents(of: ResultFile, jobs: Jobs, name: str) -> Iterator[ResultFile]:
    """A file of each agent's job."""
    return (of._replace(agent=agent, path=job[name]) for agent, job in jobs.items())


def _machine_parents(path: Path) -> list[str]:
    """The files that the machine's file `extends`."""
    return [str(parent) for parent in extended_files(path)] if path.is_file() else []
