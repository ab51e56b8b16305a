"""The paper's numbers, typed from its text, against the suite `paper` and `claims.yaml` as they are loaded.

No number here is read from a configuration. Places are those of arXiv 2511.22254; `choice` is the kit's reading where
the paper is silent, `quirk` what upstream's code does.
"""

import functools

import pytest

from coevolve.config.derived.methods import for_method
from coevolve.config.derived.protocol import quirks
from coevolve.config.derived.training import per_iteration
from coevolve.config.loading import load_suite
from coevolve.report import claims as claims_file

#: Key of the suite, value, place.
NUMBERS = (
    ("sft.epochs", 3, "appendix B"),
    ("sft.batch_size", 48, "appendix B"),
    ("sft.learning_rate", 1e-5, "appendix B"),
    ("sft.warmup", 0.03, "appendix B: 3 % linear warm-up"),
    ("sft.schedule", "cosine", "appendix B"),
    ("sft.weight_decay", 0.0, "choice: upstream's scripts"),
    ("sft.max_grad_norm", 1.0, "choice: upstream's scripts"),
    ("dpo.epochs", 3, "appendix B"),
    ("dpo.batch_size", 32, "appendix B"),
    ("dpo.learning_rate", [1e-6, 5e-7], "appendix B: 1e-6 to 5e-7"),
    ("dpo.beta", [0.1, 0.5], "appendix B: 0.1 to 0.5"),
    ("dpo.warmup", 0.03, "choice: as in supervised fine-tuning"),
    ("dpo.schedule", "cosine", "choice: as in supervised fine-tuning"),
    ("dpo.weight_decay", 0.0, "choice: as in supervised fine-tuning"),
    ("dpo.reference", "previous", "choice: the policy the iteration starts from (Song et al. 2024)"),
    ("dpo.objective.name", "dpo", "eq. 7"),
    ("dpo.nll", "sum", "eq. 9: log pi(e) of the whole chosen side"),
    ("rollout.k", 1, "appendix B: each training instance once"),
    ("rollout.temperature", None, "quirk 1: that of the protocol"),
    ("rollout.top_p", 1.0, "choice: no nucleus sampling"),
    ("quirks.exploration_temperature", 0.0, "quirk 1: upstream explores greedily"),
    ("quirks.overlap", "keep", "quirk 3"),
    ("quirks.success", "any_ending", "quirk 6"),
    ("quirks.sql_reward", "raw", "quirk 10"),
    ("quirks.env_error", "zero", "quirk 12"),
    ("evaluation.samples", 1, "choice: one episode per instruction"),
    ("evaluation.temperature", 0.0, "choice: greedy, as upstream"),
    ("selection.min_reward", 1.0, "choice: successes only, r = 1"),
    ("selection.with_experts", True, "choice: Song et al. 2024, RFT"),
    ("pairing.hard_negative", None, "eq. 6: failures of any reward"),
    ("pairing.within", False, "eq. 6: one failure of each agent"),
    ("pairing.expert_beaten", "drop", "choice: a chosen side has the higher reward"),
    ("pairing.max_extra_turns", None, "choice: no cut"),
    ("iterations", {"webshop": 3, "sciworld": 3, "intercode_sql": 5}, "section 5.1"),
    ("models.llama2-7b-chat.hub", "meta-llama/Llama-2-7b-chat-hf", "section 5.1"),
    ("models.llama2-7b-chat.lora", None, "choice: full fine-tuning, appendix B names no adapters"),
    ("models.llama2-7b-chat.context", 4096, "Touvron et al. 2023"),
    ("envs.webshop.step_limit", 10, "Song et al. 2024, configuration"),
    ("envs.intercode_sql.step_limit", 10, "Xiong et al. 2024, configuration"),
    ("envs.intercode_sql.reward", "continuous", "appendix C.3: failures at 0.70 to 0.77"),
    ("envs.intercode_sql.experts.min_reward", 1.0, "section 5.1"),
    ("envs.webshop.splits", ["test"], "appendix A"),
    ("envs.sciworld.splits", ["seen", "unseen"], "appendix A"),
    ("envs.webshop.tasks.explore_sft", True, "section 4.2: the training instructions are explored"),
    ("envs.sciworld.tasks.explore_sft", True, "section 4.2: the training instructions are explored"),
    ("envs.intercode_sql.tasks.explore_sft", True, "section 4.2: the training instructions are explored"),
    ("report.confidence", 0.95, "choice: the usual level"),
)
#: Table 1: row, place, WebShop, ScienceWorld seen and unseen, InterCodeSQL, mean.
TABLE_1 = (
    ("gpt4", "GPT-4", 63.2, 42.9, 38.1, 38.5, 45.7),
    ("gpt35", "GPT-3.5-Turbo", 62.4, 7.9, 10.5, 37.8, 29.7),
    ("sft", "Llama-2-7B-Chat + SFT", 59.2, 47.3, 41.9, 30.8, 44.8),
    ("ppo", "Llama-2-7B-Chat + PPO", 64.2, 59.4, 51.7, 52.4, 56.9),
    ("rft", "Llama-2-7B-Chat + RFT", 61.3, 71.6, 54.3, 35.6, 55.7),
    ("eto", "Llama-2-7B-Chat + ETO", 63.0, 65.6, 55.5, 51.7, 59.0),
    ("coevolve", "Llama-2-7B-Chat + Ours", 68.5, 72.0, 66.3, 49.6, 64.1),
)
COLUMNS = ("webshop", "sciworld_seen", "sciworld_unseen", "intercode_sql", "mean")
#: Statement, better method, worse method, column, value and place of a stated difference in points.
DIFFERENCES = (
    ("mean_gain", "coevolve", "eto", "mean", 5.1, "section 5.2.2"),
    ("webshop_gain", "coevolve", "eto", "webshop", 5.5, "section 5.2.2"),
    ("sciworld_seen_gain", "coevolve", "eto", "sciworld_seen", 6.4, "section 5.2.2"),
    ("sciworld_unseen_gain", "coevolve", "eto", "sciworld_unseen", 10.8, "section 5.2.2"),
    ("intercode_sql_on_par", "coevolve", "eto", "intercode_sql", 0.0, "section 5.2.2"),
    ("positive_agent_like_eto", "positive_agent", "eto", "webshop", 62.76 - 63.0, "section 5.3"),
    ("failure_agent_gain", "coevolve", "positive_agent", "webshop", 68.5 - 62.76, "section 5.3"),
)
#: Statement and its share of rollouts in per cent; tolerance in per cent.
SHARES = (
    ("sparse_sql", 95.0, 5.0),
    ("eto_success", 51.4, 3.0),
    ("eto_failure", 25.9, 3.0),
    ("eto_hard_negative", 22.7, 3.0),
    ("ours_success", 39.6, 3.0),
    ("ours_failure", 35.4, 3.0),
    ("ours_hard_negative", 25.0, 3.0),
)
#: Section 4.3: weights (lambda_DPO, lambda_SFT) of the target's pair kinds; eq. 7: of the failure agent's.
WEIGHTS = {
    "target": {"expert_target": (0.5, 0.5), "expert_failure": (0.5, 0.5), "failure_failure": (1.0, 0.0)},
    "failure": {"failure_failure": (1.0, 0.0)},
}


