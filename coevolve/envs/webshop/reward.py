"""Upstream's reward of a purchase, number for number, and the fuzzy string matching it rests on."""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from difflib import SequenceMatcher
from pathlib import Path

from coevolve.envs.webshop.catalogue import Product
from coevolve.envs.webshop.goals import Goal
from coevolve.envs.webshop.tagger import Tagger

#: What decides whether two texts match; stored with results, since later generations of that library differ.
MATCHER = "token_set_ratio of thefuzz 0.19, difflib"
#: Two texts match if their score is above this.
THRESHOLD = 85

_COLOURS = Path(__file__).resolve().parents[3] / "data" / "webshop" / "colours.txt"
#: The matcher drops these before it looks at a text.
_LATIN_1 = dict.fromkeys(range(128, 256))
_NO_WORD = re.compile(r"\W")
#: From this length on difflib ignores characters it calls popular.
_AUTOJUNK = 200

#: An option asked for: a value (human goals), or a name with its value (synthetic ones).
Wanted = str | tuple[str, str]


@dataclass(frozen=True, slots=True)
class Kinship:
    """How near the bought product's type is to the one asked for; `factor` scales the reward."""

    factor: float
    query: bool
    category: bool
    title: float


def reward(
    product: Product, goal: Goal, price: float, chosen: Collection[str], tagger: Tagger
) -> tuple[float, dict[str, float | bool]]:
    """The reward in [0, 1] for buying `product` at `price` dollars with the option values `chosen`, and its parts.

    The parts bear upstream's names: ratios `r_*`, their weights `w_*`, and what the type was judged by.
    """
    near = kinship(product, goal, tagger)
    wanted: Collection[Wanted] = list(goal.options.items()) if isinstance(goal.options, dict) else goal.options
    attributes = sum(_has(product, attribute) for attribute in goal.attributes)
    options = _matched(chosen, wanted)
    affordable = price <= goal.price_upper
    parts = len(goal.attributes) + len(wanted) + 1
    details = {
        "r_type": near.factor,
        "r_att": attributes / len(goal.attributes),
        "w_att": len(goal.attributes) / parts,
        "query_match": near.query,
        "category_match": near.category,
        "title_score": near.title,
        "r_price": affordable,
        "w_price": 1 / parts,
    }
    if wanted:
        details |= {"r_option": options / len(wanted), "w_option": len(wanted) / parts}
    return (attributes + options + affordable) / parts * near.factor, details


def kinship(product: Product, goal: Goal, tagger: Tagger) -> Kinship:
    """Whether the product is the kind of thing the goal asks for, by query, category and the nouns of the titles."""
    query = product.query == goal.query
    category = len(_levels(product.product_category) & _levels(goal.product_category)) >= 2
    nouns = tagger.nouns(goal.name)
    title = len(set(tagger.nouns(product.title)) & set(nouns)) / len(nouns) if nouns else 0.2
    if title == 0.0:
        factor = 0.0
    elif title < 0.1:
        factor = 0.1
    else:
        factor = 1.0 if query or category or title > 0.2 else 0.5
    return Kinship(factor, query, category, title)


@functools.lru_cache(maxsize=1 << 14)
def matches(one: str, other: str) -> bool:
    """Whether `token_set_ratio(one, other)` is above `THRESHOLD`, decided without the ratio where a bound does."""
    tokens, others = _tokens(one), _tokens(other)
    if not tokens or not others:
        return False
    shared = " ".join(sorted(tokens & others))
    left, right = _combined(shared, tokens - others), _combined(shared, others - tokens)
    if shared and (_above(shared, left) or _above(shared, right)):
        return True
    return _above(left, right)


def token_set_ratio(one: str, other: str) -> int:
    """Similarity of two texts as sets of words, 0 to 100: the best match among what they share and each whole."""
    tokens, others = _tokens(one), _tokens(other)
    if not tokens or not others:
        return 0
    shared = " ".join(sorted(tokens & others))
    left, right = _combined(shared, tokens - others), _combined(shared, others - tokens)
    return max(_ratio(shared, left), _ratio(shared, right), _ratio(left, right))


def colour_of(option: Wanted) -> Wanted:
    """The first colour word of upstream's list inside an option's text, or equal to its name or value; else itself."""
    return next((colour for colour in _colours() if colour in option), option)


def _has(product: Product, attribute: str) -> bool:
    if any(matches(own, attribute) for own in product.attributes):
        return True
    texts = (product.title, " ".join(product.bullets), product.description)
    return any(attribute in text.lower() for text in texts)


def _matched(chosen: Iterable[str], wanted: Iterable[Wanted]) -> int:
    """How many of the wanted options a chosen one matches."""
    own = [str(colour_of(value)) for value in chosen]
    return sum(any(matches(value, text) for value in own) for text in (str(colour_of(option)) for option in wanted))


def _levels(category: str) -> set[str]:
    return {level.strip() for level in category.split("\u203a")}


@functools.cache
def _colours() -> tuple[str, ...]:
    return tuple(_COLOURS.read_text(encoding="utf-8").split())


@functools.lru_cache(maxsize=1 << 14)
def _tokens(text: str) -> frozenset[str]:
    return frozenset(_NO_WORD.sub(" ", text.translate(_LATIN_1)).lower().split())


def _combined(shared: str, rest: Iterable[str]) -> str:
    return f"{shared} {' '.join(sorted(rest))}".strip()


def _above(one: str, other: str) -> bool:
    """Whether the ratio of two texts is above the threshold; difflib cannot match more than the two bounds say."""
    length = len(one) + len(other)
    if _percent(min(len(one), len(other)), length) <= THRESHOLD:
        return False
    if len(other) < _AUTOJUNK and other.startswith(one):
        return True
    if _percent((Counter(one) & Counter(other)).total(), length) <= THRESHOLD:
        return False
    return _ratio(one, other) > THRESHOLD


def _ratio(one: str, other: str) -> int:
    if one == other:
        return 100
    if not one or not other:
        return 0
    return round(100 * SequenceMatcher(None, one, other).ratio())


def _percent(matched: int, length: int) -> int:
    """Difflib's ratio of two texts of `length` characters together, in rounded per cent."""
    return round(100 * (2.0 * matched / length))
