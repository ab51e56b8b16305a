"""Stages that make policies: base models, fine-tuning, preference training, online training."""

import itertools
from dataclasses import replace
from pathlib import Path

from coevolve.config.derived.methods import for_method
from coevolve.config.derived.protocol import grpo_engine
from coevolve.config.derived.recipes import PAIR_LEARNING
from coevolve.config.derived.training import is_reference_free
from coevolve.config.suite import Suite
from coevolve.dag.branch import SOURCES, AgentName, Branch
from coevolve.dag.layout import MIRROR, Layout
from coevolve.dag.rules import work
from coevolve.dag.rules.common import EXPLORING, SAMPLED, SEED, TREE, episodes, online, subject, training
from coevolve.dag.stage import Inputs, Wildcards
from coevolve.errors import UserError
from coevolve.methods.pairing import KIND_AGENTS
from coevolve.records.provenance import Workload
from coevolve.report.costs import FORWARD
from coevolve.report.costs import TRAIN as TRAINED
from coevolve.storage import policy_dir

#: What reference log-probs are of: pairs, or the trajectories of some sources.
SCORED = ("pairs", *("_".join(some) for n in (1, 2, 3) for some in itertools.combinations(SOURCES.values(), n)))


def _untrained_inputs(layout: Layout, wildcards: Wildcards) -> Inputs:
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


def _untrained_work(layout: Layout, wildcards: Wildcards) -> Workload:
    """A process that loads the libraries; it writes a tiny model's weights and links those of a checkpoint."""
    return Workload(starts=True, keeps_weights=layout.suite.models[wildcards["model"]].tiny is not None)


UNTRAINED = training(
    name="untrained",
    help="Write the base model before training: a downloaded checkpoint, or a tokenizer and random weights.",
    reads=("models",),
    folder=TREE + "policy/target",
    branches=r"base/untrained|untrained/seed\d+",
    inputs=_untrained_inputs,
    workload=_untrained_work,
)


def _pretrain_inputs(layout: Layout, wildcards: Wildcards) -> Inputs:
    """A corpus and the untrained policy, which all seeds share or of which each has its own."""
    model, env, branch, _ = subject(wildcards)
    start = Branch("untrained", branch.seed, 0) if branch.method == "pretrained" else Branch.parse("base/untrained")
    policy = layout.result(model, env, start, "policy/target/policy.json")
    return {"corpus": layout.data(env, "sft.jsonl"), "start": policy}


def _pretrain_work(layout: Layout, wildcards: Wildcards) -> Workload:
    """All epochs over the experts and the sequences that repeat themselves."""
    _, _, expected = work.setting(layout, wildcards)
    config = layout.suite.models[wildcards["model"]].pretrain
    return work.training_work(expected.experts * expected.tokens * config.epochs if config else 0)


PRETRAIN = training(
    name="pretrain",
    help="Pre-train a randomly initialised model on language modelling.",
    reads=("models",),
    folder=TREE + "policy/target",
    branches=r"base/pretrained|pretrained/seed\d+",
    inputs=_pretrain_inputs,
    workload=_pretrain_work,
    launchable=True,
)


def _sft_inputs(layout: Layout, wildcards: Wildcards) -> Inputs:
    """Experts and the policy that fine-tuning starts from."""
    model, env, branch, _ = subject(wildcards)
    return {"experts": layout.data(env, "sft.jsonl"), "start": layout.pretrained(model, env, branch.seed)}


SFT = training(
    name="sft",
    help="Fine-tune the base policies of the target and the failure agent, independently (section 4.1).",
    reads=("models", "sft"),
    branches=SEED,
    inputs=_sft_inputs,
    workload=work.of_setting(lambda suite, of: work.training_work(of.experts * of.tokens * suite.sft.epochs)),
    launchable=True,
)


def _rft_inputs(layout: Layout, wildcards: Wildcards) -> Inputs:
    """Selected trajectories and the policy that fine-tuning starts from."""
    model, env, branch, agent = subject(wildcards)
    selected = layout.result(model, env, branch, f"selected/{agent}/selected.jsonl")
    return {"selected": selected, "start": layout.pretrained(model, env, branch.seed)}


def _rft_work(layout: Layout, wildcards: Wildcards) -> Workload:
    """All epochs over the experts and the expected successes, as far as the method selects them."""
    suite, branch, expected = work.setting(layout, wildcards)
    explores = layout.recipe(branch.method).agents["target"].explores
    successes = expected.explore * suite.rollout.k * (1 - expected.failures) if explores else 0.0
    experts = expected.experts + (expected.explore if suite.selection.experts == "all" else 0)
    experts *= suite.selection.with_experts
    return work.training_work((experts + successes) * expected.tokens * suite.sft.epochs)