@pytest.fixture(scope="module")
def suite(root):
    return load_suite(root / "configs/suites/paper.yaml")


@pytest.fixture(scope="module")
def claims(root):
    return claims_file.load(root / "configs/claims.yaml")


def entry(section, key):
    return section[key] if isinstance(section, dict) else getattr(section, key)


def value(suite, key):
    """The value of a dotted key; sections may be models or dictionaries."""
    if key.startswith("quirks."):
        return getattr(quirks(suite), key.removeprefix("quirks."))
    return functools.reduce(entry, key.split("."), suite)


@pytest.mark.parametrize(("key", "expected", "place"), NUMBERS, ids=[key for key, _, _ in NUMBERS])
def test_the_suite_has_the_papers_number(suite, key, expected, place):
    assert value(suite, key) == expected, place
    if not key.startswith(("iterations", "models", "envs", "quirks")):
        for method in ("sft", "eto", "coevolve"):
            assert value(for_method(suite, method), key) == expected, f"{method}: {place}"


def test_protocol_seeds_and_methods_are_those_of_table_1(suite):
    fine_tuned = ["sft", "ppo", "rft", "eto", "coevolve"]
    assert (suite.protocol, suite.seeds, suite.methods) == ("paper", [0], fine_tuned)
    defaults = [name for name, ablation in suite.ablations.items() if ablation.default]
    assert (list(suite.models), defaults) == (["llama2-7b-chat"], ["positive_agent"])
    assert suite.ablations["main_rows"].methods == ["sft", "eto", "coevolve"]
    assert set(load_suite("in_context").methods) == {*fine_tuned, "gpt4", "gpt35"}


@pytest.mark.parametrize(("iteration", "rate", "beta"), [(1, 1e-6, 0.1), (2, 5e-7, 0.5), (5, 5e-7, 0.5)])
def test_rate_and_beta_of_each_iteration(suite, iteration, rate, beta):
    """Song et al. 2024, script: beta 0.1 at the higher rate first; both ends of the paper's ranges (appendix B)."""
    dpo = for_method(suite, "coevolve").dpo
    assert (per_iteration(dpo.learning_rate, iteration), per_iteration(dpo.beta, iteration)) == (rate, beta)


