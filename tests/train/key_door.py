"""Pairs of the key-door world, their reference log-probs, and the stages `reference` and `train` on them."""

import pytest
from stages import corridor

from coevolve.methods import pairing
from coevolve.methods.recipes import AgentRecipe
from coevolve.methods.settings import PairingConfig, PairWeights
from coevolve.pipeline.stages import reference, train
from coevolve.records.episodes import StopReason, Trajectory, Turn
from coevolve.records.pairs import PairKind
from coevolve.storage import jsonl

CUT = PairingConfig(expert_beaten="drop", max_extra_turns=0, within=False, hard_negative=None)


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """Experts, episodes that failed, and two policies."""
    folder = tmp_path_factory.mktemp("base")
    experts = corridor.experts(folder)
    jsonl.write(folder / "experts.jsonl", experts)
    jsonl.write(folder / "target.jsonl", [episode(expert, number) for number, expert in enumerate(experts)])
    corridor.policy(folder / "policy")
    corridor.policy(folder / "other", seed=2)
    return folder


def episode(expert, number):
    """A failure, one turn longer than the expert's episode; the token limit cut its last turn off."""
    turns = [
        Turn(
            text=f"wait {k}",
            action=None,
            observation=f"still {k}",
            token_ids=(30 + number, 40 + k, *([2] if k < 5 else [])),
        )
        for k in range(len(expert.turns) + 1)
    ]
    own = {"agent": "target", "turns": tuple(turns), "reward": 0.1 * number, "stop": StopReason.STEP_LIMIT}
    return expert.model_copy(update=own)


def paired(base, rules=CUT, excluded_example=(), name="pairs.jsonl"):
    """The file of the pairs of those experts and episodes."""
    weights = {PairKind.EXPERT_TARGET: PairWeights(dpo=1.0, sft=0.0)}
    recipe = AgentRecipe(base="target", explores=True, trains_on=weights)
    experts, target = (jsonl.read(base / f"{source}.jsonl", Trajectory) for source in ("experts", "target"))
    found = pairing.pair(recipe, rules, corridor.TASKS, experts, {"target": target}, excluded_example)
    assert len(found.pairs) == 3
    jsonl.write(base / name, found.pairs)
    return base / name


def scored(tmp_path, policy, name="reference", dtype=None, **inputs):
    """The file of scores that the stage leaves."""
    out = tmp_path / name
    out.mkdir(parents=True)
    job = corridor.job("reference", tmp_path / f"{name}-job", computed_in(dtype), policy=policy, **inputs)
    notes = reference.run(job, out)
    assert notes["tokens"] > notes["rows"]
    return out / "scores.safetensors"


def computed_in(dtype, **sections):
    """The sections of a job whose model is trained in `dtype`."""
    sections = corridor.suite(**sections)
    sections.models["tiny"].training_dtype = dtype
    return sections


def trained(tmp_path, base, name, dtype=None, lora=None, **inputs):
    """What the training of `policy` reports."""
    own, sections = {"start": base / "policy/policy.json", **inputs}, computed_in(dtype)
    sections.models["tiny"].lora = lora
    job = corridor.job("train", tmp_path / f"{name}-job", sections, **own)
    return train.run(job, tmp_path / name)


def sources(base):
    return {name: base / f"{name}.jsonl" for name in ("experts", "target")}
