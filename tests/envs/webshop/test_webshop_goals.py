import itertools
import json
import random
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from coevolve.envs.webshop.catalogue_generator import ProductShares, generate
from coevolve.envs.webshop.goals import NO_LIMIT, FrozenGoal, check_human_goals, draw_prices_and_goals
from coevolve.envs.webshop.shop import Shop
from coevolve.errors import UserError

BOTH = pytest.mark.parametrize("human", [True, False])


def drawn(shop, seed, human):
    return draw_prices_and_goals(shop, random.Random(seed), human)[1]


@BOTH
def test_goals_name_what_their_product_has_and_the_seed_changes_limits_but_not_the_order(shop, human):
    found, again, other = drawn(shop, 1, human), drawn(shop, 1, human), drawn(shop, 2, human)
    assert len(found) > 60
    assert found == again
    assert [goal.asin for goal in found] == [goal.asin for goal in other]
    assert [goal.price_upper for goal in found] != [goal.price_upper for goal in other]
    for goal in found:
        assert FrozenGoal.from_json(FrozenGoal(number=0, price=1.0, goal=goal).to_json()).goal == goal
        product = shop.product(shop.number(goal.asin) or 0)
        assert (goal.name, goal.query, goal.category) == (product.title, product.query, product.category)
        assert set(goal.attributes) <= set(product.attributes)
        wanted = goal.options.values() if isinstance(goal.options, dict) else goal.options
        assert set(wanted) <= {value for values in product.options.values() for value in values}
        if human:  # as the generator words them
            assert goal.attributes and all(attribute in goal.instruction for attribute in goal.attributes)
            assert all(f", in {option}" in goal.instruction for option in goal.options)
    assert any(goal.options for goal in found)


#: Price, and the limits a goal can name at that price.
LIMITS = {
    "$0.01": {20, 30, 40},
    "$9.99": {20, 30, 40},
    "$10": {30, 40, 50},
    "$955": {970, 980, 990},
    "$965": {980, 990},
    "$975": {990},
    "$979.99": {990},
    "$980": {NO_LIMIT},
    "$2,000": {NO_LIMIT},
}


@BOTH
def test_a_limit_is_the_larger_of_two_out_of_the_next_four_tens(tmp_path, human):
    generate(
        tmp_path / "catalogue", len(LIMITS), seed=6, shares=ProductShares(human=1, synthetic=1, copies=0, edge_cases=0)
    )
    entries = json.loads((tmp_path / "catalogue" / "items_shuffle.json").read_bytes())
    expected = {entry["asin"]: LIMITS[price] for entry, price in zip(entries, LIMITS, strict=True)}
    priced = [{**entry, "pricing": price} for entry, price in zip(entries, LIMITS, strict=True)]
    (tmp_path / "catalogue" / "items_shuffle.json").write_text(json.dumps(priced))
    shop = Shop.build(tmp_path / "catalogue", tmp_path / "shop")
    found: dict[str, set[float]] = {asin: set() for asin in expected}
    for goal in itertools.chain(*(drawn(shop, seed, human) for seed in range(40))):
        found[goal.asin].add(goal.price_upper)
        text = f", and price lower than {goal.price_upper:.2f} dollars"
        assert goal.instruction.endswith(text) == (goal.price_upper != NO_LIMIT)
    assert found == expected


def test_synthetic_goals_without_attributes_are_refused(catalogue, tmp_path):
    folder = Path(shutil.copytree(catalogue, tmp_path / "catalogue"))
    attributes = json.loads((folder / "items_ins_v2.json").read_bytes())
    asin = next(asin for asin, known in attributes.items() if "instruction" in known)
    attributes[asin]["instruction_attributes"] = []
    (folder / "items_ins_v2.json").write_text(json.dumps(attributes))
    shop = Shop.build(folder, tmp_path / "shop")
    assert drawn(shop, 0, human=True)
    with pytest.raises(UserError, match=f"product {asin}: its synthetic instruction has no attributes"):
        drawn(shop, 0, human=False)


def test_human_goals_are_checked_against_upstreams_list(shop, upstream, tmp_path):
    ours, others = drawn(shop, 1, True), drawn(shop, 2, True)
    texts = [goal.instruction.split(", and price lower than")[0].replace("'", "") for goal in others]
    path = tmp_path / "human_goals.json"
    path.write_text(json.dumps(texts))
    assert check_human_goals(ours, path) == []
    texts[3], texts[8] = texts[8], texts[3]
    path.write_text(json.dumps(texts[:-1]))
    assert check_human_goals(ours, path) == [3, 8, len(ours) - 1]
    published = upstream / "webshop" / "human_goals.json"
    same = [replace(ours[0], instruction=text) for text in json.loads(published.read_bytes())]
    assert check_human_goals(same, published) == []
    assert len(check_human_goals(ours, published)) == len(same) == 12_087


@pytest.mark.parametrize("content", [None, "", "[1]", '["a"', "7"])
def test_a_list_of_goals_that_is_none_is_refused(shop, tmp_path, content):
    if content is not None:
        (tmp_path / "human_goals.json").write_text(content)
    with pytest.raises(UserError, match=r"human_goals\.json: is not a list of goal texts"):
        check_human_goals(drawn(shop, 1, True), tmp_path / "human_goals.json")
