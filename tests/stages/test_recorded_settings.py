"""A suite in which no setting equals another or its default: what each job read and recorded shows which it used.

Seed 3, two iterations with rates and betas of their own, adapters with dropout, a context that cuts, explored tasks
that are not those of SFT, and temperatures of the methods. The policy is random and comes from a folder.
"""

import contextlib
import json
import math
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from small_run import make

from coevolve import seeds
from coevolve.chat.chat_template import Renderer
from coevolve.config.loading import load_suite
from coevolve.pipeline import devices
from coevolve.pipeline.plan import Plan
from coevolve.pipeline.stages.parts.training import texts, tokenize
from coevolve.policies import loading
from coevolve.records.episodes import Task, Trajectory
from coevolve.records.evaluation import EvalRecord
from coevolve.records.pairs import PairKind, PreferencePair
from coevolve.records.provenance import Provenance
from coevolve.storage import jsonl, policy_dir
from coevolve.train import reference_logps, tiny_model
from coevolve.train.settings import TinyArchitecture

SUITE = """
extends: [hyperparameters.yaml, envs/webshop-small.yaml]
suite: unequal
protocol: fixed
protocols: {fixed: {exploration_temperature: 0.9}}
seeds: [3]
iterations: {webshop: 2}
methods: [mixed, matched]
models:
  given:
    label: A random policy from a folder
    path: given
    context: 300
    parameters: 1.0e+5
    lora: {rank: 2, alpha: 8, dropout: 0.25, target_modules: all-linear}
envs:
  webshop:
    tasks: {sft: 3, explore: 2, evaluate: 2}
    workers: 2
sft:
  {epochs: 2, batch_size: 3, micro_batch: 3, learning_rate: 2.0e-3, warmup: 0.3, schedule: cosine, weight_decay: 0.1}
dpo:
  {epochs: 2, batch_size: 2, micro_batch: 2, learning_rate: [4.0e-3, 1.0e-3], beta: [0.2, 0.7], warmup: 0.1,
  schedule: linear}
rollout: {max_new_tokens: 8, top_p: 0.85}
recipes:
  mixed:
    extends: positive_agent
    settings: {rollout: {temperature: 0.6}, evaluation: {samples: 2, temperature: 0.4}}
  matched:
    extends: eto
    iterations: 1
    settings: {dpo: {steps_like: mixed}}
"""
HOME = Path("results/unequal/given/webshop")
CONTEXT = 300
RATES, BETAS = {1: 4e-3, 2: 1e-3}, {1: 0.2, 2: 0.7}
KINDS = (PairKind.EXPERT_TARGET, PairKind.EXPERT_FAILURE)


@pytest.fixture(scope="module")
def unequal(root, tmp_path_factory):
    """A folder with the results of the suite's jobs up to the last evaluation."""
    folder = tmp_path_factory.mktemp("unequal")
    shutil.copytree(root / "configs", folder / "configs")
    (folder / "data").symlink_to(root / "data")
    (folder / "configs/unequal.yaml").write_text(SUITE)
    with contextlib.chdir(folder):
        plan = Plan(load_suite("configs/unequal.yaml"))
        make(plan, data := plan.paper.data("webshop")["sft.jsonl"])
        experts = jsonl.read(Path(data), Trajectory)
        architecture = TinyArchitecture(vocab_size=420, hidden_size=32, layers=1, heads=2, intermediate_size=64)
        tiny_model.build(architecture, context=2048, texts=texts(experts), seed=1, out=Path("given"), name="given")
        make(plan, f"{HOME}/mixed/seed3/iter2/eval/records.jsonl")
        make(plan, f"{HOME}/mixed/seed3/iter1/eval/records.jsonl")
        make(plan, f"{HOME}/matched/seed3/iter1/policy/target/policy.json")
    return folder


@pytest.fixture
def here(unequal, monkeypatch):
    """The results of the suite, in whose folder the test runs."""
    monkeypatch.chdir(unequal)
    return HOME


def provenance(folder):
    return Provenance.from_json((folder / "provenance.json").read_bytes())


def read(name):
    return [Path(path).relative_to(HOME).as_posix() for path in name if Path(path).is_relative_to(HOME)]


def rates(notes):
    return [step["learning_rate"] for step in notes.history]


def cosine(steps, warmup):
    """Rises to 1 at the last step of the warm-up; then half a cosine, which would be 0 after the last step."""
    rise = [(step + 1) / warmup for step in range(warmup)]
    return rise + [0.5 + 0.5 * math.cos(math.pi * step / (steps - warmup)) for step in range(steps - warmup)]


def linear(steps, warmup):
    """The same with a line."""
    rise = [(step + 1) / warmup for step in range(warmup)]
    return rise + [1 - step / (steps - warmup) for step in range(steps - warmup)]


