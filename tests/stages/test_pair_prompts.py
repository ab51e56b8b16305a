"""Pairs whose sides were played under different texts of the task, as WebShop's are under protocol `paper`."""

from types import SimpleNamespace

import pytest
from stages import corridor

from coevolve.methods.recipes import AgentRecipe
from coevolve.methods.settings import PairWeights
from coevolve.pipeline.stages import pairs, reference, train
from coevolve.records.episodes import Message, Task
from coevolve.records.pairs import PairKind, PreferencePair
from coevolve.storage import jsonl

WEIGHTS = PairWeights(dpo=1.0, sft=0.5)


def retold(trajectory, text, **changes):
    """The trajectory with `text` after its task, the last message of the prompt."""
    *before, task = trajectory.prompt
    told = Message(role=task.role, content=f"{task.content} {text}")
    return trajectory.model_copy(update={"prompt": (*before, told), **changes})


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Experts, and worse episodes of the target agent under other texts."""
    folder = tmp_path_factory.mktemp("retold")
    experts = corridor.experts(folder)
    explored = [retold(e, "Be quick.", agent="target", reward=0.5, turns=e.turns[::-1]) for e in experts]
    jsonl.write(folder / "tasks.jsonl", [Task.model_validate(expert.task) for expert in experts])
    jsonl.write(folder / "experts.jsonl", experts)
    jsonl.write(folder / "target.jsonl", explored)
    return folder


def test_a_pair_has_the_prompt_of_its_chosen_side_and_its_reference_log_probs(files, tmp_path):
    policy = corridor.policy(tmp_path / "policy")
    agents = {"target": AgentRecipe(base="target", explores=True, trains_on={PairKind.EXPERT_TARGET: WEIGHTS})}
    recipes = {"method": SimpleNamespace(agents=agents)}
    suite = corridor.suite(recipes=recipes)
    explored = {"experts": files / "experts.jsonl", "target": files / "target.jsonl"}
    (tmp_path / "pairs").mkdir()
    job = corridor.job("pairs", tmp_path / "pairing", suite, tasks=files / "tasks.jsonl", **explored)
    counts = pairs.run(job, tmp_path / "pairs").kinds[PairKind.EXPERT_TARGET]
    made = jsonl.read(tmp_path / "pairs/pairs.jsonl", PreferencePair)
    assert counts.pairs == counts.other_prompt == len(made) == len(corridor.TASKS)
    assert not any("Be quick." in pair.prompt[-1].content for pair in made)

    scores = tmp_path / "scores"
    scores.mkdir()
    reference.run(corridor.job("reference", tmp_path / "scoring", suite, policy=policy, **explored), scores)
    inputs = {"start": policy, "scores": scores / "scores.safetensors", "pairs": tmp_path / "pairs/pairs.jsonl"}
    notes = train.run(corridor.job("train", tmp_path / "training", suite, **inputs), tmp_path / "trained")
    assert notes.history[0]["expert_target/rewards/margins"] == pytest.approx(0.0, abs=1e-5)
