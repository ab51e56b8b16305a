"""Names of files and what depends on what: recipes become targets here, and nowhere else.

A result lives at `results/<suite>/<model>/<env>/<branch>/<kind>/...`. A *branch* is where in the method's history it
stands: `base/untrained`, `base/pretrained`, `base/seed0` (what all methods share: base policies, their rollouts and
evaluation) or `coevolve/seed0/iter2`. The Snakefile asks this module and nothing else, so a dry run imports no torch.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Literal

from coevolve.config import Recipe, Suite, as_dict, digest, restrict
from coevolve.provenance import code_digest

AgentName = Literal["target", "failure"]
POLICY = ("policy.json",)
#: Where downloads lie, for all suites.
MIRROR = "data/mirror"
SEED, ITERATION = r"base/seed\d+", r"(?!base/)\w+/seed\d+/iter[1-9]\d*"


@dataclass(frozen=True)
class Stage:
    """A stage: the config sections it may read, the files it leaves, their folder, and the branches it works on.

    A job reruns when the sections it reads, its code or its inputs change.
    """

    name: str
    reads: tuple[str, ...]
    files: tuple[str, ...]
    folder: str
    branches: str = ""

    @property
    def module(self) -> str:
        """The module with the stage's `run`."""
        return f"coevolve.stages.{self.name}"

    @property
    def enters(self) -> bool:
        """Whether the stage asks something of the environment's own package."""
        return "envs" in self.reads and "{env}" in self.folder


_TREE = "{model}/{env}/{branch}/"
_EPISODES = ("models", "envs", "protocol", "protocols", "rollout")
STAGES = {
    stage.name: stage
    for stage in (
        Stage("download", ("sources",), ("{file}",), "{source}"),
        Stage("gold", ("envs", "protocol", "protocols"), ("gold.jsonl",), "gold/{env}"),
        Stage("prepare", ("envs", "protocol", "protocols"), ("meta.json",), "prepared/{env}"),
        Stage(
            "data",
            ("envs", "protocol", "protocols"),
            ("sft.jsonl", "experts.jsonl", "explore.jsonl", "evaluate.jsonl", "drops.jsonl", "instruction.txt"),
            "data/{env}",
        ),
        Stage("untrained", ("models",), POLICY, _TREE + "policy/target", "base/untrained"),
        Stage("pretrain", ("models",), POLICY, _TREE + "policy/target", "base/pretrained"),
        Stage("sft", ("models", "sft"), POLICY, _TREE + "policy/{agent}", SEED),
        Stage("rollout", _EPISODES, ("episodes.jsonl",), _TREE + "rollout/{agent}", f"{SEED}|{ITERATION}"),
        Stage(
            "pairs",
            ("recipes", "pairing"),
            ("pairs.jsonl", "drops.jsonl", "summary.json"),
            _TREE + "pairs/{agent}",
            ITERATION,
        ),
        Stage("train", ("models", "dpo"), POLICY, _TREE + "policy/{agent}", ITERATION),
        Stage(
            "evaluate",
            _EPISODES,
            ("episodes.jsonl", "records.jsonl"),
            _TREE + "eval",
            f"base/untrained|{SEED}|{ITERATION}",
        ),
        Stage(
            "report",
            ("suite", "protocol", "methods", "seeds", "models", "envs", "iterations", "recipes", "report"),
            ("table1.md", "table1.tex", "table1.json", "figure3.png", "figure3.json", "differences.json", "summary.md"),
            "paper",
        ),
    )
}


@dataclass(frozen=True)
class Branch:
    """Where in a method's history a result stands. `iteration` 0 is the base."""

    method: str
    seed: int
    iteration: int

    @classmethod
    def parse(cls, text: str) -> Branch:
        """The branch a path component such as `coevolve/seed0/iter2` names."""
        numbered = re.fullmatch(r"(\w+)/seed(\d+)(?:/iter(\d+))?", text)
        if numbered:
            return cls(numbered[1], int(numbered[2]), int(numbered[3] or 0))
        return cls(text, 0, 0)

    def __str__(self) -> str:
        if "/" in self.method:
            return self.method
        return f"{self.method}/seed{self.seed}" + (f"/iter{self.iteration}" if self.iteration else "")


