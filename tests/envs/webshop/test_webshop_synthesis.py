"""Tasks from explored pages, against the sessions of a real shop."""

import json

import numpy as np
import pytest
from builders import task, turn
from envs.setups import prepared, section, source

from coevolve.agent_data import prompts
from coevolve.agent_data.explorer import observed_actions
from coevolve.envs.webshop import domain, synthesis
from coevolve.envs.webshop.catalogue import FILE_NAMES
from coevolve.envs.webshop.config import WebShopConfig
from coevolve.envs.webshop.pages import BACK, BUY, NEXT, PREVIOUS, SEPARATOR
from coevolve.envs.webshop.shop import Shop

START = task("webshop/0", env="webshop", data={"goal": 0})


@pytest.fixture(scope="module")
def setup(tmp_path_factory):
    """The small shop, whose pages are not cut."""
    config = section("webshop", "webshop-small", observation_length=10_000)
    return prepared(config, tmp_path_factory.mktemp("prepared"))


@pytest.fixture(scope="module")
def product(setup):
    """A product with options."""
    shop = Shop(setup.prepared / "shop")
    return next(each for each in map(shop.product, range(len(shop))) if each.options)


@pytest.mark.parametrize("tab", ["description", "features", "reviews"])
def test_a_visit_goes_back_from_a_sub_page_to_its_product(setup, product, tab):
    search, item = f"search[{product.title.lower()}]", f"click[{product.asin.lower()}]"
    option = f"click[{next(iter(product.options.values()))[0]}]"
    explored = (search, item, f"click[{tab}]", "click[< prev]", option)
    draft = synthesis.describe(setup, START, explored)
    assert draft is not None and draft.solution == (search, item, option)
    with domain.pool(setup, 1) as (env,):
        env.start(START)
        back = [env.step(action).observation for action in explored]
    assert back[1] == back[3] == back[4] != back[2]
    again = synthesis.describe(setup, START, (*explored[:4], "click[< prev]"))
    assert again is None, "from the product's page to the results"
    on_tab = synthesis.describe(setup, START, (search, item, f"click[{tab}]", option))
    assert on_tab is not None and on_tab.solution == (search, item), "a sub-page shows no option"
    new = synthesis.describe(setup, START, (search, item, f"click[{tab}]", search, item, option))
    assert new is not None and new.solution == (search, item, option)


def explored(env, *actions):
    """The turns of an episode."""
    env.start(START)
    return [turn(action, env.step(action).observation) for action in actions]


def paths(product):
    """Actions that lead to each kind of page: start, results (three), product (two), sub-page, done."""
    search, item = f"search[{product.title.lower()}]", f"click[{product.asin.lower()}]"
    option = f"click[{next(iter(product.options.values()))[0]}]"
    lists = [(), (search,), (search, f"click[{NEXT}]"), (search, item, f"click[{PREVIOUS}]")]
    return [
        *lists,
        (search, item),
        (search, item, option),
        (search, item, "click[features]"),
        (search, item, f"click[{BUY}]"),
    ]


def test_a_click_is_executed_on_what_the_shop_links_and_on_nothing_else(setup, product):
    """Not on titles, prices, ratings or names of options; the purchase ends a task and is not counted."""
    kinds = set()
    with domain.pool(setup, 1) as (env,):
        for path in paths(product):
            turns = explored(env, *path)
            page = env._session.page
            kinds.add(page.kind)
            texts = {piece.strip().lower() for piece in page.text.split(SEPARATOR)}
            tried = texts | {BACK, PREVIOUS, NEXT, BUY, *page.clickables, product.title.lower(), "features"}
            count = len(synthesis.executed(setup, turns))
            clicks = {text: turn(f"click[{text}]") for text in tried}
            executed = {text for text in tried if len(synthesis.executed(setup, [*turns, clicks[text]])) > count}
            assert executed == page.clickables.keys() - {BUY, "search"}, path
    assert kinds == {"start", "results", "item", "sub_page", "done"}


def test_exploration_proposes_options_of_the_product_and_no_other_text_of_its_page(setup, product):
    values = {value for group in product.options.values() for value in group}
    rng = np.random.default_rng(0)
    with domain.pool(setup, 1) as (env,):
        turns = explored(env, f"search[{product.title.lower()}]", f"click[{product.asin.lower()}]")
    proposed = {synthesis.propose(setup, START, turns, (), rng) for _ in range(200)}
    assert proposed == {f"click[{value}]" for value in values}


def test_exploration_of_a_product_without_options_looks_at_its_sub_pages_and_stays(setup):
    shop, rng = Shop(setup.prepared / "shop"), np.random.default_rng(0)
    plain = next(each for each in map(shop.product, range(len(shop))) if not each.options)
    path = (f"search[{plain.title.lower()}]", f"click[{plain.asin.lower()}]")
    with domain.pool(setup, 1) as (env,):
        turns = explored(env, *path)
        proposed = {synthesis.propose(setup, START, turns, (), rng) for _ in range(50)}
        assert proposed == {"click[description]", "click[features]", "click[reviews]"}
        turns = explored(env, *path, "click[features]")
    assert synthesis.propose(setup, START, turns, (), rng) == "click[< prev]"
    draft = synthesis.describe(setup, START, synthesis.executed(setup, turns))
    assert draft is not None and draft.solution == path


def test_every_executed_action_has_the_observation_of_its_own_turn(setup, product):
    """The shop executes actions in lower case; the product is visited twice."""
    search, item = f"search[{product.title}]", f"click[{product.asin}]"
    with domain.pool(setup, 1) as (env,):
        turns = explored(env, search, item, "click[< Prev]", item, "click[nothing on this page]", None, search)
    marked = [turn.model_copy(update={"observation": f"#{n} {turn.observation}"}) for n, turn in enumerate(turns)]
    observed = observed_actions(setup, synthesis, marked)
    assert [action for action, _ in observed] == [
        search.lower(), item.lower(), "click[< prev]", item.lower(), search.lower(),
    ]  # fmt: skip
    assert [text for _, text in observed] == [marked[index].observation for index in (0, 1, 2, 3, 6)]
    (message,) = prompts.abstraction_prompt(observed)
    visits = message.content.split(f"\n{item.lower()}\n-> ")[1:]
    assert [visit[:2] for visit in visits] == ["#1", "#3"]
    assert f"\n{search.lower()}\n-> #6 " in visits[1]


def test_a_product_without_attributes_is_no_task(setup, catalogue, tmp_path):
    """The reward divides by their number."""
    paths = {name: catalogue / file for name, file in FILE_NAMES.items()}
    attributes, asked = (json.loads(paths[name].read_text()) for name in ("attributes", "instructions"))
    bare = {asin: listed if asin in asked else {"attributes": []} for asin, listed in attributes.items()}
    paths["attributes"] = tmp_path / "attributes.json"
    paths["attributes"].write_text(json.dumps(bare))
    sources = {name: source(path) for name, path in paths.items()}
    config = WebShopConfig.model_validate(dict(setup.config) | {"catalogue": sources, "goals": "human"})
    of_bare = prepared(config, tmp_path)
    shop = Shop(tmp_path / "shop")
    for product in map(shop.product, range(len(shop))):
        draft = synthesis.describe(of_bare, START, ("search[cup]", f"click[{product.asin.lower()}]"))
        assert (draft is not None) == bool(product.attributes)
