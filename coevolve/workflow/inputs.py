"""Input files of every stage's jobs, by name: functions of the layout and a job's wildcards."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from coevolve.config.yaml_files import extended_files
from coevolve.errors import UserError
from coevolve.methods.pairing import KIND_AGENTS
from coevolve.storage import policy_dir
from coevolve.workflow.branch import SOURCES, AgentName, Branch, agent_of
from coevolve.workflow.layout import MIRROR, Layout
from coevolve.workflow.stage import Inputs, Wildcards

CLAIMS = "configs/claims.yaml"


def prepare(layout: Layout, wildcards: Wildcards) -> Inputs:
    """The environment's data files."""
    return {**layout.suite.envs[wildcards["env"]].data_files}


def data(layout: Layout, wildcards: Wildcards) -> Inputs:
    """The environment's data files, and the prepared folder."""
    return {**prepare(layout, wildcards), **_prepared(layout, wildcards["env"])}


def convert(layout: Layout, wildcards: Wildcards) -> Inputs:
    """The model's GGUF file."""
    gguf = layout.suite.models[wildcards["model"]].gguf
    return {"gguf": gguf.path} if gguf else {}


def untrained(layout: Layout, wildcards: Wildcards) -> Inputs:
    """The downloaded or dequantised model, a given checkpoint, or the corpus of a tiny model's tokenizer."""
    name, env = wildcards["model"], wildcards["env"]
    model = layout.suite.models[name]
    if model.hub:
        return {"model": f"{MIRROR}/models/{name}/manifest.json"}
    if model.gguf:
        return {"model": f"{MIRROR}/converted/{name}/manifest.json"}
    if model.path:
        names = policy_dir.checkpoint_files(Path(model.path)) or ["config.json"]  # the plan says that it is missing
        return {"checkpoint": [f"{model.path}/{name}" for name in names]}
    return {"corpus": layout.data(env, "sft.jsonl")} if model.tiny else {}


def pretrain(layout: Layout, wildcards: Wildcards) -> Inputs:
    """A corpus and the untrained policy, which all seeds share or of which each has its own."""
    model, env, branch, _ = _subject(wildcards)
    start = Branch("untrained", branch.seed, 0) if branch.method == "pretrained" else Branch.parse("base/untrained")
    policy = layout.result(model, env, start, "policy/target/policy.json")
    return {"corpus": layout.data(env, "sft.jsonl"), "start": policy}


def sft(layout: Layout, wildcards: Wildcards) -> Inputs:
    """Experts and the policy that fine-tuning starts from."""
    model, env, branch, _ = _subject(wildcards)
    return {"experts": layout.data(env, "sft.jsonl"), "start": layout.pretrained(model, env, branch.seed)}


def shard(layout: Layout, wildcards: Wildcards) -> Inputs:
    """The inputs of the undivided rollout or evaluation."""
    model, env, branch, _ = _subject(wildcards)
    return _episodes(layout, model, env, branch, wildcards["whole"])


def rollout(layout: Layout, wildcards: Wildcards) -> Inputs:
    """Tasks to explore, the policy that explores and how it is prompted; or the parts that shards played."""
    model, env, branch, agent = _subject(wildcards)
    return _episodes(layout, model, env, branch, f"rollout/{agent}", layout.shards.rollout)


def evaluate(layout: Layout, wildcards: Wildcards) -> Inputs:
    """Tasks to evaluate on, the policy and how it is prompted; or the parts that shards played."""
    model, env, branch, _ = _subject(wildcards)
    return _episodes(layout, model, env, branch, "eval", layout.shards.evaluate)


def pairs(layout: Layout, wildcards: Wildcards) -> Inputs:
    """Explored tasks, experts and the episodes of all exploring agents."""
    model, env, branch, agent = _subject(wildcards)
    return {
        "tasks": layout.explored(model, env, branch, "explore.jsonl"),
        "experts": layout.explored(model, env, branch, "experts.jsonl"),
        **layout.paired_rollouts(model, env, branch, agent),
        **_excluded_example(layout, env, branch),
    }