def rank_of_change(before, after):
    """Largest rank of the change of a matrix between two policies, and the names of the tensors that changed."""
    old, new = (loading.load_model(folder).state_dict() for folder in (before, after))
    pairs = {name: (tensor, new[name]) for name, tensor in old.items()}
    changed = {name: (new - old).double() for name, (old, new) in pairs.items() if not torch.equal(old, new)}
    return max(int(torch.linalg.matrix_rank(change, rtol=1e-3)) for change in changed.values()), set(changed)


def test_sft_uses_its_rate_schedule_and_adapters_at_the_configured_context(here):
    """The two bases differ by their seed alone."""
    experts = jsonl.read(Path("results/unequal/data/webshop/sft.jsonl"), Trajectory)
    steps = 2 * math.ceil(len(experts) / 3)
    policies = {agent: here / "base/seed3/policy" / agent for agent in ("target", "failure")}
    made = {agent: provenance(policy) for agent, policy in policies.items()}
    for agent, policy in policies.items():
        notes = made[agent].notes
        assert notes.rows == len(experts) and notes.steps == steps
        assert rates(notes) == pytest.approx([2e-3 * share for share in cosine(steps, math.ceil(0.3 * steps))])
        lengths = [len(row) for row in tokenize(experts, Renderer(loading.load_tokenizer(policy)))]
        assert notes.truncated == sum(length > CONTEXT for length in lengths) > 0
        assert notes.tokens == 2 * sum(min(length, CONTEXT) for length in lengths)
        rank, changed = rank_of_change(Path("given"), policy)
        assert rank == 2 and all("_proj" in name for name in changed) and len(changed) == 7
        assert made[agent].seeds == {"suite": 3, "job": seeds.derive(3, "sft", "webshop", "base/seed3", agent)}
    target, failure = made.values()
    assert target.inputs == failure.inputs and target.config == failure.config
    assert target.outputs["adapter_model.safetensors"] != failure.outputs["adapter_model.safetensors"]


@pytest.mark.parametrize(
    ("branch", "start", "temperature"),
    [
        ("base/seed3", "base/seed3", 0.9),  # that of the protocol
        ("mixed/seed3/iter1", "base/seed3", 0.6),
        ("mixed/seed3/iter2", "mixed/seed3/iter1", 0.6),
    ],
)
def test_agents_explore_with_their_last_policy_and_the_methods_temperature_or_the_protocols(
    here, branch, start, temperature
):
    tasks = jsonl.read(Path("results/unequal/data/webshop/explore.jsonl"), Task)
    for agent in ("target", "failure") if branch.startswith("mixed") else ("target",):
        made = provenance(here / branch / "rollout" / agent)
        assert made.cpu_seconds > 0 and made.hardware == devices.hardware()
        assert read(made.inputs) == [f"{start}/policy/{agent}/policy.json"]
        episodes = jsonl.read(here / branch / "rollout" / agent / "episodes.jsonl", Trajectory)
        assert [episode.task for episode in episodes] == tasks
        (sampling,) = {episode.sampling for episode in episodes}
        assert (sampling.temperature, sampling.top_p, sampling.max_new_tokens) == (temperature, 0.85, 8)
        assert {episode.seed for episode in episodes} == {seeds.derive(3, "rollout", "webshop", branch, agent)}


@pytest.mark.parametrize("iteration", [1, 2])
def test_evaluation_uses_the_methods_temperature_and_records_the_suites_seed(here, iteration):
    branch = f"mixed/seed3/iter{iteration}"
    made = provenance(here / branch / "eval")
    assert read(made.inputs) == [f"{branch}/policy/target/policy.json"]
    episodes = jsonl.read(here / branch / "eval/episodes.jsonl", Trajectory)
    records = jsonl.read(here / branch / "eval/records.jsonl", EvalRecord)
    assert {episode.sampling.temperature for episode in episodes} == {0.4} and len(episodes) == 2 * len(records)
    assert {episode.seed for episode in episodes} == {seeds.derive(3, "evaluate", "webshop", branch, "target")}
    assert {(record.seed, record.samples) for record in records} == {(3, 2)}


TRAININGS = [("mixed", 1, "target"), ("mixed", 1, "failure"), ("mixed", 2, "target")]


