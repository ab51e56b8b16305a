"""The scripted expert reads pages, whole and truncated, and buys the best match."""

import pytest

from coevolve.chat.prompts import parse_action
from coevolve.envs.webshop.catalogue import Product
from coevolve.envs.webshop.pages import item_page, results_page
from coevolve.envs.webshop.scripted_expert import ListedProduct, ParsedInstruction, listed_products, scripted_expert

ASKED = "i need a round tin cup, in dark blue, and price lower than 40.00 dollars"
START = f"WebShop [SEP] Instruction: [SEP] {ASKED} [SEP] Search"


def product(asin, title, *prices, options=None):
    return Product(asin, title, "", "garden", "cups", "Cups", (), prices, options or {}, ())


PLATE = product("B01", "Tin Plate", 10.0)
DEAR = product("B02", "Round Tin Cup", 45.5, 60.0)
CUP = product("B03", "Tin Cup, Round", 30.0, 60.0, options={"color": ("blue", "dark blue"), "fit": ("round",)})
LATER = product("B04", "Round Tin Cup", 5.0)


def played(*seen):
    """Actions on a start page and the pages that follow, up to one more than the pages."""
    script = scripted_expert(START)
    texts = [next(script)]
    for page in seen:
        try:
            texts.append(script.send(page))
        except StopIteration:
            break
    return [parse_action(text) for text in texts]


def test_an_instruction_is_read_from_any_page():
    instruction = ParsedInstruction("i need a round tin cup, in dark blue", 40.0)
    assert ParsedInstruction.from_page(START) == instruction
    assert ParsedInstruction.from_page(results_page(ASKED, [CUP], 1, 1).text) == instruction
    assert instruction.words == ["round", "tin", "cup", "dark", "blue"]
    assert ParsedInstruction.from_page("Instruction: [SEP] any cup [SEP] Search").limit == float("inf")
    assert ParsedInstruction.from_page(START[: START.index("40.00") + 4] + "...") == instruction


@pytest.mark.parametrize("page", [1, 2])
def test_offers_are_those_on_the_page(page):
    assert listed_products(results_page(ASKED, [PLATE, CUP], page, 12).text) == [
        ListedProduct("B01", "Tin Plate", 10.0),
        ListedProduct("B03", "Tin Cup, Round", 30.0),
    ]


def test_a_cut_page_shows_what_is_left_of_it():
    text = results_page(ASKED, [PLATE, CUP], 1, 2).text
    before = text.index("B03")
    assert listed_products(text[: before + 2]) == [ListedProduct("B01", "Tin Plate", 10.0)]
    assert listed_products(text[: before + 16]) == [
        ListedProduct("B01", "Tin Plate", 10.0),
        ListedProduct("B03", "Tin Cu", 0.0),
    ]
    assert listed_products(text[: text.index("$30.0") + 2] + "...")[1] == ListedProduct("B03", "Tin Cup, Round", 3.0)


def test_it_takes_the_best_it_can_afford_with_the_options_named():
    first = results_page(ASKED, [PLATE, DEAR, CUP, LATER], 1, 4).text
    page = item_page(ASKED, CUP).text
    assert played(first, page, page, page) == [
        "search[round tin cup dark blue]",
        "click[B03]",
        "click[dark blue]",
        "click[round]",
        "click[buy now]",
    ]


def test_where_it_can_afford_nothing_it_looks_at_the_next_page_and_then_gives_up():
    nothing = results_page(ASKED, [], 1, 0).text
    assert played(nothing, nothing) == ["search[round tin cup dark blue]", "click[next >]"]
    first, second = results_page(ASKED, [DEAR], 1, 11).text, results_page(ASKED, [LATER], 2, 11).text
    assert played(first, second, item_page(ASKED, LATER).text)[1:] == [
        "click[next >]",
        "click[B04]",
        "click[buy now]",
    ]
