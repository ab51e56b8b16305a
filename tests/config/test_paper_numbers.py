"""The paper's numbers, typed from its text, against the suite `paper` and `claims.yaml` as they are loaded.

No number here is read from a configuration. Places are those of arXiv 2511.22254; `choice` is the kit's reading where
the paper is silent, `quirk` what upstream's code does.
"""

import functools
from statistics import fmean

import pytest

from coevolve.config.loading import load_suite
from coevolve.config.suite import for_method, quirks
from coevolve.report import claims as claims_file
from coevolve.train.settings import per_iteration

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
    ("gpt4", "Table 1, In-context, GPT-4", 63.2, 42.9, 38.1, 38.5, 45.7),
    ("gpt35", "Table 1, In-context, GPT-3.5-Turbo", 62.4, 7.9, 10.5, 37.8, 29.7),
    ("sft", "Table 1, Fine-tuning, Llama-2-7B-Chat + SFT", 59.2, 47.3, 41.9, 30.8, 44.8),
    ("ppo", "Table 1, Fine-tuning, Llama-2-7B-Chat + PPO", 64.2, 59.4, 51.7, 52.4, 56.9),
    ("rft", "Table 1, Fine-tuning, Llama-2-7B-Chat + RFT", 61.3, 71.6, 54.3, 35.6, 55.7),
    ("eto", "Table 1, Fine-tuning, Llama-2-7B-Chat + ETO", 63.0, 65.6, 55.5, 51.7, 59.0),
    ("coevolve", "Table 1, Fine-tuning, Llama-2-7B-Chat + Ours", 68.5, 72.0, 66.3, 49.6, 64.1),
)
COLUMNS = ("webshop", "sciworld_seen", "sciworld_unseen", "intercode_sql", "mean")
#: Better method, worse method, column, stated difference in points, rival (choice) and place, by statement.
DIFFERENCES = {
    "mean_gain": ("coevolve", "eto", "mean", 5.1, 0.0, "section 5.2.2"),
    "webshop_gain": ("coevolve", "eto", "webshop", 5.5, 0.0, "section 5.2.2"),
    "sciworld_seen_gain": ("coevolve", "eto", "sciworld_seen", 6.4, 0.0, "section 5.2.2"),
    "sciworld_unseen_gain": ("coevolve", "eto", "sciworld_unseen", 10.8, 0.0, "section 5.2.2"),
    "intercode_sql_on_par": ("coevolve", "eto", "intercode_sql", 0.0, 5.1, "section 5.2.2"),
    "positive_agent_like_eto": ("positive_agent", "eto", "webshop", -0.24, 5.5, "section 5.3"),
    "failure_agent_gain": ("coevolve", "positive_agent", "webshop", 5.74, 0.0, "section 5.3"),
}
#: Method, environment, outcome, share of rollouts in per cent, its tolerance and its rival (choice), by statement.
SHARES = {
    "sparse_sql": ("eto", "intercode_sql", "extreme", 95.0, 5.0, None),
    "eto_success": ("eto", "webshop", "success", 51.4, None, 39.6),
    "eto_failure": ("eto", "webshop", "failure", 25.9, None, 35.4),
    "eto_hard_negative": ("eto", "webshop", "hard_negative", 22.7, None, 25.0),
    "ours_success": ("coevolve", "webshop", "success", 39.6, None, 51.4),
    "ours_failure": ("coevolve", "webshop", "failure", 35.4, None, 25.9),
    "ours_hard_negative": ("coevolve", "webshop", "hard_negative", 25.0, None, 22.7),
    "few_near_successes": ("coevolve", "webshop", "hard_negative", 0.5, 0.5, None),
}
#: Later version: points by which ours has more failures, and more hard negatives, than ETO.
MORE = {"webshop": (9.5, 2.3), "sciworld": (16.7, 8.7), "intercode_sql": (9.0, 4.3)}
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
    assert claims.rows[name].place == place
    assert fmean(cells[:4]) == pytest.approx(cells[4], abs=0.0501), "the printed mean"


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
    assert claims.hard_negative == [0.6, 0.7, 0.8]  # later version
    assert claims.explored == {"webshop": 1823, "sciworld": 1483, "intercode_sql": 1500}  # lists of ETO and IPR


def stated(claims, kind, *keys):
    """The values of the statements of a kind, by statement."""
    of_kind = {name: statement for name, statement in claims.statements.items() if statement.kind == kind}
    return {name: tuple(getattr(statement, key) for key in keys) for name, statement in of_kind.items()}


def test_stated_differences(claims):
    """The text says "on par" of -2.1 points; each other difference is that of the cells."""
    found = stated(claims, "difference", "better", "than", "column", "value", "rival", "place")
    assert found == DIFFERENCES
    for name, (better, than, column, points, *_) in found.items():
        if name != "intercode_sql_on_par":
            assert claims.value(better, column) - claims.value(than, column) == pytest.approx(points, abs=1e-9)
    assert set(stated(claims, "difference", "tolerance", "unverified").values()) == {(None, False)}


def test_stated_shares(claims):
    keys = ("method", "env", "outcome", "value", "tolerance", "rival")
    assert stated(claims, "share", *keys) == SHARES
    for name in ("eto", "ours"):
        assert sum(SHARES[f"{name}_{outcome}"][3] for outcome in ("success", "failure", "hard_negative")) == 100.0
    judged = stated(claims, "share", "threshold", "unverified")
    assert judged == dict.fromkeys(SHARES, (0.6, True)) | {
        "sparse_sql": (0.6, False), "few_near_successes": (0.8, True),
    }  # fmt: skip
    assert stated(claims, "share_difference", "better", "than", "env", "outcome", "value", "threshold") == {
        f"more_{words}_{env}": ("coevolve", "eto", env, outcome, MORE[env][number], 0.6)
        for number, (words, outcome) in enumerate((("negatives", "failure"), ("hard_negatives", "hard_negative")))
        for env in MORE
    }


def test_orders(claims):
    """Section 5.2.2 and Table 1: which method is above which, and where; the largest gain is among all four."""
    assert stated(claims, "largest_gain", "better", "than", "column", "among") == {
        "largest_gain_unseen": (
            "coevolve", "eto", "sciworld_unseen", ["webshop", "sciworld_seen", "intercode_sql"],
        ),
    }  # fmt: skip
    assert stated(claims, "ordering", "better", "than", "column", "iteration", "model") == {
        "mean_better": ("coevolve", "eto", "mean", None, None),
        "webshop_better": ("coevolve", "eto", "webshop", None, None),
        "sciworld_seen_better": ("coevolve", "eto", "sciworld_seen", None, None),
        "sciworld_unseen_better": ("coevolve", "eto", "sciworld_unseen", None, None),
        "sft_worse_than_eto": ("eto", "sft", "mean", None, None),
        "fine_tuning_over_in_context": ("sft", "in_context", "mean", None, None),
        "better_than_sft": ("coevolve", "sft", "mean", None, None),
        "better_than_ppo": ("coevolve", "ppo", "mean", None, None),
        "better_than_rft": ("coevolve", "rft", "mean", None, None),
        "fewer_iterations": ("coevolve", "eto", "mean", 2, None),
        "failure_agent_over_positive_agent": ("coevolve", "positive_agent", "webshop", None, None),
        "better_llama2_13b": ("coevolve", "eto", "mean", None, "Llama-2-13B-Chat"),
        "better_qwen3_4b": ("coevolve", "eto", "mean", None, "Qwen3-4B"),
    }
