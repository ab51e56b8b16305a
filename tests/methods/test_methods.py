from pathlib import Path

import pytest

from coevolve.config.loading import load_suite
from coevolve.config.suite import for_method
from coevolve.methods.pairing import KIND_AGENTS
from coevolve.methods.settings import PairWeights
from coevolve.records.pairs import PairKind

FILE = Path(__file__).parents[2] / "configs/parts/methods.yaml"
RECIPES = load_suite("smoke").recipes
EXPERT, FAILURES = PairWeights(dpo=0.5, sft=0.5), PairWeights(dpo=1.0, sft=0.0)


@pytest.mark.parametrize("name", RECIPES)
def test_every_pair_kind_a_recipe_trains_on_has_its_explorers(name):
    recipe = RECIPES[name]
    explorers = {agent for agent, spec in recipe.agents.items() if spec.explores} | {"expert"}
    for agent in recipe.agents.values():
        for kind in agent.trains_on:
            assert explorers.issuperset(KIND_AGENTS.get(kind, {"expert", "target"}))
    assert "target" in recipe.agents
    assert recipe.source and recipe.label
    busy = recipe.learns != "preference" or any(a.explores or a.trains_on for a in recipe.agents.values())
    assert busy == (recipe.iterations != 0)


@pytest.mark.parametrize("suite", ["smoke", "paper"])
@pytest.mark.parametrize("method", ["eto", "coevolve", "ipr", "rft", "positive_agent", "second_target"])
def test_rows_differ_in_the_method_alone(suite, method):
    """Cut, swap, beta, learning rate, warm-up and schedule are those of the suite."""
    whole = load_suite(suite)
    row = for_method(whole, method)
    assert (row.pairing, row.rollout, row.sft) == (whole.pairing, whole.rollout, whole.sft)
    method_of_ipr = {"reference"} if method == "ipr" else set()
    changed = {name for name, value in row.dpo if value != getattr(whole.dpo, name)}
    assert changed == method_of_ipr


def test_upstreams_settings_are_rows_of_their_own():
    suite = load_suite("paper")
    eto, ipr = for_method(suite, "eto_upstream"), for_method(suite, "ipr_upstream")
    assert list(RECIPES["eto"].agents) == ["target"]
    assert RECIPES["eto"].agents["target"].trains_on == {PairKind.EXPERT_TARGET: PairWeights(dpo=1.0, sft=0.0)}
    assert (eto.pairing.expert_beaten, eto.pairing.max_extra_turns) == ("swap", 5)
    assert (eto.dpo.warmup, eto.dpo.schedule, eto.dpo.beta) == (0.1, "constant", [0.1, 0.5])
    assert (ipr.pairing.expert_beaten, ipr.pairing.max_extra_turns) == ("swap", None)
    assert (ipr.dpo.warmup, ipr.dpo.schedule, ipr.dpo.beta, ipr.dpo.batch_size) == (0.1, "constant", [0.1], 48)
    assert (ipr.dpo.nll, ipr.dpo.reference) == ("sum", "base")


def test_the_variants_differ_from_coevolve_in_the_failure_agent_alone():
    full = RECIPES["coevolve"].agents
    for name, trained in (("positive_agent", {PairKind.EXPERT_FAILURE: FAILURES}), ("frozen_failure_agent", {})):
        agents = RECIPES[name].agents
        assert agents["target"] == full["target"]
        assert agents["failure"] == full["failure"].model_copy(update={"trains_on": trained})
    expert_pairs = {PairKind.EXPERT_TARGET: full["target"].trains_on[PairKind.EXPERT_TARGET]}
    assert {name: agent.trains_on for name, agent in RECIPES["eto_eq9"].agents.items()} == {"target": expert_pairs}
    matched = RECIPES["eto_eq9_matched"]
    assert matched.agents == RECIPES["eto_eq9"].agents and matched.settings["dpo"]["steps_like"] == "coevolve"


@pytest.mark.parametrize(
    ("row", "than", "section", "changed"),
    [
        ("eto_again", "eto", "dpo", {}),
        ("beta_10", "coevolve", "dpo", {"beta": [0.1]}),
        ("without_conflicts", "coevolve", "pairing", {"drop_conflicts": True}),
        ("failure_agent_first", "coevolve", "dpo", {}),
    ],
)
def test_the_rows_that_tell_explanations_apart_differ_in_one_setting(row, than, section, changed):
    suite = load_suite("paper")
    one, other = for_method(suite, row), for_method(suite, than)
    assert getattr(one, section) == getattr(other, section).model_copy(update=changed)
    assert RECIPES[row].agents == RECIPES[than].agents
    assert (RECIPES[row].learns == "failure_agent_first") == (row == "failure_agent_first")


@pytest.mark.parametrize("name", ["science", "science_methods"])
def test_the_suites_of_the_science_can_decide_between_trainings(name):
    """Trainings that share nothing but the tasks, enough of them, and a compute-matched control of the right size."""
    suite = load_suite(name)
    assert len(suite.seeds) == 8 and all(model.pretrain.per_seed for model in suite.models.values())
    assert {suite.iterations[env] for env in suite.envs} == {3}
    assert {"sft", "sft_all", "eto", "eto_again", "coevolve"} <= set(suite.methods)
    for matched in ("eto_matched", "eto_eq9_matched"):
        assert for_method(suite, matched).rollout == suite.rollout.model_copy(update={"k": 2 * suite.rollout.k})
    if name == "science_methods":  # online rows play as much as RFT with ten samples
        samples = for_method(suite, "rft_10").rollout.k
        assert suite.ppo.epochs >= samples and suite.grpo.epochs * suite.grpo.group >= samples