RFT_TRAIN = training(
    name="rft_train",
    help="Fine-tune a base policy on the selected trajectories (RFT).",
    reads=("models", "sft"),
    learns=("selected",),
    inputs=_rft_inputs,
    workload=_rft_work,
    launchable=True,
)


def online_inputs(layout: Layout, wildcards: Wildcards) -> Inputs:
    """The inputs of a rollout; the policy is trained while it plays."""
    model, env, branch, agent = subject(wildcards)
    inputs = episodes(layout, wildcards, f"rollout/{agent}")
    return {**inputs, "policy": layout.policy(model, env, branch.previous, agent)}


PPO = online(
    name="ppo",
    help="Train the target with PPO on episodes that it samples.",
    reads=(*SAMPLED, "ppo"),
    learns=("ppo",),
    inputs=online_inputs,
    workload=work.of_setting(lambda suite, of: work.playing_work(of, of.explore * suite.ppo.epochs, suite.ppo.passes)),
)


GRPO = online(
    name="grpo",
    help="Train the target with GRPO on groups of episodes that it samples.",
    reads=(*SAMPLED, "grpo"),
    plays=grpo_engine,
    learns=("grpo",),
    inputs=online_inputs,
    workload=work.of_setting(
        lambda suite, of: work.playing_work(of, of.explore * suite.grpo.epochs * suite.grpo.group, 1)
    ),
)


def _reference(layout: Layout, model: str, env: str, branch: Branch, agent: AgentName) -> str:
    """The reference policy of an agent's training: the one that training starts from, or its base."""
    fixed = for_method(layout.suite, branch.method, agent).dpo.reference == "base"
    return layout.policy(model, env, branch.at(0) if fixed else branch.previous, agent)


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
    return {"policy": policy, **scored, **layout.excluded_example(env, branch)}


def _reference_inputs(layout: Layout, wildcards: Wildcards) -> Inputs:
    """A reference policy, and the trajectories or pairs whose log-probs it gives."""
    model, env, branch, agent = subject(wildcards)
    return _scored(layout, model, env, branch, agent, wildcards["of"])


def _reference_work(layout: Layout, wildcards: Wildcards) -> Workload:
    """One forward pass over what is scored: both sides of pairs, or all trajectories of a task with a failure."""
    suite, branch, expected = work.setting(layout, wildcards)
    if wildcards["of"] == "pairs":
        tokens = work.pair_tokens(suite, branch, subject(wildcards)[-1], expected)
    else:
        sources = wildcards["of"].split("_")
        experts = sources.count("experts")
        rollouts = (len(sources) - experts) * suite.rollout.k
        failed = 1 - (1 - expected.failures) ** rollouts
        tokens = work.explored_tasks(suite, branch, expected) * failed * (experts + rollouts) * expected.tokens
    return Workload(train=tokens * FORWARD / TRAINED, kept=tokens, starts=tokens > 0)


REFERENCE = training(
    name="reference",
    help="Compute a reference policy's log-probs, once for all trainings that share them.",
    reads=("models",),
    files=("scores.safetensors",),
    folder=TREE + "reference/{agent}/{of}",
    branches=EXPLORING,
    inputs=_reference_inputs,
    workload=_reference_work,
)


def _scores(layout: Layout, model: str, env: str, branch: Branch, agent: AgentName) -> str:
    """Reference log-probs for an agent's training; what all methods can share lies under the base."""
    recipe, shared = layout.recipe(branch.method), Branch("base", branch.seed, 0)
    selected = for_method(layout.suite, branch.method, agent).pairing.failures
    if recipe.learns == "steps" or selected:  # pairs from the middle of a trajectory on, or of few of the trajectories
        return layout.result(model, env, branch, f"reference/{agent}/pairs/scores.safetensors")
    used = {source for kind in recipe.agents[agent].trains_on for source in KIND_AGENTS[kind]}
    of = "_".join(name for source, name in SOURCES.items() if source in used)
    inputs = [_scored(layout, model, env, where, agent, of) for where in (branch, shared)]
    return layout.result(
        model, env, shared if inputs[0] == inputs[1] else branch, f"reference/{agent}/{of}/scores.safetensors"
    )