def steps(layout: Layout, wildcards: Wildcards) -> Inputs:
    """The inputs of `pairs`, the policy that explores after steps, and the `scorer` whose continuations value them."""
    model, env, branch, agent = _subject(wildcards)
    inputs = _episodes(layout, model, env, branch, f"rollout/{agent}")
    if excluded_example := _excluded_example(layout, env, branch):
        inputs.pop("example")
    return {
        **inputs,
        "experts": layout.data(env, "experts.jsonl"),
        agent: layout.rollouts(model, env, branch)[agent],
        "scorer": layout.policy(model, env, branch.at(0), agent),
        **excluded_example,
    }


def select(layout: Layout, wildcards: Wildcards) -> Inputs:
    """Experts, and the agent's episodes if it explores."""
    model, env, branch, _ = _subject(wildcards)
    episodes = layout.rollouts(model, env, branch)
    inputs: Inputs = {"experts": layout.data(env, "sft.jsonl"), **episodes, **_excluded_example(layout, env, branch)}
    if layout.suite.for_method(branch.method).selection.experts == "all":
        inputs["explored_experts"] = layout.data(env, "experts.jsonl")
    return inputs


def rft_train(layout: Layout, wildcards: Wildcards) -> Inputs:
    """Selected trajectories and the policy that fine-tuning starts from."""
    model, env, branch, agent = _subject(wildcards)
    selected = layout.result(model, env, branch, f"selected/{agent}/selected.jsonl")
    return {"selected": selected, "start": layout.pretrained(model, env, branch.seed)}


def online(layout: Layout, wildcards: Wildcards) -> Inputs:
    """The inputs of a rollout; the policy is trained while it plays."""
    model, env, branch, agent = _subject(wildcards)
    inputs = _episodes(layout, model, env, branch, f"rollout/{agent}")
    return {**inputs, "policy": layout.policy(model, env, branch.previous, agent)}


def signals(layout: Layout, wildcards: Wildcards) -> Inputs:
    """All agents' training episodes of the earlier rounds (`round1`, ...), the last one's pool, and a prepared shop."""
    model, env, branch, _ = _subject(wildcards)
    rounds = {
        f"round{number}": [*layout.training_episodes(model, env, branch.at(number)).values()]
        for number in range(1, branch.iteration)
    }
    pool = layout.task_pool(model, env, branch.previous)
    return {"pool": pool, **rounds, **_prepared(layout, env)}


def explore_tasks(layout: Layout, wildcards: Wildcards) -> Inputs:
    """The inputs of a rollout of `data`'s tasks, with the signals that guide it; the policy only if it explores."""
    model, env, branch, agent = _subject(wildcards)
    config = layout.suite.for_method(branch.method).task_evolution
    inputs = _episodes(layout, model, env, branch, f"rollout/{agent}")
    inputs["tasks"] = layout.data(env, "explore.jsonl")
    if config.explorer != "policy":
        inputs.pop("policy")
    if branch.iteration > 1 and config.exploration == "signals":
        inputs["signals"] = layout.result(model, env, branch, "signals/signals.jsonl")
    return inputs


def validate_tasks(layout: Layout, wildcards: Wildcards) -> Inputs:
    """The candidates of a round, the pool that they join, the tasks that none may equal, and what an episode reads."""
    model, env, branch, _ = _subject(wildcards)
    return {
        "candidates": layout.result(model, env, branch, "explored/candidates.jsonl"),
        "evaluated": layout.data(env, "evaluate.jsonl"),
        **({"pool": layout.task_pool(model, env, branch.previous)} if branch.iteration > 1 else {}),
        **layout.suite.envs[env].play_files,
        **_prepared(layout, env),
    }


def pool_experts(layout: Layout, wildcards: Wildcards) -> Inputs:
    """The pool whose reference solutions are played, and how agents are prompted."""
    model, env, branch, _ = _subject(wildcards)
    inputs = _episodes(layout, model, env, branch, "rollout/target")
    names = ["instruction", "prepared", *layout.suite.envs[env].play_files]
    if layout.suite.prompt.trained:
        names.append("example")
    pool = layout.task_pool(model, env, branch)
    return {"pool": pool} | {name: inputs[name] for name in names if name in inputs}


