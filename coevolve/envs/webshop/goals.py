"""Goals and their price limits as upstream draws them, and the frozen list of them that makes tasks reproducible."""

from __future__ import annotations

import itertools
import json
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from coevolve.envs.webshop.catalogue import Instruction, Product
from coevolve.envs.webshop.shop import Shop
from coevolve.errors import UserError
from coevolve.storage import files, jsonl
from coevolve.types import Record

#: Limits in dollars that a goal can name; it takes the larger of two of the first four above the price.
LIMITS = [10.0 * step for step in range(1, 100)]
#: The limit of a goal whose instruction names none.
NO_LIMIT = 1_000_000.0
LIMIT_TEXT = ", and price lower than"
#: What upstream seeds its generator with before it shuffles the goals.
ORDER_SEED = 233


@dataclass(frozen=True, slots=True)
class Goal:
    """What a shopper is asked to buy. `options` is a tuple of values (human goals) or a dict by name (synthetic ones).

    `price_upper` is in dollars, 1,000,000 where the instruction names no limit.
    """

    asin: str
    category: str | None
    query: str
    name: str
    product_category: str
    instruction: str
    attributes: tuple[str, ...]
    price_upper: float
    options: tuple[str, ...] | dict[str, str]
    weight: float = 1.0


class FrozenGoal(Record):
    """A goal's number in the list, the goal, and what its product costs in dollars."""

    number: int
    price: float
    goal: Goal


def draw(shop: Shop, seed: int, human: bool) -> tuple[Sequence[float], list[Goal]]:
    """Prices and goals as upstream draws them, one after the other, from a generator seeded with `seed`."""
    rng = random.Random(seed)
    prices = shop.prices(rng)
    return prices, goals(shop, prices, rng, human)


def goals(shop: Shop, prices: Sequence[float], rng: random.Random, human: bool) -> list[Goal]:
    """All goals in upstream's order: goal i is what its `reset(i)` asks for.

    Where `prices` were just drawn from `rng`, price limits continue its stream as they do upstream; the shuffle that
    follows seeds it anew, so that the order of goals is always the same.
    """
    found = list(_human(shop, prices, rng) if human else _synthetic(shop, prices, rng))
    rng.seed(ORDER_SEED)
    rng.shuffle(found)
    return found


def write_manifest(path: Path, goals: Sequence[Goal], shop: Shop, prices: Sequence[float]) -> str:
    """Freeze goals and what their products cost into a JSONL file of `FrozenGoal`; its sha256."""
    frozen = [
        FrozenGoal(number=number, price=prices[_product(shop, goal)], goal=goal) for number, goal in enumerate(goals)
    ]
    jsonl.write(path, frozen)
    return files.sha256(path)


def read_manifest(path: Path) -> list[Goal]:
    """The goals that `write_manifest` froze, equal in every field; nothing is drawn."""
    return [frozen.goal for frozen in jsonl.read(path, FrozenGoal)]


def check_human_goals(goals: Sequence[Goal], path: Path) -> list[int]:
    """Numbers of the goals whose text is not the one upstream published for that number in `human_goals.json`.

    Upstream's list has neither price limits nor quotation marks. Goals that one side lacks count as different.
    Raises `UserError` if the file is no list of texts.
    """
    try:
        published = [_published(text) for text in json.loads(path.read_bytes())]
    except (OSError, ValueError, TypeError, AttributeError):
        raise UserError(f"{path}: is no list of goal texts; fetch upstream's human_goals.json again.") from None
    ours = [_published(goal.instruction) for goal in goals]
    return [number for number, pair in enumerate(itertools.zip_longest(ours, published)) if pair[0] != pair[1]]


def _product(shop: Shop, goal: Goal) -> int:
    number = shop.number(goal.asin)
    if number is None:
        raise UserError(f"product {goal.asin} of a goal is not in this shop; open the shop the goals were made from.")
    return number


def _published(instruction: str) -> str:
    text = instruction.lower().replace('"', "").replace("'", "")
    return text.split(LIMIT_TEXT)[0].strip()


def _human(shop: Shop, prices: Sequence[float], rng: random.Random) -> Iterator[Goal]:
    for number in shop.instructed(human=True):
        product = shop.product(number)
        for instruction in product.human:
            limit = _limit(prices[number], rng)
            text = instruction.text.strip(".") + _limit_text(limit)
            yield _goal(product, text, instruction, limit, instruction.options)


def _synthetic(shop: Shop, prices: Sequence[float], rng: random.Random) -> Iterator[Goal]:
    """One goal for each combination of a product's option values; rare attributes weigh more."""
    unweighted: list[Goal] = []
    for number in shop.instructed(human=False):
        product = shop.product(number)
        limit = _limit(prices[number], rng)
        unweighted += _combinations(product, limit)
    counts = Counter(attribute for goal in unweighted for attribute in goal.attributes)
    for goal in unweighted:
        rarity = sum(1.0 / counts[attribute] for attribute in goal.attributes)
        yield replace(goal, weight=rarity / len(goal.attributes))


def _combinations(product: Product, limit: float) -> Iterator[Goal]:
    if not product.synthetic or not product.synthetic.attributes:
        raise UserError(f"product {product.asin}: its synthetic instruction has no attributes; mend items_ins_v2.")
    names = sorted(product.options)
    for values in itertools.product(*(product.options[name] for name in names)):
        options = dict(zip(names, values, strict=True))
        wishes = ", and ".join(f"{name}: {value}" for name, value in options.items())
        text = product.synthetic.text + (f" with {wishes}" if wishes else "") + _limit_text(limit)
        yield _goal(product, text, product.synthetic, limit, options)


def _goal(
    product: Product, text: str, instruction: Instruction, limit: float, options: tuple[str, ...] | dict[str, str]
) -> Goal:
    return Goal(
        asin=product.asin,
        category=product.category,
        query=product.query,
        name=product.title,
        product_category=product.product_category,
        instruction=text,
        attributes=instruction.attributes,
        price_upper=limit,
        options=options,
    )


def _limit(price: float, rng: random.Random) -> float:
    """A limit above the price; one above no more than one of `LIMITS` gets none, and draws nothing."""
    above = [limit for limit in LIMITS if limit > price][:4]
    return max(rng.sample(above, 2)) if len(above) >= 2 else NO_LIMIT


def _limit_text(limit: float) -> str:
    return "" if limit == NO_LIMIT else f"{LIMIT_TEXT} {limit:.2f} dollars"
