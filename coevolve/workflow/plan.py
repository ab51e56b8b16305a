"""Names of files and what depends on what: recipes become targets here, and nowhere else.

A result lives at `results/<suite>/<model>/<env>/<branch>/<kind>/...`. A *branch* is where in the method's history it
stands: `base/untrained`, `base/pretrained`, `base/seed0` (what all methods share: base policies, their rollouts and
evaluation) or `coevolve/seed0/iter2`. The Snakefile asks this module and nothing else, so a dry run imports no torch.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from coevolve.config.environments import module_name
from coevolve.config.machine import Shards
from coevolve.config.sections import Recipe
from coevolve.config.suite import Suite, as_dict, digest, restrict
from coevolve.methods.pairing import KIND_AGENTS
from coevolve.storage.provenance import code_digest
from coevolve.workflow.stage_table import (
    MIRROR,
    SCORED,
    SOURCES,
    STAGES,
    AgentName,
    Branch,
    agent_name,
    constrained,
    regex,
)

UNDIVIDED = Shards(rollout=1, evaluate=1)


@dataclass(frozen=True)
class Plan:
    """The files of one suite under `root`; `shards`: jobs that play one rollout, and one evaluation.

    `machine` names the file with the costs that the report compares with what was measured.
    """

    suite: Suite
    root: str = "results"
    shards: Shards = UNDIVIDED
    machine: str = "configs/machines/cpu.yaml"

    @property
    def home(self) -> str:
        """Folder of the suite's results."""
        return f"{self.root}/{self.suite.suite}"

    def targets(self) -> list[str]:
        """What a full run ends with."""
        return [f"{self.home}/paper/{name}" for name in STAGES["report"].files]

    def iterations(self, env: str, method: str) -> int:
        """Iterations of a method: the recipe's own number, else the environment's."""
        own = self._recipe(method).iterations
        return self.suite.iterations[env] if own is None else own

    def policy(self, model: str, env: str, method: str, seed: int, iteration: int, agent: AgentName) -> str:
        """The policy an agent has after `iteration` (0: before the first); a frozen agent keeps its base."""
        recipe = self._recipe(method).agents[agent]
        if iteration and self._trains(method, agent):
            return self._file(model, env, self._branch(method, seed, iteration), f"policy/{agent}/policy.json")
        if other := recipe.foreign.get(env):
            return self.policy(model, other, "coevolve", seed, self.iterations(other, "coevolve") - 1, "failure")
        if recipe.base == "untrained":
            return self._untrained(model, env)
        return self._file(model, env, Branch("base", seed, 0), f"policy/{recipe.base}/policy.json")

    def rollouts(self, model: str, env: str, method: str, seed: int, iteration: int) -> dict[str, str]:
        """Episodes each exploring agent brings to `iteration`; those of the base policies are shared."""
        found: dict[str, str] = {}
        for agent, recipe in self._recipe(method).agents.items():
            if not recipe.explores:
                continue
            # An agent that starts as another's base, or explores otherwise, has rollouts of its own from the first on.
            differs = {"rollout", "prompt"} & self._recipe(method).settings.keys()
            own = recipe.base != agent or env in recipe.foreign or bool(differs)
            shared = iteration == 1 and not own
            branch = Branch("base", seed, 0) if shared else self._branch(method, seed, iteration)
            found[agent] = self._file(model, env, branch, f"rollout/{agent}/episodes.jsonl")
        return found

    def _branch(self, method: str, seed: int, iteration: int) -> Branch:
        return Branch(self._recipe(method).shares or method, seed, iteration)

    def _trains(self, method: str, agent: AgentName) -> bool:
        """Whether an agent is another after each iteration; what learns from no pairs is the target alone."""
        recipe = self._recipe(method)
        learns_alone = recipe.learns in ("selected", "ppo", "grpo") and agent == "target"
        return learns_alone or bool(recipe.agents[agent].trains_on)

    def explorations(self, methods: Sequence[str]) -> dict[tuple[str, str, int, int, str], str]:
        """Episodes by (method, env, seed, iteration, agent); methods share those of their first iteration."""
        return {
            (method, env, seed, iteration, agent): path
            for method in methods
            for model, env, seed, iteration in self.evaluations(method)
            if iteration
            for agent, path in self.rollouts(model, env, method, seed, iteration).items()
        }

    def evaluations(self, method: str) -> dict[tuple[str, str, int, int], str]:
        """Records by (model, env, seed, iteration) of a method, from its base policy (iteration 0) on."""
        found: dict[tuple[str, str, int, int], str] = {}
        for model, env, seed in product(self.suite.models, self.suite.envs, self.suite.seeds):
            for iteration in range(self.iterations(env, method) + 1):
                if self._evaluates_alone(method):
                    own = self._file(model, env, self._branch(method, seed, iteration), "eval/records.jsonl")
                else:
                    policy = self.policy(model, env, method, seed, iteration, "target")
                    own = policy.replace("policy/target/policy.json", "eval/records.jsonl")
                found[model, env, seed, iteration] = own
        return found

    def inputs(self, stage: str, wildcards: Mapping[str, str]) -> dict[str, str | list[str]]:
        """Input files of a job by name."""
        if stage == "report":
            explored = sorted(set(Plan(self.suite.about(), self.root).explorations(self.suite.methods).values()))
            experts = [f"{self.home}/data/{env}/experts.jsonl" for env in self.suite.envs]
            own: dict[str, str | list[str]] = {"machine": self.machine, "explorations": explored, "experts": experts}
            return self._table_inputs(self.suite.methods) | own
        if stage == "ablation":
            return self._table_inputs(self.suite.ablations[wildcards["ablation"]].methods)
        if stage in ("gold", "download", "snapshot"):
            return {}
        env = wildcards["env"]
        data = f"{self.home}/data/{env}"
        if stage in ("prepare", "data"):
            prepared = self._prepared(env) if stage == "data" else {}
            return {**self.suite.envs[env].data_files, **prepared}
        model, branch = wildcards["model"], Branch.parse(wildcards["branch"])
        agent = wildcards.get("agent", "target")
        if stage == "untrained":
            base = self.suite.models[model]
            if base.endpoint:
                return {}
            return {"model": f"{MIRROR}/models/{model}/manifest.json"} if base.hub else {"corpus": f"{data}/sft.jsonl"}
        if stage == "pretrain":
            return {"corpus": f"{data}/sft.jsonl", "start": self._untrained(model, env)}
        if stage == "sft":
            return {"experts": f"{data}/sft.jsonl", "start": self._pretrained(model, env)}
        if stage == "pairs":
            episodes = self.rollouts(model, env, branch.method, branch.seed, branch.iteration)
            unlearned = self._unlearned(env, branch)
            return {"tasks": f"{data}/explore.jsonl", "experts": f"{data}/experts.jsonl", **episodes, **unlearned}
        if stage == "reference":
            return self._scored(model, env, branch, agent_name(agent), wildcards["of"])
        if stage == "train":
            return self._train_inputs(model, env, branch, agent_name(agent))
        if stage in ("select", "refit", "steps", "ppo", "grpo"):
            return self._baseline_inputs(stage, model, env, branch, agent_name(agent))
        if stage == "shard":
            return self._play_inputs(model, env, branch, wildcards["whole"], 1)
        if stage == "rollout":
            return self._play_inputs(model, env, branch, f"rollout/{agent}", self.shards.rollout)
        return self._play_inputs(model, env, branch, "eval", self.shards.evaluate)

    def outputs(self, stage: str) -> list[str]:
        """Output patterns of a stage, with Snakemake's wildcards and their constraints."""
        suite, own = self.suite, STAGES[stage]
        named: dict[str, Iterable[str]] = {
            "model": suite.models,
            "env": suite.envs,
            "source": suite.sources,
            "agent": ("target", "failure"),
            "ablation": suite.ablations,
        }
        constraints = {name: "|".join(values) or "(?!)" for name, values in named.items()}
        if own.learns:
            methods = [name for name, recipe in suite.recipes.items() if recipe.learns in own.learns]
            constraints["branch"] = rf"(?:{'|'.join(methods) or '(?!)'})/seed\d+/iter[1-9]\d*"
        else:
            constraints["branch"] = own.branches
        if stage in ("evaluate", "shard"):
            evaluated = [name for name in suite.recipes if self._evaluates_alone(name)]
            constraints["branch"] += rf"|(?:{'|'.join(evaluated) or '(?!)'})/seed\d+"
        constraints |= {"file": r"[^/]+", "part": r"\d+of\d+"}
        constraints |= {"whole": "rollout/target|rollout/failure|eval", "of": "|".join(SCORED)}
        files = own.files if stage == "download" else (*own.files, "provenance.json")
        folder = f"{self._root(stage)}/{own.folder}"
        return [constrained(f"{folder}/{name}", constraints) for name in files]

    def log(self, stage: str) -> str:
        """Where a stage's jobs write what they say, with Snakemake's wildcards."""
        names = re.findall(r"\{(\w+),", self.outputs(stage)[0])
        return f"{self.home}/logs/{stage}{'/' if names else ''}{'.'.join(f'{{{name}}}' for name in names)}.log"

    def arguments(self, stage: str, wildcards: Mapping[str, str]) -> str:
        """What follows `coevolve stage <stage> --suite ...` on the command line of a job."""
        on = [f"--on {name}={value}" for name, value in wildcards.items()]
        files = [
            f"{name}={path}"
            for name, paths in self.inputs(stage, wildcards).items()
            for path in ([paths] if isinstance(paths, str) else paths)
        ]
        return " ".join([f"--out {self.folder(stage, wildcards)}", *on, *files])

    def folder(self, stage: str, wildcards: Mapping[str, str]) -> str:
        """Where a job leaves its files."""
        return f"{self._root(stage)}/{STAGES[stage].folder.format_map(dict(wildcards))}"

    def fingerprint(self, stage: str, wildcards: Mapping[str, str]) -> str:
        """Digest of what a job depends on beside its inputs: the config it may read, and its code."""
        if stage == "snapshot":
            model = self.suite.models[wildcards["model"]]
            return digest([model.hub, model.revision])
        restricted = self.restricted(stage, wildcards)
        # A pinned file stays what it is, however it came.
        code = "" if stage == "download" else self.code(stage, wildcards)
        return f"{digest(as_dict(restricted))}-{code}"

    def code(self, stage: str, wildcards: Mapping[str, str]) -> str:
        """Digest of the code a job can reach: its stage's, and of the environments whose sections it reads, their own.

        A stage of one environment reaches the whole package. A product of all environments reaches their sections.
        """
        stage_ = STAGES[stage]
        if stage_.enters:
            section = self.suite.envs[wildcards["env"]]
            return code_digest(stage_.module, section.module, module_name(section.kind, "config"))
        kinds = [section.kind for section in self.suite.envs.values()] if "envs" in stage_.reads else []
        return code_digest(stage_.module, *(module_name(kind, "config") for kind in kinds))

    def restricted(self, stage: str, wildcards: Mapping[str, str]) -> Suite:
        """The part of the suite a job may read."""
        method = Branch.parse(wildcards["branch"]).method if "branch" in wildcards else None
        method = method if method in self.suite.recipes else None
        names = {"models": wildcards.get("model"), "envs": wildcards.get("env"), "sources": wildcards.get("source")}
        names["ablations"] = wildcards.get("ablation")
        own = {key: name for key, name in {**names, "recipes": method}.items() if name is not None}
        suite = self.suite.under(method) if method else self.suite
        unread = {"evaluation"} if wildcards.get("whole", "eval") != "eval" else set()
        unread |= {"sampler"} if "model" in wildcards and self.suite.models[wildcards["model"]].endpoint else set()
        return restrict(suite, [key for key in STAGES[stage].reads if key not in unread], own)

    def jobs(self, targets: Sequence[str] = ()) -> Iterator[tuple[str, dict[str, str]]]:
        """Every (stage, wildcards) that `targets` (a full run's) need, each once, consumers before producers."""
        waiting, seen = list(targets) or self.targets(), set[tuple[str, ...]]()
        while waiting:
            found = self.maker(waiting.pop())
            if found is None:
                continue
            stage, wildcards = found
            key = (stage, *wildcards.values())
            if key in seen:
                continue
            seen.add(key)
            yield stage, wildcards
            for needed in self.inputs(stage, wildcards).values():
                waiting += [needed] if isinstance(needed, str) else needed

    def maker(self, path: str) -> tuple[str, dict[str, str]] | None:
        """The stage and wildcards that make a file; None for a file that comes from outside."""
        for stage in STAGES:
            for pattern in self.outputs(stage):
                match = re.fullmatch(regex(pattern), path)
                if match:
                    return stage, match.groupdict()
        return None

    def _root(self, stage: str) -> str:
        return MIRROR if stage in ("download", "snapshot") else self.home

    def _recipe(self, method: str) -> Recipe:
        return self.suite.recipes[method]

    def _folder(self, model: str, env: str, branch: Branch) -> str:
        return f"{self.home}/{model}/{env}/{branch}"

    def _file(self, model: str, env: str, branch: Branch, name: str) -> str:
        return f"{self._folder(model, env, branch)}/{name}"

    def _pretrained(self, model: str, env: str) -> str:
        """What supervised fine-tuning starts from: a downloaded checkpoint, or the tiny model after pre-training."""
        if not self.suite.models[model].pretrain:
            return self._untrained(model, env)
        return self._file(model, env, Branch.parse("base/pretrained"), "policy/target/policy.json")

    def _untrained(self, model: str, env: str) -> str:
        return self._file(model, env, Branch.parse("base/untrained"), "policy/target/policy.json")

    def _prepared(self, env: str) -> dict[str, str]:
        return {"prepared": f"{self.home}/prepared/{env}/meta.json"} if self.suite.envs[env].prepared else {}

    def _play_inputs(self, model: str, env: str, branch: Branch, whole: str, jobs: int) -> dict[str, str | list[str]]:
        """What episodes need; of a rollout or evaluation that several `jobs` play, its parts."""
        tasks = f"{self.home}/data/{env}/{'evaluate' if whole == 'eval' else 'explore'}.jsonl"
        if jobs > 1:
            folder = f"{self._folder(model, env, branch)}/parts/{whole}"
            parts = [f"{folder}/{part}of{jobs}/episodes.jsonl" for part in range(1, jobs + 1)]
            return {"tasks": tasks, "parts": parts}
        return {
            "instruction": f"{self.home}/data/{env}/instruction.txt",
            **self.suite.envs[env].play_files,
            **self._prepared(env),
            **(self._example(env) if self._examples(branch) else {}),
            "tasks": tasks,
            "policy": self._player(model, env, branch, whole),
        }

    def _evaluates_alone(self, method: str) -> bool:
        """Whether a method's policies are evaluated otherwise than those that are not its own."""
        return bool({"evaluation", "prompt"} & self._recipe(method).settings.keys())

    def _examples(self, branch: Branch) -> int:
        """Examples before the tasks that are played on a branch."""
        method = branch.method
        return (self.suite.under(method) if method in self.suite.recipes else self.suite).prompt.examples

    def _example(self, env: str) -> dict[str, str | list[str]]:
        return {"example": f"{self.home}/data/{env}/example.json"}

    def _unlearned(self, env: str, branch: Branch) -> dict[str, str | list[str]]:
        """The example that episodes begin with and experts do not; nothing where both have it, or neither."""
        trained = self.suite.prompt.examples and self.suite.prompt.trained
        return {"unlearned": f"{self.home}/data/{env}/example.json"} if self._examples(branch) and not trained else {}

    def _baseline_inputs(
        self, stage: str, model: str, env: str, branch: Branch, agent: AgentName
    ) -> dict[str, str | list[str]]:
        """What methods that do not learn from pairs of whole trajectories need."""
        data, before = f"{self.home}/data/{env}", branch.iteration - 1
        rollouts = self.rollouts(model, env, branch.method, branch.seed, branch.iteration)
        if stage == "select":
            return {"experts": f"{data}/sft.jsonl", agent: rollouts[agent], **self._unlearned(env, branch)}
        if stage == "refit":
            selected = self._file(model, env, branch, f"selected/{agent}/selected.jsonl")
            return {"selected": selected, "start": self._pretrained(model, env)}
        plays = self._play_inputs(model, env, branch, f"rollout/{agent}", 1)
        if stage in ("ppo", "grpo"):
            return {**plays, "policy": self.policy(model, env, branch.method, branch.seed, before, agent)}
        scorer = self.policy(model, env, branch.method, branch.seed, 0, agent)
        if unlearned := self._unlearned(env, branch):
            plays.pop("example")
        return {**plays, "experts": f"{data}/experts.jsonl", agent: rollouts[agent], "scorer": scorer, **unlearned}

    def _player(self, model: str, env: str, branch: Branch, whole: str) -> str:
        """The policy that is evaluated on a branch, or that explores there: what the previous iteration left."""
        if whole == "eval" and branch.method in self.suite.recipes:
            return self.policy(model, env, branch.method, branch.seed, branch.iteration, "target")
        if whole == "eval" or not branch.iteration:
            agent = "target" if whole == "eval" else whole.removeprefix("rollout/")
            return self._file(model, env, branch, f"policy/{agent}/policy.json")
        name = agent_name(whole.removeprefix("rollout/"))
        return self.policy(model, env, branch.method, branch.seed, branch.iteration - 1, name)

    def _train_inputs(self, model: str, env: str, branch: Branch, agent: AgentName) -> dict[str, str | list[str]]:
        """Pairs, the policy to train, and the reference policy or its scores, if the objective needs them."""
        dpo, steps_like = self.suite.under(branch.method).dpo, self._steps_like(model, env, branch, agent)
        pairs = self._file(model, env, branch, f"pairs/{agent}/pairs.jsonl")
        start = self.policy(model, env, branch.method, branch.seed, branch.iteration - 1, agent)
        inputs: dict[str, str | list[str]] = {"pairs": pairs, "start": start, **steps_like}
        if not dpo.objective.reference_free:
            name, held_to = ("scores", self._scores) if dpo.precompute_reference else ("reference", self._reference)
            inputs[name] = held_to(model, env, branch, agent)
        return inputs

    def _reference(self, model: str, env: str, branch: Branch, agent: AgentName) -> str:
        """The policy that an agent's training is held to: the one it starts from, or its base."""
        fixed = self.suite.under(branch.method).dpo.reference == "base"
        return self.policy(model, env, branch.method, branch.seed, 0 if fixed else branch.iteration - 1, agent)

    def _scores(self, model: str, env: str, branch: Branch, agent: AgentName) -> str:
        """The reference policy's log-probs for an agent's training; what all methods can share lies under the base."""
        recipe, shared = self._recipe(branch.method), Branch("base", branch.seed, 0)
        if recipe.learns == "steps":  # whose pairs begin in the middle of a trajectory
            return self._file(model, env, branch, f"reference/{agent}/pairs/scores.safetensors")
        used = {source for kind in recipe.agents[agent].trains_on for source in KIND_AGENTS[kind]}
        of = "_".join(name for source, name in SOURCES.items() if source in used)
        same = self._scored(model, env, branch, agent, of) == self._scored(model, env, shared, agent, of)
        return self._file(model, env, shared if same else branch, f"reference/{agent}/{of}/scores.safetensors")

    def _scored(self, model: str, env: str, branch: Branch, agent: AgentName, of: str) -> dict[str, str | list[str]]:
        """A reference policy, and the trajectories or pairs that it scores."""
        if of == "pairs":
            pairs = self._file(model, env, branch, f"pairs/{agent}/pairs.jsonl")
            return {"policy": self._reference(model, env, branch, agent), "pairs": pairs}
        if branch.iteration:
            policy = self._reference(model, env, branch, agent)
            found = self.rollouts(model, env, branch.method, branch.seed, branch.iteration)
        else:
            policy = self._file(model, env, branch, f"policy/{agent}/policy.json")
            found = {name: self._file(model, env, branch, f"rollout/{name}/episodes.jsonl") for name in of.split("_")}
        found["experts"] = f"{self.home}/data/{env}/experts.jsonl"
        # An agent that is asked for and does not explore is for the pairing to name.
        sources = {name: found[name] for name in of.split("_") if name in found}
        return {"policy": policy, **sources, **self._unlearned(env, branch)}

    def _steps_like(self, model: str, env: str, branch: Branch, agent: AgentName) -> dict[str, list[str]]:
        """The pairs of both agents of the method whose gradient steps a target is given."""
        other = self._recipe(branch.method).steps_like
        if other is None or agent == "failure":
            return {}
        as_many = self._branch(other, branch.seed, branch.iteration)
        last = branch.iteration == self.iterations(env, other)  # after which the failure agent is not trained
        agents = [name for name in self._recipe(other).agents if self._trains(other, name)]
        agents = [name for name in agents if name == "target" or not last]
        return {"steps_like": [self._file(model, env, as_many, f"pairs/{name}/pairs.jsonl") for name in agents]}

    def _table_inputs(self, methods: Sequence[str]) -> dict[str, str | list[str]]:
        records = {path for method in methods for path in self.evaluations(method).values()}
        drops = [f"{self.home}/data/{env}/drops.jsonl" for env in self.suite.envs]
        summaries = sorted(self.summaries(methods).values())
        return {"records": sorted(records), "summaries": summaries, "drops": drops, "claims": "configs/claims.yaml"}

    def summaries(self, methods: Sequence[str]) -> dict[tuple[str, str, str, int, int, str], str]:
        """Pairing summaries by (method, model, env, seed, iteration, agent)."""
        found: dict[tuple[str, str, str, int, int, str], str] = {}
        for method in methods:
            for model, env, seed, iteration in self.evaluations(method):
                for agent, recipe in self._recipe(method).agents.items():
                    if iteration and recipe.trains_on:
                        folder = self._folder(model, env, self._branch(method, seed, iteration))
                        found[method, model, env, seed, iteration, agent] = f"{folder}/pairs/{agent}/summary.json"
        return found