@dataclass(frozen=True)
class Plan:
    """The files of one suite under `root`."""

    suite: Suite
    root: str = "results"

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
        if iteration and recipe.trains_on:
            branch = Branch(method, seed, iteration)
            return self._file(model, env, branch, f"policy/{agent}/policy.json")
        if recipe.base == "untrained":
            return self._file(model, env, Branch.parse("base/untrained"), "policy/target/policy.json")
        return self._file(model, env, Branch("base", seed, 0), f"policy/{recipe.base}/policy.json")

    def rollouts(self, model: str, env: str, method: str, seed: int, iteration: int) -> dict[str, str]:
        """Episodes each exploring agent brings to `iteration`; those of the base policies are shared."""
        found: dict[str, str] = {}
        for agent, recipe in self._recipe(method).agents.items():
            if not recipe.explores:
                continue
            shared = iteration == 1 and recipe.base != "untrained"
            branch = Branch("base", seed, 0) if shared else Branch(method, seed, iteration)
            found[agent] = self._file(model, env, branch, f"rollout/{recipe.base if shared else agent}/episodes.jsonl")
        return found

    def evaluations(self, method: str) -> dict[tuple[str, str, int, int], str]:
        """Records by (model, env, seed, iteration) of a method, from its base policy (iteration 0) on."""
        found: dict[tuple[str, str, int, int], str] = {}
        for model, env, seed in product(self.suite.models, self.suite.envs, self.suite.seeds):
            for iteration in range(self.iterations(env, method) + 1):
                policy = self.policy(model, env, method, seed, iteration, "target")
                found[model, env, seed, iteration] = policy.replace("policy/target/policy.json", "eval/records.jsonl")
        return found

    def inputs(self, stage: str, wildcards: Mapping[str, str]) -> dict[str, str | list[str]]:
        """Input files of a job by name."""
        if stage == "report":
            return self._report_inputs()
        if stage in ("gold", "download"):
            return {}
        env = wildcards["env"]
        section, data = self.suite.envs[env], f"{self.home}/data/{env}"
        awaits = section.prepared and stage != "prepare"
        prepared = {"prepared": f"{self.home}/prepared/{env}/meta.json"} if awaits else {}
        if stage in ("prepare", "data"):
            return {**section.data_files, **prepared}
        model, branch = wildcards["model"], Branch.parse(wildcards["branch"])
        own = self._folder(model, env, branch)
        asked: dict[str, str | list[str]] = {
            "instruction": f"{data}/instruction.txt",
            **section.play_files,
            **prepared,
        }
        agent = wildcards.get("agent", "target")
        base = self._folder(model, env, Branch.parse("base/untrained"))
        if stage == "untrained":
            return {"corpus": f"{data}/sft.jsonl"}
        if stage == "pretrain":
            return {"corpus": f"{data}/sft.jsonl", "start": f"{base}/policy/target/policy.json"}
        if stage == "sft":
            return {"experts": f"{data}/sft.jsonl", "start": self._pretrained(model, env)}
        if stage == "evaluate":
            return {**asked, "tasks": f"{data}/evaluate.jsonl", "policy": f"{own}/policy/target/policy.json"}
        if stage == "rollout":
            return {**asked, "tasks": f"{data}/explore.jsonl", "policy": self._explorer(model, env, branch, agent)}
        if stage == "pairs":
            episodes = self.rollouts(model, env, branch.method, branch.seed, branch.iteration)
            return {"tasks": f"{data}/explore.jsonl", "experts": f"{data}/experts.jsonl", **episodes}
        return self._train_inputs(model, env, branch, agent, own)

    def outputs(self, stage: str) -> list[str]:
        """Output patterns of a stage, with Snakemake's wildcards and their constraints."""
        suite, own = self.suite, STAGES[stage]
        named: dict[str, Iterable[str]] = {
            "model": suite.models,
            "env": suite.envs,
            "source": suite.sources,
            "agent": ("target", "failure"),
        }
        constraints = {name: "|".join(values) or "(?!)" for name, values in named.items()}
        constraints |= {"branch": own.branches, "file": r"[^/]+"}
        files = own.files if stage == "download" else (*own.files, "provenance.json")
        folder = f"{self._root(stage)}/{own.folder}"
        return [_constrained(f"{folder}/{name}", constraints) for name in files]

    def log(self, stage: str) -> str:
        """Where a stage's jobs write what they say, with Snakemake's wildcards."""
        names = re.findall(r"\{(\w+),", self.outputs(stage)[0])
        return f"{self.home}/logs/{stage}{'/' if names else ''}{'.'.join(f'{{{name}}}' for name in names)}.log"

    def arguments(self, stage: str, wildcards: Mapping[str, str]) -> str:
        """What follows `coevolve <stage> --config ...` on the command line of a job."""
        folder = STAGES[stage].folder.format_map(dict(wildcards))
        on = [f"--on {name}={value}" for name, value in wildcards.items()]
        files = [
            f"{name}={path}"
            for name, paths in self.inputs(stage, wildcards).items()
            for path in ([paths] if isinstance(paths, str) else paths)
        ]
        return " ".join([f"--out {self._root(stage)}/{folder}", *on, *files])

    def fingerprint(self, stage: str, wildcards: Mapping[str, str]) -> str:
        """Digest of what a job depends on beside its inputs: the config it may read, and its code."""
        restricted = self.restricted(stage, wildcards)
        # A pinned file stays what it is, however it came.
        code = "" if stage == "download" else self.code(stage, wildcards)
        return f"{digest(as_dict(restricted))}-{code}"

    def code(self, stage: str, wildcards: Mapping[str, str]) -> str:
        """Digest of the code a job can reach: its stage's, and where it enters one, its environment's."""
        own = STAGES[stage]
        entered = [self.suite.envs[wildcards["env"]].module] if own.enters else []
        return code_digest(own.module, *entered)

    def restricted(self, stage: str, wildcards: Mapping[str, str]) -> Suite:
        """The part of the suite a job may read."""
        method = Branch.parse(wildcards["branch"]).method if "branch" in wildcards else None
        method = method if method in self.suite.recipes else None
        names = {"models": wildcards.get("model"), "envs": wildcards.get("env"), "sources": wildcards.get("source")}
        own = {key: name for key, name in {**names, "recipes": method}.items() if name is not None}
        return restrict(self.suite, STAGES[stage].reads, own)

    def jobs(self) -> Iterator[tuple[str, dict[str, str]]]:
        """Every (stage, wildcards) that a full run executes, each once, consumers before producers."""
        waiting, seen = self.targets(), set[tuple[str, ...]]()
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
                match = re.fullmatch(_regex(pattern), path)
                if match:
                    return stage, match.groupdict()
        return None

    def _root(self, stage: str) -> str:
        return MIRROR if stage == "download" else self.home

    def _recipe(self, method: str) -> Recipe:
        return self.suite.recipes[method]

    def _folder(self, model: str, env: str, branch: Branch) -> str:
        return f"{self.home}/{model}/{env}/{branch}"

    def _file(self, model: str, env: str, branch: Branch, name: str) -> str:
        return f"{self._folder(model, env, branch)}/{name}"

    def _pretrained(self, model: str, env: str) -> str:
        """What supervised fine-tuning starts from: a downloaded checkpoint, or the tiny model after pre-training."""
        state = "pretrained" if self.suite.models[model].pretrain else "untrained"
        return self._file(model, env, Branch.parse(f"base/{state}"), "policy/target/policy.json")

    def _explorer(self, model: str, env: str, branch: Branch, agent: str) -> str:
        """The policy that explores on a branch: the base itself, or what the previous iteration left."""
        if not branch.iteration:
            return self._file(model, env, branch, f"policy/{agent}/policy.json")
        name = agent_name(agent)
        return self.policy(model, env, branch.method, branch.seed, branch.iteration - 1, name)

    def _train_inputs(self, model: str, env: str, branch: Branch, agent: str, own: str) -> dict[str, str | list[str]]:
        name = agent_name(agent)
        start = self.policy(model, env, branch.method, branch.seed, branch.iteration - 1, name)
        base = self.policy(model, env, branch.method, branch.seed, 0, name)
        reference = start if self.suite.dpo.reference == "previous" else base
        return {"pairs": f"{own}/pairs/{agent}/pairs.jsonl", "start": start, "reference": reference}

    def _report_inputs(self) -> dict[str, str | list[str]]:
        records = {path for method in self.suite.methods for path in self.evaluations(method).values()}
        drops = [f"{self.home}/data/{env}/drops.jsonl" for env in self.suite.envs]
        summaries = sorted(self.summaries().values())
        return {"records": sorted(records), "summaries": summaries, "drops": drops, "claims": "configs/claims.yaml"}

    def summaries(self) -> dict[tuple[str, str, str, int, int, str], str]:
        """Pairing summaries by (method, model, env, seed, iteration, agent)."""
        found: dict[tuple[str, str, str, int, int, str], str] = {}
        for method in self.suite.methods:
            for model, env, seed, iteration in self.evaluations(method):
                for agent, recipe in self._recipe(method).agents.items():
                    if iteration and recipe.trains_on:
                        folder = self._folder(model, env, Branch(method, seed, iteration))
                        found[method, model, env, seed, iteration, agent] = f"{folder}/pairs/{agent}/summary.json"
        return found


def agent_name(text: str) -> AgentName:
    """The agent a wildcard names; its constraint lets only these two pass."""
    return "failure" if text == "failure" else "target"


def _constrained(pattern: str, constraints: Mapping[str, str]) -> str:
    """`{name}` as Snakemake's `{name,constraint}`."""
    return re.sub(r"\{(\w+)\}", lambda name: f"{{{name[1]},{constraints[name[1]]}}}", pattern)


def _regex(pattern: str) -> str:
    """A Snakemake pattern `a/{name,constraint}` as a regular expression."""
    return re.sub(r"\{(\w+),([^}]*)\}", r"(?P<\1>\2)", pattern)