def grpo_round(layout: Layout, wildcards: Wildcards) -> Inputs:
    """The inputs of `online`, with the pool in place of the tasks; the method's start policy if a KL term refers to it.

    With adapters the KL term refers to the policy that the round starts from.
    """
    model, env, branch, agent = _subject(wildcards)
    inputs = online(layout, wildcards)
    inputs.pop("tasks")
    if layout.suite.for_method(branch.method).grpo.beta and not layout.suite.models[model].lora:
        inputs["reference"] = layout.policy(model, env, branch.at(0), agent)
    return {**inputs, "pool": layout.task_pool(model, env, branch)}


def reference(layout: Layout, wildcards: Wildcards) -> Inputs:
    """A reference policy, and the trajectories or pairs whose log-probs it gives."""
    model, env, branch, agent = _subject(wildcards)
    return _scored(layout, model, env, branch, agent, wildcards["of"])


def train(layout: Layout, wildcards: Wildcards) -> Inputs:
    """Pairs, the policy to train, and the reference policy or its log-probs, if the objective needs them."""
    model, env, branch, agent = _subject(wildcards)
    dpo = layout.suite.for_method(branch.method).dpo
    inputs: Inputs = {
        "pairs": layout.result(model, env, branch, f"pairs/{agent}/pairs.jsonl"),
        "start": layout.policy(model, env, branch.previous, agent),
        **_steps_like(layout, model, env, branch, agent),
    }
    if not dpo.objective.reference_free:
        name, path = ("scores", _scores) if dpo.precompute_reference else ("reference", _reference)
        inputs[name] = path(layout, model, env, branch, agent)
    return inputs


def gradients(layout: Layout, wildcards: Wildcards) -> Inputs:
    """The inputs of `train` that its loss depends on, and the trained policy."""
    model, env, branch, agent = _subject(wildcards)
    inputs = train(layout, wildcards)
    inputs.pop("steps_like", None)
    return {**inputs, "policy": layout.result(model, env, branch, f"policy/{agent}/policy.json")}


def tables(layout: Layout, wildcards: Wildcards) -> Inputs:
    """The evaluation records of the suite's methods with the first model."""
    return {"records": evaluated(layout, wildcards)}


def table1(layout: Layout, wildcards: Wildcards) -> Inputs:
    """Evaluation records and the paper's cells."""
    return tables(layout, wildcards) | {"claims": CLAIMS}


def figure2(layout: Layout, wildcards: Wildcards) -> Inputs:
    """The explorations of the suite's methods with the first model."""
    return {"explorations": _unique(_first(layout).explorations(layout.suite.methods).values())}


def verdicts(layout: Layout, wildcards: Wildcards) -> Inputs:
    """Everything that a claim of the paper is about."""
    return tables(layout, wildcards) | figure2(layout, wildcards) | {"claims": CLAIMS}


def failures(layout: Layout, wildcards: Wildcards) -> Inputs:
    """Explorations, experts, pairs, the paper's thresholds and the machine, beside the history's provenance.

    All are those of the first model. The gradients come with them if the suite measures them.
    """
    inputs: Inputs = {
        "experts": list(layout.experts().values()),
        "pairs": list(_first(layout).training_pairs().values()),
        "claims": CLAIMS,
        **machine(layout, wildcards),
    }
    if layout.suite.gradients.pairs:
        inputs["gradients"] = _gradients(layout)
    return figure2(layout, wildcards) | inputs


def regime(layout: Layout, wildcards: Wildcards) -> Inputs:
    """Evaluation records, explorations, pairing summaries and online training episodes of the suite's methods.

    They are those of the first model.
    """
    made = tables(layout, wildcards) | figure2(layout, wildcards) | pair_counts(layout, wildcards)
    return made | {"practice": _unique(_first(layout).practice().values())}


def pair_counts(layout: Layout, wildcards: Wildcards) -> Inputs:
    """The pairing summaries of the suite's methods with the first model."""
    return {"summaries": _unique(_first(layout).summaries(layout.suite.methods).values())}