@pytest.mark.parametrize(("method", "iteration", "agent"), TRAININGS)
def test_preference_training_starts_from_the_last_policy_with_the_rate_and_beta_of_its_iteration(
    here, method, iteration, agent
):
    branch = here / f"{method}/seed3/iter{iteration}"
    policy = branch / "policy" / agent
    before = here / (f"{method}/seed3/iter{iteration - 1}" if iteration > 1 else "base/seed3") / "policy" / agent
    scores = next(branch.glob(f"reference/{agent}/*/scores.safetensors"))
    made = provenance(policy)
    assert {Path(path) for path in made.inputs} == {
        branch / f"pairs/{agent}/pairs.jsonl", before / "policy.json", scores,
    }  # fmt: skip
    assert Path(read(provenance(scores.parent).inputs)[0]) == (before / "policy.json").relative_to(here)
    rank, changed = rank_of_change(before, policy)
    assert rank == 2 and all("_proj" in name for name in changed) and len(changed) == 7
    assert made.seeds["job"] == seeds.derive(3, "train", "webshop", f"mixed/seed3/iter{iteration}", agent)
    pairs, notes = jsonl.read(branch / f"pairs/{agent}/pairs.jsonl", PreferencePair), made.notes
    steps = 2 * math.ceil(len(pairs) / 2)
    assert notes.rows == len(pairs) > 0 and notes.steps == steps
    assert rates(notes) == pytest.approx([RATES[iteration] * share for share in linear(steps, math.ceil(0.1 * steps))])
    lengths = [max(map(len, sides)) for sides in tokenized(pairs, Renderer(loading.load_tokenizer(policy)))]
    assert notes.truncated == sum(length > CONTEXT for length in lengths) > 0
    measured = betas_of(policy, scores, pairs, notes.kinds)
    assert measured == pytest.approx([BETAS[iteration]] * len(measured), rel=1e-3) and measured


def tokenized(pairs, renderer):
    """The chosen and the rejected side of each pair as token ids."""
    chosen = (renderer.render(pair.prompt, pair.chosen, pair.chosen_token_ids) for pair in pairs)
    rejected = (renderer.render(pair.prompt, pair.rejected, pair.rejected_token_ids) for pair in pairs)
    return list(zip(chosen, rejected, strict=True))


def betas_of(policy, scores, pairs, kinds):
    """The margin of each kind divided by the difference of its log-ratios, all of the last epoch."""
    renderer, reference = Renderer(loading.load_tokenizer(policy)), reference_logps.read(scores)
    betas = []
    for kind in (kind for kind in KINDS if kind in kinds):
        of_kind = tokenized([pair for pair in pairs if pair.kind is kind], renderer)
        sides = [[logp(reference, side) for side in sides] for sides in of_kind]
        chosen, rejected = np.mean(sides, axis=0)
        difference = (kinds[kind]["logps/chosen"] - chosen) - (kinds[kind]["logps/rejected"] - rejected)
        assert abs(difference) > 0.01
        betas.append(kinds[kind]["rewards/margins"] / difference)
    return betas


def logp(reference, row):
    """The reference log-prob of a trajectory's action tokens in the context."""
    row = row.truncate(CONTEXT)
    values = reference.lookup(row.input_ids)
    return sum(value for value, acted in zip(values.tolist(), row.action_mask[1:], strict=True) if acted)


def test_a_policy_of_adapters_is_evaluated_as_a_checkpoint(here, coevolve):
    policy = here / "mixed/seed3/iter2/policy/target"
    command = ("evaluate-model", policy, "--suite", "configs/unequal.yaml", "--env", "webshop", "--out", "mine.json")
    code, _, err = coevolve(*command, "--tasks", "1")
    assert code == 0, err
    evaluated = json.loads(Path("mine.json").read_text())["model"]
    assert evaluated["sha256"] == policy_dir.read_ref(policy / "policy.json").sha256
    (linked,) = Path("results/evaluate_model").glob("*/model/webshop/base/untrained/policy/target")
    assert policy_dir.start_of(linked) == policy_dir.start_of(policy)


def test_pairs_come_from_the_episodes_of_their_iteration_and_the_explored_tasks(here):
    made = provenance(here / "mixed/seed3/iter2/pairs/target")
    assert sorted(read(made.inputs)) == [
        f"mixed/seed3/iter2/rollout/{agent}/episodes.jsonl" for agent in ("failure", "target")
    ]
    others = sorted(Path(path).name for path in made.inputs if not Path(path).is_relative_to(HOME))
    assert others == ["experts.jsonl", "explore.jsonl"]
    explored, tuned = (
        {expert.task.task_id for expert in jsonl.read(Path(f"results/unequal/data/webshop/{name}"), Trajectory)}
        for name in ("experts.jsonl", "sft.jsonl")
    )
    pairs = jsonl.read(here / "mixed/seed3/iter2/pairs/target/pairs.jsonl", PreferencePair)
    assert {pair.task_id for pair in pairs} <= explored and not explored & tuned


def test_a_compute_matched_control_takes_as_many_steps_as_both_agents_of_the_other_method(here):
    agents = [provenance(here / f"mixed/seed3/iter1/policy/{agent}").notes for agent in ("target", "failure")]
    own = provenance(here / "matched/seed3/iter1/policy/target").notes
    assert own.rows > 0 and own.steps == sum(notes.steps for notes in agents) > 2 * math.ceil(own.rows / 2)