def test_the_method_is_that_of_section_4(suite):
    agents = suite.recipes["coevolve"].agents
    found = {
        agent: {kind.value: (weights.dpo, weights.sft) for kind, weights in recipe.trains_on.items()}
        for agent, recipe in agents.items()
    }
    assert found == WEIGHTS
    assert {agent: (recipe.base, recipe.explores) for agent, recipe in agents.items()} == {
        "target": ("target", True),
        "failure": ("failure", True),
    }
    (eto,) = suite.recipes["eto"].agents["target"].trains_on.items()
    assert (eto[0].value, eto[1].dpo, eto[1].sft) == ("expert_target", 1.0, 0.0)
    for method in ("eto", "coevolve"):
        assert suite.recipes[method].iterations is None and suite.recipes[method].settings == {}


@pytest.mark.parametrize("row", TABLE_1, ids=[row[0] for row in TABLE_1])
def test_cells_are_those_of_table_1(claims, row):
    name, place, *cells = row
    assert claims.rows[name].cells == dict(zip(COLUMNS, cells, strict=True))
    assert claims.rows[name].place.endswith(place)


def test_the_table_has_no_other_row_or_column(claims):
    assert list(claims.rows) == [row[0] for row in TABLE_1]
    places = [(column.env, column.split, column.tasks) for column in claims.columns.values()]
    assert tuple(claims.columns) == COLUMNS
    assert places == [  # appendix A: sizes of the evaluation sets
        ("webshop", "test", 200),
        ("sciworld", "seen", 194),
        ("sciworld", "unseen", 211),
        ("intercode_sql", "test", 200),
        (None, None, None),
    ]
    assert claims.ablations["positive_agent"].cells == {"webshop": 62.76}  # section 5.3


def test_settings_of_the_claims(claims):
    assert (claims.model, claims.protocol) == ("Llama-2-7B-Chat", "paper")
    # choice: 40 points of deviation over 200 instructions have a standard error of 2.8 points.
    assert claims.tolerance == 3.0
    assert claims.hard_negative == [0.6, 0.7, 0.8]  # later version
    assert claims.explored == {"webshop": 1823, "sciworld": 1483, "intercode_sql": 1500}  # lists of ETO and IPR


@pytest.mark.parametrize("stated", DIFFERENCES, ids=[stated[0] for stated in DIFFERENCES])
def test_stated_differences(claims, stated):
    name, better, than, column, points, place = stated
    found = claims.statements[name]
    assert (found.better, found.than, found.column, found.place) == (better, than, column, place)
    assert found.value == pytest.approx(points) and found.tolerance == 3.0


@pytest.mark.parametrize(("name", "share", "tolerance"), SHARES)
def test_stated_shares(claims, name, share, tolerance):
    found = claims.statements[name]
    assert (found.value, found.tolerance, found.threshold) == (share, tolerance, 0.6)
    assert found.unverified == (name != "sparse_sql")


def test_the_largest_gain_is_on_unseen_scienceworld_among_all_four(claims):
    found = claims.statements["largest_gain_unseen"]
    assert (found.better, found.than, found.column) == ("coevolve", "eto", "sciworld_unseen")
    assert found.among == ["webshop", "sciworld_seen", "intercode_sql"]


def test_orders(claims):
    """Section 5.2.2 and Table 1: which method is above which, and where."""
    found = {
        name: (claim.better, claim.than, claim.column, claim.iteration)
        for name, claim in claims.statements.items()
        if claim.kind == "ordering" and not claim.unverified
    }
    assert found == {
        "mean_better": ("coevolve", "eto", "mean", None),
        "webshop_better": ("coevolve", "eto", "webshop", None),
        "sciworld_seen_better": ("coevolve", "eto", "sciworld_seen", None),
        "sciworld_unseen_better": ("coevolve", "eto", "sciworld_unseen", None),
        "sft_worse_than_eto": ("eto", "sft", "mean", None),
        "fine_tuning_over_in_context": ("sft", "in_context", "mean", None),
        "better_than_sft": ("coevolve", "sft", "mean", None),
        "better_than_ppo": ("coevolve", "ppo", "mean", None),
        "better_than_rft": ("coevolve", "rft", "mean", None),
        "fewer_iterations": ("coevolve", "eto", "mean", 2),
        "failure_agent_over_positive_agent": ("coevolve", "positive_agent", "webshop", None),
    }
