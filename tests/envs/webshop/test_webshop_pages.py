"""Texts of pages where fields are odd; what upstream shows for ordinary and odd products is in `recorded/`."""

from dataclasses import replace

import pytest
from envs.webshop.cup import cup

from coevolve.envs.webshop import pages

CUP = cup(options={"color": ("red", "blue"), "size": ("small",)})


def pieces(page):
    return page.text.split(" [SEP] ")


@pytest.mark.parametrize(
    ("title", "shown"),
    [
        ("  Plum \n cup\t", ["Plum \n cup"]),
        ("", []),
        (" ", [""]),
        ("\t \r\f", [""]),
        ("\n", []),
        (" \n\t", []),
        ("\u00a0", [""]),
        ("\x0b\n", [""]),
        ("\u2028\u3000", [""]),
        ("\u00a0cup\x1f", ["cup"]),
        ("\u200bcup\ufeff", ["\u200bcup\ufeff"]),
        ("<b>cup</b> &amp; &nbsp; <!-- x -->", ["<b>cup</b> &amp; &nbsp; <!-- x -->"]),
        ("cup\x00\ud800", ["cup\x00\ud800"]),
        ("{{ cup }}", ["{{ cup }}"]),
    ],
)
def test_white_space_and_markup_in_a_field(title, shown):
    page = pages.item_page("find a cup", replace(CUP, title=title, options={}))
    expected = ["Instruction:", "find a cup", "Back to Search", "< Prev", *shown, "Price: $9.5", "Rating: N.A."]
    assert pieces(page) == [*expected, "Description", "Features", "Reviews", "Buy Now"]


def test_a_value_in_two_groups_belongs_to_the_last_and_one_like_a_button_keeps_the_buttons_place():
    options = {"color": ("red", ""), "trim": ("red", "buy now")}
    page = pages.item_page("", replace(CUP, options=options))
    assert list(page.clickables)[-4:] == ["reviews", "buy now", "red", ""]
    assert page.clickables["red"] == page.clickables["buy now"] == "trim"
    assert page.clickables[""] == "color"
    assert page.clickables["reviews"] is None


@pytest.mark.parametrize(
    ("tab", "shown"),
    [
        ("description", ["A cup."]),
        ("features", ["Round.", "Plum."]),
        ("reviews", []),
        ("attributes", ["dishwasher safe", "kitchen", "plum cups", "Kitchen \u203a Cups"]),
    ],
)
def test_sub_pages(tab, shown):
    page = pages.sub_page("find a cup", CUP, tab)
    assert pieces(page) == ["Instruction:", "find a cup", "Back to Search", "< Prev", *shown]
    assert list(page.clickables) == ["back to search", "< prev"]
    odd = pages.sub_page("x", replace(CUP, bullets=("", "\n", " \n", "a")), "features")
    assert pieces(odd)[4:] == ["", "a"]


def test_the_receipt_writes_options_as_flask_does():
    page = pages.done_page("B000000001", {"size": "a<b>&\"'", "color": "caf\u00e9 \U0001f44d"}, 0.5)
    chosen = '{"color": "caf\\u00e9 \\ud83d\\udc4d", "size": "a\\u003cb\\u003e\\u0026\\"\\u0027"}'
    assert pieces(page)[5:8] == ["asin", "B000000001", "options"]
    assert pieces(page)[8] == chosen
    assert pieces(page)[-4:] == ["Your score (min 0.0, max 1.0)", "0.5", "Reward Details", "None"]
    assert page.clickables == {}
