"""Where actions lead, in a shop of cups; whole recorded episodes are in `test_webshop_conformance.py`."""

import random
import re
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from envs.webshop.cup import entry, goal_of, write_catalogue
from hypothesis import given, settings
from hypothesis import strategies as st

from coevolve.envs.webshop.goals import draw_prices_and_goals
from coevolve.envs.webshop.session import ShopSession, split_action
from coevolve.envs.webshop.shop import Shop
from coevolve.envs.webshop.tagger import load_tagger

FILLER, EPISODES = 12, 24
OPTIONS = {
    "Color": [{"value": "Red"}, {"value": "Blue"}],
    "Trick": [{"value": "< Prev"}, {"value": "Description"}, {"value": "Search"}, {"value": "Buy Now"}],
}


@pytest.fixture(scope="module")
def cups(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cups")
    entries = [
        entry("B000000001", "Walnut cup", customization_options=OPTIONS, query="Walnut cups", category="wood"),
        entry("b000000002", "Maple cup"),
        entry("FEATURES", "Birch cup"),
        entry("B0\ud800", "Cedar cup"),
        entry("B000000004", "Elder cup \ud800"),
        *(entry(f"B0000001{i:02}") for i in range(FILLER)),
    ]
    write_catalogue(folder, entries, {"B000000001": {"attributes": ["round"]}})
    return Shop.build(folder, folder / "shop")


@pytest.fixture
def session(cups):
    walnut = cups.product(cups.number("B000000001"))
    goal = goal_of(walnut, attributes=("round",), options=("red",))
    return ShopSession(cups, cups.prices(random.Random(0)), load_tagger("approximate"), goal, random.Random(0))


def after(session, *actions):
    for action in actions:
        session.step(action)
    return session.page.text


@pytest.mark.parametrize(
    "action",
    [
        *("", "buy", "search", "search[]", "click[]", "click[search]", "Search[walnut]", " search[walnut]"),
        *("search [walnut]", "search[walnut", "think[x]\nsearch[walnut]", "search[walnut\n]", "a[b]", "[walnut]"),
        *("search[a[b]]", "x search[walnut]", "search\n[walnut]", "click[b000000001]", "click[buy now]"),
    ],
)
def test_what_is_no_action_changes_nothing(session, action):
    start = session.page
    outcome = session.step(action)
    assert outcome.page is start is session.page
    assert (outcome.reward, outcome.done, outcome.details) == (0.0, False, None)


def test_pages_of_results_have_no_end_and_a_product_leads_back_to_its_own(session):
    first = after(session, "search[plum]")
    second = after(session, "click[next >]")
    assert f"Page 1 (Total results: {FILLER})" in first
    assert "Page 2" in second and "B000000111" in second and "B000000109" not in second
    assert after(session, "click[b000000110]", "click[< prev]") == second
    beyond = after(session, "click[Next >]", "click[next >]")
    assert beyond.endswith(f"Page 4 (Total results: {FILLER}) [SEP] < Prev [SEP] Next >")
    assert after(session, "click[< prev]", "click[< prev]", "click[< prev]") == first
    assert after(session, "click[< prev]") == first


def test_options_are_forgotten_with_their_product_and_the_value_chosen_last_counts(session):
    walnut = after(session, "search[walnut]", "click[b000000001]")
    assert after(session, "click[red]", "click[features]", "click[< prev]") == walnut
    after(session, "click[< prev]", "click[b000000001]")
    assert "options [SEP] {} [SEP]" in after(session, "click[buy now]")
    after(session, "search[walnut]", "click[b000000001]", "click[red]", "click[blue]", "click[red]", "click[blue]")
    outcome = session.step("click[buy now]")
    assert 'options [SEP] {"color": "blue"} [SEP]' in outcome.page.text
    assert outcome.reward == 2 / 3


def test_options_that_are_called_like_buttons_are_buttons_and_after_the_purchase_one_can_only_search(
    session,
):
    results = after(session, "search[walnut]")
    item = after(session, "click[b000000001]")
    assert "Reviews [SEP] Buy Now" in item  # no attributes
    assert after(session, "click[search]") == item
    assert after(session, "click[description]").endswith("< Prev [SEP] A cup.")
    assert after(session, "click[< prev]", "click[< prev]") == results
    after(session, "click[b000000001]", "click[red]")
    outcome = session.step("click[buy now]")
    assert (outcome.reward, outcome.done, dict(outcome.page.clickables)) == (1.0, True, {})
    assert session.step("click[buy now]").page is outcome.page
    again = session.step("search[walnut]")
    assert (again.page.text, again.reward, again.done) == (results, 0.0, False)


@pytest.mark.parametrize(
    ("word", "leads_to"), [("item_page", "Page 1"), ("search_results", "Page 0"), ("item_sub", "Walnut")]
)
def test_a_search_for_the_name_of_a_page_misleads_upstream(session, word, leads_to):
    """Upstream tells pages apart by a text search in the address, which has the search's words in it."""
    text = after(session, f"search[walnut {word}]", "click[b000000001]", "click[features]", "click[< prev]")
    assert leads_to in text.split(" [SEP] ", 3)[3] if leads_to != "Walnut" else "Walnut cup [SEP] Price" in text


@pytest.mark.parametrize(
    ("way", "action"),
    [
        ((), "search[<c>]"),
        ((), "search[<r>]"),
        ((), "search[walnut \ud800]"),
        ((), "search[cedar]"),
        ((), f"search[walnut {' '.join(map(str, range(1024)))}]"),
        (("search[maple]",), "click[b000000002]"),
        (("search[birch]",), "click[features]"),
        (("search[elder]", "click[b000000004]"), "click[buy now]"),
    ],
)
def test_what_upstreams_server_fails_on_changes_nothing(session, way, action):
    before = after(session, *way)
    outcome = session.step(action)
    assert (outcome.page.text, outcome.reward, outcome.done) == (before, 0.0, False)
    assert session._shop.product(4).title == "Elder cup \ud800"  # half a character survives
    assert "Walnut" in after(session, "search[walnut]")


WALNUT = "Page 1 (Total results: 1) [SEP] Next > [SEP] B000000001 [SEP] Walnut cup"


@pytest.mark.parametrize(
    "search",
    [
        *("search[walnut]", "search[WALNUT] or so", "search[walnut]\nthen more", "search[walnut] click[x"),
        *("search[]walnut]", f"search[walnut {' '.join(map(str, range(1023)))}]", "search[" + "walnut " * 2000 + "]"),
    ],
)
def test_a_search_for_walnut_works_on_every_page(session, search):
    for way in ([], ["search[plum]"], ["click[b000000001]"], ["click[b000000001]", "click[reviews]"]):
        after(session, *way)
        assert WALNUT in after(session, search)


@pytest.mark.parametrize("unit", ["[", "_", "\u200d", "_\u200d", "_\ufe0f"])
def test_the_time_of_a_long_search_is_nearly_linear(session, unit):
    """Each took seconds, in time that grew with the square of the length."""

    def spent(length):
        began = time.process_time()
        for text in (unit * (length // len(unit)), "\u00e9" + unit * (length // len(unit))):
            session.step(f"search[{text}]")
            session.step(f"search{text}")
        return time.process_time() - began

    assert spent(16_000) < 40 * (min(spent(1_600) for _ in range(3)) + 0.005)  # what a clock may miss


@settings(max_examples=300)
@given(st.text(st.sampled_from("ab[]\n _")))
def test_an_action_is_split_as_by_upstreams_pattern(text):
    match = re.match(r"(.+)\[(.+)\]", text)
    assert split_action(text) == ((match[1], match[2].lower()) if match else (text, None))


def test_an_episode_depends_neither_on_those_before_nor_on_threads_that_share_its_shop(shop):
    prices, goals = draw_prices_and_goals(shop, random.Random(0), human=True)
    tagger = load_tagger("approximate")

    def random_episode(goal):
        """The pages and rewards of a random episode, the same for the same goal."""
        rng = random.Random(goal)
        session = ShopSession(shop, prices, tagger, goals[goal], random.Random(goal))
        outcomes: list[object] = [session.page]
        for _ in range(20):
            clickables = list(session.page.clickables)
            strange = rng.choice(["search[<r>]", "search[no such thing]", "buy", f"search[{session.page.text[-30:]}]"])
            action = strange if clickables == ["search"] or rng.random() < 0.2 else f"click[{rng.choice(clickables)}]"
            outcome = session.step(action)
            outcomes.append(outcome)
            if outcome.done:
                break
        return outcomes

    once = [random_episode(goal) for goal in range(EPISODES)]
    assert [random_episode(goal) for goal in reversed(range(EPISODES))] == once[::-1]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(random_episode, range(EPISODES))) == once