def _steps_like(layout: Layout, model: str, env: str, branch: Branch, agent: AgentName) -> dict[str, list[str]]:
    """The pairs of both agents of the method whose number of gradient steps a target is given.

    Raises `UserError` if the steps of one epoch, or the epochs, differ between the two methods.
    """
    other = layout.recipe(branch.method).steps_like
    if other is None or agent == "failure":
        return {}
    matched = replace(branch, method=other)
    agents, settings = layout.trained_agents(env, matched), for_method(layout.suite, branch.method, agent).dpo
    for name, key in itertools.product(agents, ("epochs", "batch_size")):
        if getattr(settings, key) != (value := getattr(for_method(layout.suite, other, name).dpo, key)):
            setting = f"recipes.{branch.method}.settings.dpo.{key}"
            raise UserError(f"{setting}: the row takes the steps of `{other}`, which has {value}; set it to {value}.")
    names = [f"pairs/{name}/pairs.jsonl" for name in agents]
    return {"steps_like": [layout.result(model, env, layout.owner(matched), name) for name in names]}


def _train_inputs(layout: Layout, wildcards: Wildcards) -> Inputs:
    """Pairs, the policy to train, and the reference policy or its log-probs, if the objective needs them."""
    model, env, branch, agent = subject(wildcards)
    dpo = for_method(layout.suite, branch.method, agent).dpo
    inputs: Inputs = {
        "pairs": layout.result(model, env, branch, f"pairs/{agent}/pairs.jsonl"),
        "start": layout.policy(model, env, branch.previous, agent),
        **_steps_like(layout, model, env, branch, agent),
    }
    if not is_reference_free(dpo.objective):
        name, path = ("scores", _scores) if dpo.precompute_reference else ("reference", _reference)
        inputs[name] = path(layout, model, env, branch, agent)
    return inputs


def _on_the_fly(suite: Suite) -> bool:
    """Whether a training computes its reference log-probs itself."""
    return not (is_reference_free(suite.dpo.objective) or suite.dpo.precompute_reference)


def _train_work(layout: Layout, wildcards: Wildcards) -> Workload:
    """All epochs over the pairs, with the reference policy's forward passes where none were computed before.

    A compute-matched control takes as many steps, and so about as many pairs, as the agents that it is matched to.
    """
    suite, branch, expected = work.setting(layout, wildcards)
    passes = suite.dpo.epochs * (1 + (FORWARD / TRAINED if _on_the_fly(suite) else 0))
    agent, other = subject(wildcards)[-1], layout.recipe(branch.method).steps_like
    if other is None or agent == "failure":
        return work.training_work(passes * work.pair_tokens(suite, branch, agent, expected))
    matched = replace(branch, method=other)
    agents = layout.trained_agents(wildcards["env"], matched)
    of_agents = (work.pair_tokens(for_method(layout.suite, other, name), matched, name, expected) for name in agents)
    return work.training_work(passes * sum(of_agents))


PREFERENCE_TRAIN = training(
    name="train",
    help="Train the failure agent (eq. 7) or the target agent (eq. 9): one objective, weights per pair.",
    reads=("models", "dpo"),
    learns=(*PAIR_LEARNING, "steps"),
    inputs=_train_inputs,
    workload=_train_work,
    launchable=True,
)


def _gradients_inputs(layout: Layout, wildcards: Wildcards) -> Inputs:
    """The inputs of `train` that its loss depends on, and the trained policy."""
    model, env, branch, agent = subject(wildcards)
    inputs = _train_inputs(layout, wildcards)
    inputs.pop("steps_like", None)
    return {**inputs, "policy": layout.result(model, env, branch, f"policy/{agent}/policy.json")}


def _gradients_work(layout: Layout, wildcards: Wildcards) -> Workload:
    """A forward and two backward passes (one for each part of eq. 9) over the measured pairs, at two policies."""
    suite, branch, expected = work.setting(layout, wildcards)
    forward, backward = 1 + _on_the_fly(suite), 2
    passes = (forward * FORWARD + backward * (TRAINED - FORWARD)) / TRAINED
    limit, of_kinds = suite.gradients.pairs or 0, work.expected_pairs(suite, branch, subject(wildcards)[-1], expected)
    tokens = sum(min(limit, pairs) for pairs in of_kinds.values()) * 2 * expected.tokens
    return Workload(train=2 * passes * tokens, starts=tokens > 0)


GRADIENTS = training(
    name="gradients",
    help="Measure the gradient of each pair kind before and after a preference training.",
    reads=("models", "dpo", "gradients"),
    files=("gradients.json",),
    folder=TREE + "gradients/{agent}",
    learns=(*PAIR_LEARNING, "steps"),
    inputs=_gradients_inputs,
    workload=_gradients_work,
)

STAGES = (UNTRAINED, PRETRAIN, SFT, RFT_TRAIN, PPO, GRPO, REFERENCE, PREFERENCE_TRAIN, GRADIENTS)
