"""Text and clickable elements of the shop's pages, generated without HTML.

Upstream renders HTML templates and extracts their text nodes with a parser. Here each piece of a page is one such text
node, with white space as the parser leaves it.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from coevolve.envs.webshop.catalogue import Product

PageKind = Literal["start", "results", "item", "sub_page", "done"]
#: Clickable texts of a page in upstream's order; the value is the name of an option's group, None for others.
Clickables = dict[str, str | None]

BACK, PREVIOUS, NEXT, BUY = "back to search", "< prev", "next >", "buy now"
#: Sub-pages that a product's page links, named by the text that opens them.
TABS = ("description", "features", "reviews")
#: All sub-pages; the last, which upstream links on request, is opened by an option's value of that name only.
SUB_PAGES = (*TABS, "attributes")
#: Products on one page of results.
RESULTS_PER_PAGE = 10

SEPARATOR = " [SEP] "
#: White space of HTML; a text node without other characters becomes one newline, or one space if it has no newline.
_HTML_SPACE = " \n\t\f\r"
#: Labels of upstream's done page, whose server fills in three values only.
_DONE_PAGE_LABELS = (
    *("attrs", "None", "category", "None", "query", "None", "product category", "None", "Target", "asin", "options"),
    *("attrs", "price upper", "instuction text", "category", "product category", "query", "Goal", "None", "Reward"),
)


@dataclass(frozen=True, slots=True)
class Page:
    """A page: its kind, its text in upstream's observation mode `text`, and its clickable texts."""

    kind: PageKind
    text: str
    clickables: Clickables


def start_page(instruction: str) -> Page:
    """The first page, with the instruction and the search bar."""
    return Page("start", SEPARATOR.join(("WebShop", "Instruction:", *_node(instruction), "Search")), {"search": None})


def results_page(instruction: str, products: Sequence[Product], page: int, total: int) -> Page:
    """Results page `page`, counted from 1, with `products`; `total` is the number of all results."""
    pieces = [*_header(instruction), f"Page {page} (Total results: {total})"]
    pieces += ["< Prev", "Next >"] if page > 1 else ["Next >"]
    for product in products:
        pieces += [*_node(product.asin), *_node(product.title), *_node(product.price_tag)]
    buttons = (BACK, PREVIOUS, NEXT) if page > 1 else (BACK, NEXT)
    links = (_collapsed(product.asin).lower() for product in products)
    return Page("results", SEPARATOR.join(pieces), dict.fromkeys((*buttons, *links)))


def item_page(instruction: str, product: Product) -> Page:
    """A product's page; a price range is shown as such, and the rating is always `N.A.`, as in upstream's catalogue."""
    pieces = [*_header(instruction), "< Prev"]
    for name, values in product.options.items():
        pieces += [*_node(name), *(piece for value in values for piece in _node(value))]
    pieces += [*_node(product.title), f"Price: {product.price_tag}", "Rating: N.A."]
    pieces += [*(tab.capitalize() for tab in TABS), "Buy Now"]
    clickables: Clickables = dict.fromkeys((BACK, PREVIOUS, *TABS, BUY))
    for name, values in product.options.items():
        clickables |= dict.fromkeys(values, name)
    return Page("item", SEPARATOR.join(pieces), clickables)


def sub_page(instruction: str, product: Product, tab: str) -> Page:
    """One of `SUB_PAGES`; the page of reviews is empty, since upstream's data has none."""
    pieces = [*_header(instruction), "< Prev"]
    if tab == "description":
        pieces += _node(product.description)
    elif tab == "features":
        pieces += _list_nodes(product.bullets)
    elif tab == "attributes":
        pieces += _list_nodes(product.attributes)
        pieces += [*_node(str(product.category)), *_node(product.query), *_node(product.product_category)]
    return Page("sub_page", SEPARATOR.join(pieces), dict.fromkeys((BACK, PREVIOUS)))


def done_page(asin: str, options: Mapping[str, str], reward: float) -> Page:
    """The page after a purchase, which has no clickable texts."""
    # As Flask writes JSON into HTML: sorted keys, ASCII, and four markup characters escaped.
    chosen = json.dumps(options, sort_keys=True)
    for character in "<>&'":
        chosen = chosen.replace(character, f"\\u{ord(character):04x}")
    pieces = ["Thank you for shopping with us!", "Your code:", "None", "(Paste it in your MTurk interface.)"]
    pieces += ["Purchased", "asin", *_node(asin), "options", chosen, *_DONE_PAGE_LABELS]
    pieces += ["Your score (min 0.0, max 1.0)", str(reward), "Reward Details", "None"]
    return Page("done", SEPARATOR.join(pieces), {})


def _header(instruction: str) -> tuple[str, ...]:
    return ("Instruction:", *_node(instruction), "Back to Search")


def _collapsed(text: str) -> str:
    """The text node of `text`, with a node of white space collapsed to one character."""
    if text.strip(_HTML_SPACE) or not text:
        return text
    return "\n" if "\n" in text else " "


def _node(text: str) -> tuple[str, ...]:
    """The pieces of a text node: none if it is empty or white space with a newline, otherwise one, stripped."""
    node = _collapsed(text)
    return () if node in ("", "\n") else (node.strip(),)


def _list_nodes(texts: Iterable[str]) -> list[str]:
    """The pieces of list entries, whose text nodes begin with a space in upstream's template."""
    return [piece for text in texts for piece in _node(f" {text}")]
