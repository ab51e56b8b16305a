"""WebShop's scripted expert, which uses only the text of the pages."""

import re
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Self

from coevolve.chat.prompts import write_action
from coevolve.envs.webshop.goals import LIMIT_TEXT
from coevolve.envs.webshop.pages import SEPARATOR

#: Number of words in the expert's search.
MAX_KEYWORDS = 6
#: Words of instructions that do not describe the product.
_STOP_WORD_LIST = """
    a an and am be buy find for has have i in is it looking me need of please should show some that the to want which
    with would like
"""
_STOP_WORDS = frozenset(_STOP_WORD_LIST.split())
#: A word before a colon is the name of an option group and is not searched for.
_WORD = re.compile(r"[^\s.,:]+(?=[\s.,]|$)")
_PRICE = re.compile(r"\$(\d+(?:\.\d+)?)")
_LIMIT = re.compile(rf"{LIMIT_TEXT} (\d+(?:\.\d+)?)")


@dataclass(frozen=True, slots=True)
class ListedProduct:
    """A product on a results page. `price` is the lowest in dollars, 0 if the page is truncated before it."""

    asin: str
    title: str
    price: float


@dataclass(frozen=True, slots=True)
class ParsedInstruction:
    """An instruction's text without the price limit, and the limit in dollars."""

    text: str
    limit: float

    @classmethod
    def from_page(cls, page: str) -> Self:
        """The instruction on a page."""
        _, _, rest = page.partition(f"Instruction:{SEPARATOR}")
        instruction = rest.partition(SEPARATOR)[0]
        limit = _LIMIT.search(instruction)
        return cls(instruction.partition(LIMIT_TEXT)[0], float(limit[1]) if limit else float("inf"))

    @property
    def words(self) -> list[str]:
        """The words that describe the product, in order, without repetitions."""
        return list(dict.fromkeys(word for word in _WORD.findall(self.text.lower()) if word not in _STOP_WORDS))

    def best_match(self, products: Sequence[ListedProduct]) -> ListedProduct | None:
        """The product within the price limit whose title shares most words with the instruction; ties: the first."""
        affordable = [product for product in products if product.price <= self.limit]
        return max(affordable, key=self._shared_words, default=None)

    def options(self, page: str) -> list[str]:
        """Options on a product's page that the instruction names, in the page's order.

        An option that is part of another named option is left out.
        """
        pieces = page.partition(f"{SEPARATOR}< Prev{SEPARATOR}")[2].split(SEPARATOR)
        named = [piece for piece in dict.fromkeys(pieces) if piece and self._mentions(piece)]
        return [piece for piece in named if not any(piece != other and piece in other for other in named)]

    def _shared_words(self, product: ListedProduct) -> int:
        return len(set(self.words) & set(_WORD.findall(product.title.lower())))

    def _mentions(self, option: str) -> bool:
        return re.search(rf"(?<![\w-]){re.escape(option)}(?![\w:-])", self.text.lower()) is not None


def scripted_expert(page: str) -> Generator[str, str, None]:
    """Yields the text of each turn and is sent the next page; ends after the purchase or without a suitable product.

    The expert searches for the first words that describe the product and opens the product within the price limit whose
    title shares most words with the instruction. If no product on the first page is within the limit, it opens the
    second page. Then it selects the options that the instruction names, and buys.
    """
    instruction = ParsedInstruction.from_page(page)
    page = yield write_action(f"search[{' '.join(instruction.words[:MAX_KEYWORDS])}]", "I search.")
    if instruction.best_match(listed_products(page)) is None:
        page = yield write_action("click[next >]", "None fits.")
    chosen = instruction.best_match(listed_products(page))
    if chosen is None:
        return
    page = yield write_action(f"click[{chosen.asin}]", "This fits.")
    for option in instruction.options(page):
        page = yield write_action(f"click[{option}]", "I choose.")
    yield write_action("click[buy now]", "I buy.")


def listed_products(page: str) -> list[ListedProduct]:
    """Products on a results page, which may be truncated."""
    pieces = page.partition(f"{SEPARATOR}Next >{SEPARATOR}")[2].split(SEPARATOR)
    rows = [pieces[at : at + 3] for at in range(0, len(pieces), 3)]
    return [_listed_product(*row) for row in rows if len(row) > 1]


def _listed_product(asin: str, title: str, price_tag: str = "") -> ListedProduct:
    price = _PRICE.match(price_tag)
    return ListedProduct(asin, title, float(price[1]) if price else 0.0)
