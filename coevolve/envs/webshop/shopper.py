"""A shopper that follows a script: it knows what the pages say and nothing else."""

from __future__ import annotations

import re
from collections.abc import Generator, Sequence
from dataclasses import dataclass

from coevolve.chat.prompts import write_action
from coevolve.envs.webshop.goals import LIMIT_TEXT

SEPARATOR = " [SEP] "
#: Words of the instruction that the shopper searches for.
KEYWORDS = 6
#: What instructions say around what they ask for.
_FILLING = """
    a an and am be buy find for has have i in is it looking me need of please should show some that the to want which
    with would like
"""
_FILLER = frozenset(_FILLING.split())
#: A colon follows the name of an option group, which is no word to search for.
_WORD = re.compile(r"[^\s.,:]+(?=[\s.,]|$)")
_PRICE = re.compile(r"\$(\d+(?:\.\d+)?)")
_LIMIT = re.compile(rf"{LIMIT_TEXT} (\d+(?:\.\d+)?)")


@dataclass(frozen=True, slots=True)
class Offer:
    """A line of a results page. `price` is the lowest in dollars; 0 where the page is cut before it."""

    asin: str
    title: str
    price: float


@dataclass(frozen=True, slots=True)
class Wish:
    """What an instruction asks for: its text without the price limit, and the limit in dollars."""

    text: str
    limit: float

    @classmethod
    def read(cls, page: str) -> Wish:
        """The wish on a page that shows an instruction."""
        _, _, rest = page.partition(f"Instruction:{SEPARATOR}")
        instruction = rest.partition(SEPARATOR)[0]
        limit = _LIMIT.search(instruction)
        return cls(instruction.partition(LIMIT_TEXT)[0], float(limit[1]) if limit else float("inf"))

    @property
    def words(self) -> list[str]:
        """The words that say something about the product, in order, each once."""
        return list(dict.fromkeys(word for word in _WORD.findall(self.text.lower()) if word not in _FILLER))

    def best(self, offers: Sequence[Offer]) -> Offer | None:
        """The affordable offer whose title has most of the wish's words, the first of equal ones."""
        affordable = [offer for offer in offers if offer.price <= self.limit]
        return max(affordable, key=self._shared, default=None)

    def options(self, page: str) -> list[str]:
        """What a product's page offers to choose and the wish names, in the page's order; no part of a longer name."""
        pieces = page.partition(f"{SEPARATOR}< Prev{SEPARATOR}")[2].split(SEPARATOR)
        named = [piece for piece in dict.fromkeys(pieces) if piece and self._names(piece)]
        return [piece for piece in named if not any(piece != other and piece in other for other in named)]

    def _shared(self, offer: Offer) -> int:
        return len(set(self.words) & set(_WORD.findall(offer.title.lower())))

    def _names(self, option: str) -> bool:
        return re.search(rf"(?<![\w-]){re.escape(option)}(?![\w:-])", self.text.lower()) is not None


def shop(page: str) -> Generator[str, str, None]:
    """What the shopper says on each page, until it has bought something or finds nothing; it is sent the next page.

    It searches for the first words that describe the product, takes the offer it can afford whose title has most of
    the instruction's words, on the next page if it can afford none, chooses the options named, and buys.
    """
    wish = Wish.read(page)
    page = yield write_action(f"search[{' '.join(wish.words[:KEYWORDS])}]", "I search.")
    if wish.best(offers(page)) is None:
        page = yield write_action("click[next >]", "None fits.")
    chosen = wish.best(offers(page))
    if chosen is None:
        return
    page = yield write_action(f"click[{chosen.asin}]", "This fits.")
    for option in wish.options(page):
        page = yield write_action(f"click[{option}]", "I choose.")
    yield write_action("click[buy now]", "I buy.")


def offers(page: str) -> list[Offer]:
    """What a results page shows, as far as it is not cut."""
    pieces = page.partition(f"{SEPARATOR}Next >{SEPARATOR}")[2].split(SEPARATOR)
    rows = [pieces[at : at + 3] for at in range(0, len(pieces), 3)]
    return [_offer(*row) for row in rows if len(row) > 1]


def _offer(asin: str, title: str, tag: str = "") -> Offer:
    price = _PRICE.match(tag)
    return Offer(asin, title, float(price[1]) if price else 0.0)
