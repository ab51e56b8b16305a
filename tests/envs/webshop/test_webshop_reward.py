import importlib.util
import json
import random
from dataclasses import replace
from pathlib import Path

import pytest
from envs.webshop.cup import cup, goal_of
from envs.webshop.recorded_tagger import TAGGER

from coevolve.envs.webshop.reward import THRESHOLD, colour_of, match_type, matches, reward, token_set_ratio
from coevolve.envs.webshop.tagger import MODEL, load_tagger
from coevolve.errors import UserError

RATIOS = json.loads((Path(__file__).parent / "recorded" / "ratios.json").read_text())
CUP = cup(title="Plum Cup", description="Fit for ovens.", bullets=("Round and", "Deep."))
GOAL = goal_of(CUP, options=("red", "small"))


def gained(product=CUP, goal=GOAL, price=9.5, chosen=()):
    return reward(product, goal, price, chosen, TAGGER)[0]


LETTERS = "abcdefghijklmnopqrstuvwxyz"
AT_THE_THRESHOLD = [
    (LETTERS[:17], LETTERS[:23], 85),  # 17 of 17 and 23 characters: the bound of the lengths is the threshold
    (LETTERS[:17], LETTERS[:22], 87),
    ("abc" + LETTERS[3:20], LETTERS[3:20] + "cab", 85),  # the ratio is the threshold, its bounds are above
    ("abc" + LETTERS[3:21], LETTERS[3:21] + "cab", 86),
]


@pytest.mark.parametrize(("one", "other", "ratio"), [*RATIOS, *AT_THE_THRESHOLD])
def test_ratios_equal_the_pinned_librarys_and_texts_at_the_threshold_do_not_match(one, other, ratio):
    assert token_set_ratio(one, other) == ratio
    assert matches(one, other) is (ratio > THRESHOLD) is (ratio > 85)


def test_bounds_decide_as_the_ratio_does():
    rng = random.Random(4)
    texts = [pair[side] for pair in RATIOS for side in (0, 1)]
    for _ in range(4000):
        words = rng.choice(texts).split()
        rng.shuffle(words)
        one, other = " ".join(words[: rng.randint(1, 8)]), rng.choice(texts)[: rng.randint(1, 60)]
        assert matches(one, other) is (token_set_ratio(one, other) > THRESHOLD), (one, other)
    assert token_set_ratio("", "") == token_set_ratio("!!!", "cup") == 0
    assert not matches("\u00e9", "\u00e9"), "the matcher drops Latin-1 beyond ASCII"


def test_parts_and_weights():
    total, details = reward(CUP, GOAL, 9.5, ("small",), TAGGER)
    assert total == 3 / 4
    assert details == {
        "r_type": 1.0,
        "r_att": 1.0,
        "w_att": 0.25,
        "query_match": True,
        "category_match": True,
        "title_score": 1.0,
        "r_price": True,
        "w_price": 0.25,
        "r_option": 0.5,
        "w_option": 0.5,
    }
    assert reward(CUP, replace(GOAL, options=()), 20.5, (), TAGGER) == (
        1 / 2,
        {name: 0.5 if name.startswith("w_") else value for name, value in details.items() if "option" not in name}
        | {"r_price": False},
    )
    for price, affordable in ((19.99, True), (20.0, True), (20.01, False)):
        assert reward(CUP, GOAL, price, (), TAGGER)[1]["r_price"] is affordable


@pytest.mark.parametrize("attribute", ["plum", "round and deep", "fit for ovens"])
def test_an_attribute_may_stand_in_title_bullets_or_description(attribute):
    goal = replace(GOAL, attributes=(attribute,), options=())
    assert gained(goal=goal) == 1.0
    assert gained(replace(CUP, title="Cup", bullets=(), description=""), goal) == 0.5


@pytest.mark.parametrize(
    ("option", "colour"),
    [
        ("stonewashed denim", "ash"),
        ("dark red", "dark"),
        ("one size", "one size"),
        (("color", "red"), "red"),
        (("red", "x"), "red"),
        (("color", "dark red"), ("color", "dark red")),
    ],
)
def test_the_first_colour_of_the_list_is_taken(option, colour):
    assert colour_of(option) == colour


def test_options_of_synthetic_goals_match_as_pairs():
    goal = replace(GOAL, options={"color": "red", "size": "large (pack of 2)"})
    assert gained(goal=goal, chosen=("rust red",)) == 3 / 4
    assert gained(goal=goal, chosen=("red", "size large (pack of 2)")) == 1.0
    assert gained(goal=goal, chosen=("red", "large (pack of 2)")) == 1.0
    assert gained(goal=goal, chosen=("red", "large")) == 1.0
    assert gained(goal=goal, chosen=("red", "small")) == 3 / 4


@pytest.mark.parametrize(
    ("title", "wanted", "factor", "score"),
    [
        ("plum cup", "plum cup", 1.0, 1.0),
        ("plum cup", "red cup tea pot lid", 0.5, 0.2),
        ("plum cup", "red cup tea pot", 1.0, 0.25),
        ("plum", "red cup tea pot lid jug keg box mug pan plum", 0.1, 1 / 11),
        ("plum cup", "red pot", 0.0, 0.0),
        ("plum cup", "the 5-in-1", 0.5, 0.2),
        ("plum", "plum red cup tea pot lid jug keg box mug", 0.5, 0.1),  # a tenth of the nouns is not below a tenth
    ],
)
def test_strangers_are_judged_by_the_nouns_of_their_titles(title, wanted, factor, score):
    near = match_type(replace(CUP, title=title, query="a", product_category="b"), replace(GOAL, name=wanted), TAGGER)
    assert near == {"r_type": factor, "title_score": score, "query_match": False, "category_match": False}


def test_relatives_are_forgiven_few_common_nouns_but_not_none():
    goal = replace(GOAL, name="red cup tea pot lid")
    levels = replace(goal, query="x", product_category="Kitchen \u203a Pots")
    relatives = (goal, replace(goal, query="x"), replace(goal, name="tea pot"), levels)
    assert [match_type(CUP, each, TAGGER)["r_type"] for each in relatives] == [1.0, 1.0, 0.0, 0.5]


def test_the_approximate_tagger_leaves_out_function_words_and_adjectives():
    title = "Washable cotton picnic blanket for the whole family, lightweight and foldable, 2 pack"
    assert load_tagger("approximate").nouns(title) == [
        *("cotton", "picnic", "blanket", "whole", "family", "lightweight", "pack")
    ]


def test_upstreams_tagger():
    if importlib.util.find_spec("spacy") is None or importlib.util.find_spec(MODEL) is None:
        with pytest.raises(UserError, match=f"spacy and its model {MODEL}"):
            load_tagger("spacy")
    else:
        assert load_tagger("spacy").exact
        assert "cup" in load_tagger("spacy").nouns("Plum cup for tea")