def summary(layout: Layout, wildcards: Wildcards) -> Inputs:
    """Differences, pairing summaries, and the drops of each environment's `data`."""
    differences = f"{layout.home}/paper/differences/differences.json"
    drops = list(layout.drops().values())
    return pair_counts(layout, wildcards) | {"differences": differences, "drops": drops}


def machine(layout: Layout, wildcards: Wildcards) -> Inputs:
    """The machine's file and those that it `extends`, beside the history's provenance."""
    path = Path(layout.machine)
    parents = extended_files(path) if path.is_file() else []
    return {"machine": layout.machine, "machine_parents": [str(parent) for parent in parents]}


def ablation(layout: Layout, wildcards: Wildcards) -> Inputs:
    """Everything that the table of the ablation's methods is made of, with all models."""
    methods = layout.suite.ablations[wildcards["ablation"]].methods
    return {
        "records": _records(layout, methods),
        "summaries": _unique(layout.summaries(methods).values()),
        "drops": list(layout.drops().values()),
        "claims": CLAIMS,
    }


def task_growth(layout: Layout, wildcards: Wildcards) -> Inputs:
    """The training episodes and the pools of the suite's methods with the first model, their records, the claims."""
    rounds = _first(layout).training_rounds().values()
    return table1(layout, wildcards) | {
        "episodes": _unique(episodes for episodes, _ in rounds),
        "pools": _unique(pool for _, pool in rounds),
    }


def evaluated(layout: Layout, wildcards: Wildcards) -> list[str]:
    """History: the evaluation records of the suite's methods with the first model."""
    return _records(_first(layout), layout.suite.methods)


def measured(layout: Layout, wildcards: Wildcards) -> list[str]:
    """History: everything that the products are made of, with all models."""
    layouts = (replace(layout, suite=layout.suite.with_model(model)) for model in layout.suite.models)
    return [path for each in layouts for path in each.results()]


def costed(layout: Layout, wildcards: Wildcards) -> list[str]:
    """History: everything that the products are made of, with all models, and the gradients if they are measured."""
    return [*measured(layout, wildcards), *(_gradients(layout) if layout.suite.gradients.pairs else [])]


def _gradients(layout: Layout) -> list[str]:
    return _unique(_first(layout).gradients().values())


def _first(layout: Layout) -> Layout:
    return replace(layout, suite=layout.suite.with_model())


def _records(layout: Layout, methods: Sequence[str]) -> list[str]:
    return _unique(path for method in methods for path in layout.evaluations(method).values())


def _unique(paths: Iterable[str]) -> list[str]:
    return sorted(set(paths))


def _subject(wildcards: Wildcards) -> tuple[str, str, Branch, AgentName]:
    """Model, environment, branch and agent of a job."""
    return wildcards["model"], wildcards["env"], Branch.parse(wildcards["branch"]), agent_of(wildcards)


def _prepared(layout: Layout, env: str) -> dict[str, str]:
    return {"prepared": f"{layout.home}/prepared/{env}/meta.json"} if layout.suite.envs[env].prepared else {}


def _episodes(layout: Layout, model: str, env: str, branch: Branch, whole: str, jobs: int = 1) -> Inputs:
    """Inputs of a job that plays episodes; the parts of a rollout or evaluation that is divided over several `jobs`."""
    evaluated = whole == "eval"
    tasks = layout.data(env, "evaluate.jsonl") if evaluated else layout.explored(model, env, branch, "explore.jsonl")
    if jobs > 1:
        parts = [f"parts/{whole}/{part}of{jobs}/episodes.jsonl" for part in range(1, jobs + 1)]
        return {"tasks": tasks, "parts": [layout.result(model, env, branch, part) for part in parts]}
    return {
        "instruction": layout.data(env, "instruction.txt"),
        **layout.suite.envs[env].play_files,
        **_prepared(layout, env),
        **({"example": layout.data(env, "example.json")} if layout.examples(branch) else {}),
        "tasks": tasks,
        "policy": _player(layout, model, env, branch, whole),
    }


