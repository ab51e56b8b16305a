"""Upstream's reward of a purchase, exactly reproduced, and its fuzzy string matching."""

import functools
import itertools
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from difflib import SequenceMatcher

from coevolve import shipped
from coevolve.envs.webshop.catalogue import Product
from coevolve.envs.webshop.goals import Goal
from coevolve.envs.webshop.tagger import Tagger

#: Name of the string matcher, stored with results: later versions of that library give other ratios.
MATCHER = "token_set_ratio of thefuzz 0.19, difflib"
#: Two texts match if their ratio is above this.
THRESHOLD = 85

_COLOURS = shipped.DATA / "webshop" / "colours.txt"
#: Characters that the matcher removes first.
_LATIN_1 = dict.fromkeys(range(128, 256))
_NON_WORD = re.compile(r"\W")
#: From this length on difflib ignores frequent characters (its `autojunk`).
_AUTOJUNK_LENGTH = 200

#: A goal's option: a value (human goals), or a name with a value (synthetic goals).
GoalOption = str | tuple[str, str]


def reward(
    product: Product, goal: Goal, price: float, chosen: Collection[str], tagger: Tagger
) -> tuple[float, dict[str, float | bool]]:
    """The reward in [0, 1] for buying `product` at `price` dollars with the option values `chosen`, and its parts.

    The parts have upstream's names: ratios `r_*`, their weights `w_*`, and the criteria of the type match.
    """
    type_match = match_type(product, goal, tagger)
    attributes = sum(_has_attribute(product, attribute) for attribute in goal.attributes)
    wanted = option_texts(goal)
    options = _count_matched(chosen, wanted)
    affordable = price <= goal.price_upper
    parts = len(goal.attributes) + len(wanted) + 1
    details = type_match | {
        "r_att": attributes / len(goal.attributes),
        "w_att": len(goal.attributes) / parts,
        "r_price": affordable,
        "w_price": 1 / parts,
    }
    if wanted:
        details |= {"r_option": options / len(wanted), "w_option": len(wanted) / parts}
    return (attributes + options + affordable) / parts * type_match["r_type"], details


def match_type(product: Product, goal: Goal, tagger: Tagger) -> dict[str, float | bool]:
    """Similarity of a product's type to the goal's, by query, category and the nouns of both titles.

    `r_type` scales the reward.
    """
    query = product.query == goal.query
    category = len(_category_levels(product.product_category) & _category_levels(goal.product_category)) >= 2
    nouns = tagger.nouns(goal.name)
    title = len(set(tagger.nouns(product.title)) & set(nouns)) / len(nouns) if nouns else 0.2
    if title == 0.0:
        factor = 0.0
    elif title < 0.1:
        factor = 0.1
    else:
        factor = 1.0 if query or category or title > 0.2 else 0.5
    return {"r_type": factor, "query_match": query, "category_match": category, "title_score": title}


@functools.lru_cache(maxsize=1 << 14)
def matches(first: str, second: str) -> bool:
    """Whether `token_set_ratio(first, second)` is above `THRESHOLD`; bounds avoid most computations of the ratio."""
    return any(itertools.starmap(_is_above_threshold, _compared(first, second)))


def token_set_ratio(first: str, second: str) -> int:
    """Similarity of two texts as sets of words, 0 to 100: the largest ratio of the shared words and both full sets."""
    return max(itertools.starmap(_ratio, _compared(first, second)), default=0)


def colour_of(option: GoalOption) -> GoalOption:
    """The first colour of upstream's list in an option's text, or equal to its name or value; else the option."""
    return next((colour for colour in _colours() if colour in option), option)


def option_texts(goal: Goal) -> list[str]:
    """The texts that the chosen values are compared with, one for each of the goal's options."""
    options = goal.options.items() if isinstance(goal.options, dict) else goal.options
    return [str(colour_of(option)) for option in options]


def _has_attribute(product: Product, attribute: str) -> bool:
    if any(matches(known, attribute) for known in product.attributes):
        return True
    texts = (product.title, " ".join(product.bullets), product.description)
    return any(attribute in text.lower() for text in texts)


def _count_matched(chosen: Iterable[str], texts: Iterable[str]) -> int:
    values = [str(colour_of(value)) for value in chosen]
    return sum(any(matches(value, text) for value in values) for text in texts)


def _category_levels(category: str) -> set[str]:
    return {level.strip() for level in category.split("\u203a")}


@functools.cache
def _colours() -> tuple[str, ...]:
    return tuple(_COLOURS.read_text(encoding="utf-8").split())


@functools.lru_cache(maxsize=1 << 14)
def _tokens(text: str) -> frozenset[str]:
    return frozenset(_NON_WORD.sub(" ", text.translate(_LATIN_1)).lower().split())


def _compared(first: str, second: str) -> Iterator[tuple[str, str]]:
    """The pairs of the shared words and both full sets; none if a text has no word."""
    tokens, others = _tokens(first), _tokens(second)
    if tokens and others:
        shared = " ".join(sorted(tokens & others))
        left, right = _join_sorted(shared, tokens - others), _join_sorted(shared, others - tokens)
        yield from ((shared, left), (shared, right)) if shared else ()
        yield left, right


def _join_sorted(shared: str, rest: Iterable[str]) -> str:
    return f"{shared} {' '.join(sorted(rest))}".strip()


def _is_above_threshold(first: str, second: str) -> bool:
    """Whether the ratio of two texts is above the threshold; two upper bounds of difflib's ratio are tried first."""
    length = len(first) + len(second)
    if _percent(min(len(first), len(second)), length) <= THRESHOLD:
        return False
    if len(second) < _AUTOJUNK_LENGTH and second.startswith(first):
        return True
    if _percent((Counter(first) & Counter(second)).total(), length) <= THRESHOLD:
        return False
    return _ratio(first, second) > THRESHOLD


def _ratio(first: str, second: str) -> int:
    if first == second:
        return 100
    if not first or not second:
        return 0
    return round(100 * SequenceMatcher(None, first, second).ratio())


def _percent(matched: int, length: int) -> int:
    """Difflib's ratio, in rounded per cent, for `matched` characters of two texts with `length` characters in total."""
    return round(100 * (2.0 * matched / length))
