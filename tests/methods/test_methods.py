from pathlib import Path

import pytest
import yaml

from coevolve.config.suite import load_suite
from coevolve.methods.pairing import KIND_AGENTS
from coevolve.types import PairKind, PairWeights

FILE = Path(__file__).parents[2] / "configs" / "methods.yaml"
RECIPES = load_suite(FILE.with_name("smoke.yaml")).recipes
EXPERT, FAILURES = PairWeights(dpo=0.5, sft=0.5), PairWeights(dpo=1.0, sft=0.0)


def test_the_file_holds_recipes_and_the_questions_about_them():
    assert list(yaml.safe_load(FILE.read_text())) == ["recipes"]
    assert list(yaml.safe_load(FILE.with_name("ablations.yaml").read_text())) == ["recipes", "ablations"]


@pytest.mark.parametrize("name", RECIPES)
def test_every_pair_kind_a_recipe_trains_on_has_its_explorers(name):
    recipe = RECIPES[name]
    explorers = {agent for agent, spec in recipe.agents.items() if spec.explores} | {"expert"}
    for agent in recipe.agents.values():
        for kind in agent.trains_on:
            assert KIND_AGENTS.get(kind, {"expert", "target"}) <= explorers
    assert "target" in recipe.agents
    assert recipe.source and recipe.label


@pytest.mark.parametrize("name", RECIPES)
def test_recipes_without_iterations_train_and_explore_nothing(name):
    recipe = RECIPES[name]
    busy = recipe.learns in ("ppo", "grpo") or any(a.explores or a.trains_on for a in recipe.agents.values())
    assert busy == (recipe.iterations != 0)


def test_coevolve_is_section_4():
    agents = RECIPES["coevolve"].agents
    assert agents["target"].trains_on == {
        PairKind.EXPERT_TARGET: EXPERT,
        PairKind.EXPERT_FAILURE: EXPERT,
        PairKind.FAILURE_FAILURE: FAILURES,
    }
    assert agents["failure"].trains_on == {PairKind.FAILURE_FAILURE: FAILURES}
    assert (agents["target"].base, agents["failure"].base) == ("target", "failure")


def test_eto_is_its_script():
    eto = RECIPES["eto"]
    assert list(eto.agents) == ["target"]
    assert eto.agents["target"].trains_on == {PairKind.EXPERT_TARGET: PairWeights(dpo=1.0, sft=0.0)}
    pairing = load_suite(FILE.with_name("smoke.yaml")).under("eto").pairing
    assert (pairing.expert_beaten, pairing.max_extra_turns) == ("swap", 5)


def test_the_variants_differ_from_coevolve_in_the_failure_agent_alone():
    full = RECIPES["coevolve"].agents
    for name, trained in (("positive_agent", {PairKind.EXPERT_FAILURE: FAILURES}), ("frozen_failure_agent", {})):
        agents = RECIPES[name].agents
        assert agents["target"] == full["target"]
        assert agents["failure"] == full["failure"].model_copy(update={"trains_on": trained})
