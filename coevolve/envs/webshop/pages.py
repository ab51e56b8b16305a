"""What an agent sees and can click: every page of the shop as text, written without HTML.

Upstream renders templates and reads them back with an HTML parser; the text here is what comes out of that, so each
piece of a page is one text node of upstream's and follows the parser's rules for white space.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from coevolve.envs.webshop.catalogue import Product

Kind = Literal["start", "results", "item", "sub_page", "done"]
#: Texts of a page that can be clicked, in upstream's order; the value is the option group's name, None for the rest.
Clickables = dict[str, str | None]

BACK, PREVIOUS, NEXT, BUY = "back to search", "< prev", "next >", "buy now"
#: The sub-pages of a product, by the text that opens them.
SUB_PAGES = ("description", "features", "reviews", "attributes")
#: Products on one page of results.
WINDOW = 10

_SEPARATOR = " [SEP] "
#: White space of HTML: a text node of nothing else counts as one newline, or one blank if it holds no newline.
_HTML_SPACE = " \n\t\f\r"
#: Upstream's done page has a place for everything but the server fills in three values only.
_RECEIPT = (
    *("attrs", "None", "category", "None", "query", "None", "product category", "None", "Target", "asin", "options"),
    *("attrs", "price upper", "instuction text", "category", "product category", "query", "Goal", "None", "Reward"),
)


@dataclass(frozen=True, slots=True)
class Page:
    """One page: its kind, its text as upstream's `text` mode gives it, and what can be clicked there."""

    kind: Kind
    text: str
    clickables: Clickables


def start(instruction: str) -> Page:
    """The page with nothing but the search bar."""
    return Page("start", _text(("WebShop", "Instruction:", *_node(instruction), "Search")), {"search": None})


def results(instruction: str, products: Sequence[Product], page: int, total: int) -> Page:
    """Page `page` (1 is the first) of `total` results, of which `products` are shown."""
    pieces = [*_head(instruction), f"Page {page} (Total results: {total})"]
    pieces += ["< Prev", "Next >"] if page > 1 else ["Next >"]
    for product in products:
        pieces += [*_node(product.asin), *_node(product.title), *_node(product.price_tag)]
    buttons = (BACK, PREVIOUS, NEXT) if page > 1 else (BACK, NEXT)
    links = (_collapsed(product.asin).lower() for product in products)
    return Page("results", _text(pieces), dict.fromkeys((*buttons, *links)))


def item(instruction: str, product: Product, show_attributes: bool) -> Page:
    """A product's own page. The tag shows a range where there is one; upstream's catalogue has no ratings."""
    tabs = SUB_PAGES if show_attributes else SUB_PAGES[:-1]
    pieces = [*_head(instruction), "< Prev"]
    for name, values in product.options.items():
        pieces += [*_node(name), *(piece for value in values for piece in _node(value))]
    pieces += [*_node(product.title), f"Price: {product.price_tag}", "Rating: N.A."]
    pieces += [*(tab.capitalize() for tab in tabs), "Buy Now"]
    clickables: Clickables = dict.fromkeys((BACK, PREVIOUS, *tabs, BUY))
    for name, values in product.options.items():
        clickables |= dict.fromkeys(values, name)
    return Page("item", _text(pieces), clickables)


def sub_page(instruction: str, product: Product, tab: str) -> Page:
    """One of `SUB_PAGES`; that of the reviews is empty, as upstream ships none."""
    pieces = [*_head(instruction), "< Prev"]
    if tab == "description":
        pieces += _node(product.description)
    elif tab == "features":
        pieces += _listed(product.bullets)
    elif tab == "attributes":
        pieces += _listed(product.attributes)
        pieces += [*_node(str(product.category)), *_node(product.query), *_node(product.product_category)]
    return Page("sub_page", _text(pieces), dict.fromkeys((BACK, PREVIOUS)))


def done(asin: str, options: Mapping[str, str], reward: float) -> Page:
    """The receipt, on which nothing can be clicked."""
    # Flask's JSON inside HTML: sorted keys, ASCII, and the four characters of mark-up escaped.
    chosen = json.dumps(options, sort_keys=True)
    for character in "<>&'":
        chosen = chosen.replace(character, f"\\u{ord(character):04x}")
    pieces = ["Thank you for shopping with us!", "Your code:", "None", "(Paste it in your MTurk interface.)"]
    pieces += ["Purchased", "asin", *_preformatted(asin), "options", chosen, *_RECEIPT]
    pieces += ["Your score (min 0.0, max 1.0)", str(reward), "Reward Details", "None"]
    return Page("done", _text(pieces), {})


def _head(instruction: str) -> tuple[str, ...]:
    return ("Instruction:", *_node(instruction), "Back to Search")


def _text(pieces: Iterable[str]) -> str:
    return _SEPARATOR.join(pieces)


def _collapsed(text: str) -> str:
    """The text node that `text` becomes, before it is stripped."""
    if text.strip(_HTML_SPACE) or not text:
        return text
    return "\n" if "\n" in text else " "


def _node(text: str) -> tuple[str, ...]:
    """The piece a text node adds to the page: none if it is empty or no more than white space with a newline."""
    node = _collapsed(text)
    return () if node in ("", "\n") else (node.strip(),)


def _preformatted(text: str) -> tuple[str, ...]:
    """The piece of a node whose white space the parser keeps."""
    return () if text in ("", "\n") else (text.strip(),)


def _listed(texts: Iterable[str]) -> list[str]:
    """Pieces of list entries, which start with a blank of their own."""
    return [piece for text in texts for piece in _node(f" {text}")]
