"""Names of the files of a suite: only this module turns recipes into paths.

A result lies at `results/<suite>/<model>/<env>/<branch>/<kind>/...`. A *branch* is a method's iteration for one seed:
`base/untrained`, `base/pretrained`, `base/seed0` (shared by all methods: base policies, their rollouts and evaluation)
or `coevolve/seed0/iter2`; with `pretrain.per_seed` also `untrained/seed0` and `pretrained/seed0`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

from coevolve.config.derived.methods import failure_trainings, for_method, iterations_of, models_of
from coevolve.config.derived.recipes import has_pool, learns_from_pairs
from coevolve.config.machine import VLLM_DEVICES, Shards, VllmDevices
from coevolve.config.sections import Recipe
from coevolve.config.suite import Suite
from coevolve.dag.branch import AgentName, Branch, agent_of
from coevolve.records.evaluation import EvaluationKey, ExplorationKey, SummaryKey

UNDIVIDED = Shards(rollout=1, evaluate=1)
#: Downloads of all suites.
MIRROR = "data/mirror"


def work_folder(result: Path) -> Path:
    """Where the job that makes the folder `result` keeps its lock, checkpoints and journals until it ends."""
    return result.parent / f".work-{result.name}"


@dataclass(frozen=True)
class Layout:
    """The files of one suite under `root`; `shards`: jobs that play one rollout, and one evaluation.

    `machine` names the file with the costs that a report compares with what was measured, `vllm` are its devices.
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

    def data(self, env: str, name: str) -> str:
        """A file of the stage `data`."""
        return f"{self.home}/data/{env}/{name}"

    def result(self, model: str, env: str, branch: Branch, name: str) -> str:
        """A file of a branch."""
        return f"{self.home}/{model}/{env}/{branch}/{name}"

    def recipe(self, method: str) -> Recipe:
        """A method's row."""
        return self.suite.recipes[method]

    def owner(self, branch: Branch) -> Branch:
        """The branch where a branch's results lie: its own, or that of the method whose iteration it shares."""
        recipe = self.recipe(branch.method)
        shared = recipe.shares_first is None or branch.iteration <= recipe.shares_first
        return replace(branch, method=recipe.shares) if recipe.shares and shared else branch

    def iterations(self, env: str, method: str) -> int:
        """Iterations of a method: the recipe's, else the environment's."""
        return iterations_of(self.suite, env, method)

    def untrained(self, model: str, env: str) -> str:
        """The policy before any training."""
        return self.result(model, env, Branch.parse("base/untrained"), "policy/target/policy.json")

    def pretrained(self, model: str, env: str, seed: int) -> str:
        """The policy that fine-tuning starts from: a downloaded checkpoint, or the tiny model after pre-training."""
        pretrain = self.suite.models[model].pretrain
        if not pretrain:
            return self.untrained(model, env)
        branch = Branch("pretrained", seed, 0) if pretrain.per_seed else Branch.parse("base/pretrained")
        return self.result(model, env, branch, "policy/target/policy.json")

    def policy(self, model: str, env: str, branch: Branch, agent: AgentName) -> str:
        """The policy that an agent has after an iteration (0: before the first); a frozen agent keeps its base."""
        recipe = self.recipe(branch.method).agents[agent]
        if branch.iteration and self.trains(branch.method, agent):
            return self.result(model, env, self.owner(branch), f"policy/{agent}/policy.json")
        if other := recipe.foreign.get(env):
            last_trained = Branch("coevolve", branch.seed, self.iterations(other, "coevolve") - 1)
            return self.policy(model, other, last_trained, "failure")
        if recipe.base == "untrained":
            return self.untrained(model, env)
        return self.result(model, env, Branch("base", branch.seed, 0), f"policy/{recipe.base}/policy.json")

    def trains(self, method: str, agent: AgentName) -> bool:
        """Whether an agent is trained in each iteration; methods that learn without pairs train the target only."""
        recipe = self.recipe(method)
        return (agent == "target" and not learns_from_pairs(recipe)) or bool(recipe.agents[agent].trains_on)

    def trained_agents(self, env: str, branch: Branch) -> list[AgentName]:
        """The agents that are trained in an iteration.

        After the last iteration's rollout the failure agent is not trained, unless it is trained first.
        """
        method, recipe = branch.method, self.recipe(branch.method)
        explores_after = branch.iteration <= failure_trainings(self.suite, env, method)
        return [name for name in recipe.agents if self.trains(method, name) and (name == "target" or explores_after)]

    def is_last(self, wildcards: Mapping[str, str]) -> bool:
        """Whether a job belongs to the target after the last iteration of its row, which no iteration trains on."""
        branch = Branch.parse(wildcards.get("branch", ""))
        if not branch.iteration or agent_of(wildcards) != "target":
            return False
        return branch.iteration >= self.iterations(wildcards["env"], branch.method)

    def rollouts(self, model: str, env: str, branch: Branch) -> dict[str, str]:
        """Episodes that each exploring agent brings to an iteration; those of the base policies are shared."""
        where = self.owner(branch)
        episodes: dict[str, str] = {}
        for agent, recipe in self.recipe(where.method).agents.items():  # the row whose iteration it is
            if recipe.explores:
                once = Branch(recipe.explores, branch.seed, 1) if isinstance(recipe.explores, str) else where
                folder = self._explored_on(env, once, agent)
                episodes[agent] = self.result(model, env, folder, f"rollout/{agent}/episodes.jsonl")
        return episodes

    def _explored_on(self, env: str, branch: Branch, agent: AgentName) -> Branch:
        """The branch where an agent's rollout lies: its own, or in the first iteration that of the base policies.

        An agent that explores otherwise, or starts as another's base, shares no rollout of the base policies.
        """
        method = self.recipe(branch.method)
        recipe = method.agents[agent]
        differs = {"rollout", "prompt"} & {*method.settings, *recipe.settings} or has_pool(method)
        shared = branch.iteration == 1 and recipe.base == agent and env not in recipe.foreign and not differs
        return Branch("base", branch.seed, 0) if shared else branch

    def paired_rollouts(self, model: str, env: str, branch: Branch, agent: AgentName) -> dict[str, str]:
        """Episodes that the pairs of an agent are made of: `rollouts`.

        With `failure_agent_first` the target's have the failure agent's rollout of the next iteration, which its policy
        after this iteration's training plays.
        """
        episodes = self.rollouts(model, env, branch)
        if self.recipe(branch.method).failure_agent_first and agent == "target":
            episodes["failure"] = self.rollouts(model, env, branch.at(branch.iteration + 1))["failure"]
        return episodes

    def records(self, methods: Sequence[str]) -> dict[tuple[str, *EvaluationKey], str]:
        """Evaluation records by (method, model, env, seed, iteration)."""
        return {(method, *key): path for method in methods for key, path in self.evaluations(method).items()}

    def explorations(self, methods: Sequence[str]) -> dict[ExplorationKey, str]:
        """Episodes by (method, env, seed, iteration, agent); methods share those of their first iteration."""
        return {
            (method, env, seed, iteration, agent): path
            for method in methods
            for model, env, seed, iteration in self.evaluations(method)
            if iteration
            for agent, path in self.rollouts(model, env, Branch(method, seed, iteration)).items()
        }

    def evaluations(self, method: str) -> dict[EvaluationKey, str]:
        """Records by (model, env, seed, iteration) of a method, from its base policy (iteration 0) on."""
        records: dict[EvaluationKey, str] = {}
        for model, env, seed in product(models_of(self.suite, method), self.suite.envs, self.suite.seeds):
            for iteration in range(self.iterations(env, method) + 1):
                branch = self.owner(Branch(method, seed, iteration))
                if self.evaluates_alone(branch.method):
                    path = self.result(model, env, branch, "eval/records.jsonl")
                else:
                    policy = self.policy(model, env, branch, "target")
                    path = policy.replace("policy/target/policy.json", "eval/records.jsonl")
                records[model, env, seed, iteration] = path
        return records

    def summaries(self, methods: Sequence[str]) -> dict[SummaryKey, str]:
        """Pairing summaries by (method, model, env, seed, iteration, agent)."""
        summaries: dict[SummaryKey, str] = {}
        for method in methods:
            for model, env, seed, iteration in self.evaluations(method):
                branch = self.owner(Branch(method, seed, iteration))
                agents = self.recipe(branch.method).agents if iteration else {}
                for agent, recipe in agents.items():
                    if recipe.trains_on:
                        name = f"pairs/{agent}/summary.json"
                        summaries[method, model, env, seed, iteration, agent] = self.result(model, env, branch, name)
        return summaries

    def training_pairs(self) -> dict[SummaryKey, str]:
        """The pairs of each preference training, by (method, model, env, seed, iteration, agent).

        A method that shares another's iterations has none in them.
        """
        return {
            (method, model, env, seed, iteration, agent): str(Path(summary).with_name("pairs.jsonl"))
            for (method, model, env, seed, iteration, agent), summary in self.summaries(self.suite.methods).items()
            for branch in [Branch(method, seed, iteration)]
            if self.owner(branch) == branch and agent in self.trained_agents(env, branch)
        }

    def gradients(self) -> dict[SummaryKey, str]:
        """The gradients of each training of `training_pairs`, by the same keys."""
        return {
            key: f"{Path(path).parents[2]}/gradients/{key[-1]}/gradients.json"
            for key, path in self.training_pairs().items()
        }

    def task_pool(self, model: str, env: str, branch: Branch) -> str:
        """The tasks that an iteration trains on; without exploration those of the first iteration."""
        grows = for_method(self.suite, branch.method).task_evolution.exploration != "none"
        where = branch if grows else branch.at(1)
        if where.iteration == 1:
            where = replace(where, method=self.recipe(branch.method).first_pool or branch.method)
        return self.result(model, env, self.owner(where), "tasks/pool.jsonl")

    def explored(self, model: str, env: str, branch: Branch, name: str) -> str:
        """`explore.jsonl` (tasks) or `experts.jsonl` of an iteration's explorations: of `data`, or of the pool."""
        recipe = self.suite.recipes.get(branch.method)
        if recipe is None or recipe.learns != "pool_preference":
            return self.data(env, name)
        return self.result(model, env, self.owner(branch), f"pool/{name}")

    def training_episodes(self, model: str, env: str, branch: Branch) -> dict[str, str]:
        """The episodes that an online training, or a round on a pool, trains on, by agent: its own, or the rollouts."""
        if self.recipe(branch.method).learns == "pool_preference":
            return self.rollouts(model, env, branch)
        return {"target": self.policy(model, env, branch, "target").replace("policy.json", "episodes.jsonl")}

    def practice(self) -> dict[tuple[str, int], str]:
        """The episodes that the row `regime.learnability` trains on, by (env, seed); of a suite with one model.

        Empty if the suite has no such row, or one that trains on no episodes of its own.
        """
        method = self.suite.regime.learnability
        if method not in self.suite.methods or self.recipe(method).learns not in ("ppo", "grpo"):
            return {}
        return {
            (env, seed): self.training_episodes(model, env, Branch(method, seed, number))["target"]
            for model, env, seed, number in self.evaluations(method)
            if number == 1
        }

    def prepared(self, env: str) -> dict[str, str]:
        """The files that all jobs of an environment share, if it has any."""
        return {"prepared": f"{self.home}/prepared/{env}/meta.json"} if self.suite.envs[env].prepared else {}

    def excluded_example(self, env: str, branch: Branch) -> dict[str, str]:
        """The few-shot example that pairs leave out: episodes begin with it and experts do not."""
        trained = self.suite.prompt.examples and self.suite.prompt.trained
        return {"excluded_example": self.data(env, "example.json")} if self.examples(branch) and not trained else {}

    def drops(self) -> dict[str, str]:
        """The drops of each environment's `data`, by environment."""
        return {env: self.data(env, "drops.jsonl") for env in self.suite.envs}

    def experts(self) -> dict[str, str]:
        """The experts of each environment's explored tasks, by environment."""
        return {env: self.data(env, "experts.jsonl") for env in self.suite.envs}

    def results(self) -> list[str]:
        """All files that tables and figures are made of."""
        records = (path for method in self.suite.methods for path in self.evaluations(method).values())
        explored = self.explorations(self.suite.methods).values()
        summaries = self.summaries(self.suite.methods).values()
        return sorted({*records, *explored, *summaries, *self.drops().values(), *self.experts().values()})

    def evaluates_alone(self, method: str) -> bool:
        """Whether a method's policies are evaluated with settings of the method."""
        return bool({"evaluation", "prompt"} & self.recipe(method).settings.keys())

    def examples(self, branch: Branch) -> int:
        """Few-shot examples before the tasks that are played on a branch."""
        method = branch.method
        return (for_method(self.suite, method) if method in self.suite.recipes else self.suite).prompt.examples