def _player(layout: Layout, model: str, env: str, branch: Branch, whole: str) -> str:
    """The policy that is evaluated on a branch, or that explores there after the previous iteration's training."""
    if whole == "eval" and branch.method in layout.suite.recipes:
        return layout.policy(model, env, branch, "target")
    agent = agent_of({"whole": whole})
    if whole == "eval" or not branch.iteration:
        return layout.result(model, env, branch, f"policy/{agent}/policy.json")
    return layout.policy(model, env, branch.previous, agent)


def _excluded_example(layout: Layout, env: str, branch: Branch) -> dict[str, str]:
    """The few-shot example that pairs leave out: episodes begin with it and experts do not."""
    trained = layout.suite.prompt.examples and layout.suite.prompt.trained
    return {"excluded_example": layout.data(env, "example.json")} if layout.examples(branch) and not trained else {}


def _reference(layout: Layout, model: str, env: str, branch: Branch, agent: AgentName) -> str:
    """The reference policy of an agent's training: the one that training starts from, or its base."""
    fixed = layout.suite.for_method(branch.method).dpo.reference == "base"
    return layout.policy(model, env, branch.at(0) if fixed else branch.previous, agent)


def _scores(layout: Layout, model: str, env: str, branch: Branch, agent: AgentName) -> str:
    """Reference log-probs for an agent's training; what all methods can share lies under the base."""
    recipe, shared = layout.recipe(branch.method), Branch("base", branch.seed, 0)
    if recipe.learns == "steps":  # whose pairs begin in the middle of a trajectory
        return layout.result(model, env, branch, f"reference/{agent}/pairs/scores.safetensors")
    used = {source for kind in recipe.agents[agent].trains_on for source in KIND_AGENTS[kind]}
    of = "_".join(name for source, name in SOURCES.items() if source in used)
    inputs = [_scored(layout, model, env, where, agent, of) for where in (branch, shared)]
    return layout.result(
        model, env, shared if inputs[0] == inputs[1] else branch, f"reference/{agent}/{of}/scores.safetensors"
    )


def _scored(layout: Layout, model: str, env: str, branch: Branch, agent: AgentName, of: str) -> Inputs:
    """A reference policy, and the trajectories or pairs whose log-probs it gives."""
    if of == "pairs":
        pairs = layout.result(model, env, branch, f"pairs/{agent}/pairs.jsonl")
        return {"policy": _reference(layout, model, env, branch, agent), "pairs": pairs}
    names = of.split("_")
    if branch.iteration:
        policy = _reference(layout, model, env, branch, agent)
        files = layout.paired_rollouts(model, env, branch, agent)
    else:
        policy = layout.result(model, env, branch, f"policy/{agent}/policy.json")
        files = {name: layout.result(model, env, branch, f"rollout/{name}/episodes.jsonl") for name in names}
    files["experts"] = layout.explored(model, env, branch, "experts.jsonl")
    # A recipe may name an agent that does not explore; the pairing reports it.
    scored = {name: files[name] for name in names if name in files}
    return {"policy": policy, **scored, **_excluded_example(layout, env, branch)}


def _steps_like(layout: Layout, model: str, env: str, branch: Branch, agent: AgentName) -> dict[str, list[str]]:
    """The pairs of both agents of the method whose number of gradient steps a target is given.

    Raises `UserError` if the steps of one epoch, or the epochs, differ between the two methods.
    """
    other = layout.recipe(branch.method).steps_like
    if other is None or agent == "failure":
        return {}
    settings, of_other = (layout.suite.for_method(method).dpo for method in (branch.method, other))
    for key in ("epochs", "batch_size"):
        if getattr(settings, key) != (value := getattr(of_other, key)):
            name = f"recipes.{branch.method}.settings.dpo.{key}"
            raise UserError(f"{name}: the row takes the steps of `{other}`, which has {value}; set it to {value}.")
    matched = replace(branch, method=other)
    names = [f"pairs/{each}/pairs.jsonl" for each in layout.trained_agents(env, matched)]
    return {"steps_like": [layout.result(model, env, layout.owner(matched), name) for name in names]}
