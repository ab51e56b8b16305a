"""Goals with price limits, drawn as by upstream, and the manifest that freezes them for reproducible tasks."""

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
from coevolve.records.base import Record

#: Price limits in dollars; a goal has the larger of two drawn from the first four limits above the price.
PRICE_LIMITS = [10.0 * step for step in range(1, 100)]
#: Price limit of a goal whose instruction states none.
NO_LIMIT = 1_000_000.0
LIMIT_TEXT = ", and price lower than"
#: Upstream's seed for shuffling the goals.
SHUFFLE_SEED = 233


@dataclass(frozen=True, slots=True)
class Goal:
    """A purchase that an instruction requests.

    `options` is a tuple of values (human goals) or a dict by name (synthetic goals). `price_upper` is in dollars, and
    1,000,000 if the instruction states no limit.
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
    """A goal with its number in the list and its product's price in dollars."""

    number: int
    price: float
    goal: Goal


class SyntheticGoal(Record):
    """The purchase of a synthetic task: a product, its options by name, and the price limit in dollars."""

    asin: str
    options: dict[str, str]
    price_upper: float


def synthetic_goal(shop: Shop, purchase: SyntheticGoal, instruction: str) -> Goal:
    """The goal of a synthetic task; raises `UserError` for a product that the shop does not sell."""
    number = shop.number(purchase.asin)
    if number is None:
        raise UserError(f"product {purchase.asin} of a synthetic task is not in this shop; make the tasks again.")
    product = shop.product(number)
    wanted = Instruction(instruction, requested_attributes(product))
    return _goal(product, instruction, wanted, purchase.price_upper, purchase.options)


def requested_attributes(product: Product) -> tuple[str, ...]:
    """The attributes that a synthetic task on the product asks for; the reward divides by their number."""
    return product.synthetic.attributes if product.synthetic else product.attributes


def price_limit(price: float) -> float:
    """The second price limit above a price, `NO_LIMIT` if there are fewer."""
    return next(iter([limit for limit in PRICE_LIMITS if limit > price][1:]), NO_LIMIT)


def draw_prices_and_goals(shop: Shop, rng: random.Random, human: bool) -> tuple[Sequence[float], list[Goal]]:
    """Prices in dollars by product number, and all goals in upstream's order: goal i is that of its `reset(i)`.

    Prices, and then price limits, are drawn from `rng`, as upstream does. The order of goals does not depend on `rng`,
    which is seeded again before the shuffle.
    """
    prices = shop.prices(rng)
    goals = list(_human_goals(shop, prices, rng) if human else _synthetic_goals(shop, prices, rng))
    rng.seed(SHUFFLE_SEED)
    rng.shuffle(goals)
    return prices, goals


def check_human_goals(goals: Sequence[Goal], path: Path) -> list[int]:
    """Numbers of the goals whose text differs from the one in upstream's published `human_goals.json`.

    Upstream's list has neither price limits nor quotation marks. A goal that is missing on one side counts as
    different. Raises `UserError` if the file is not a list of texts.
    """
    try:
        published = [_published_text(text) for text in json.loads(path.read_bytes())]
    except (OSError, ValueError, TypeError, AttributeError):
        raise UserError(f"{path}: is not a list of goal texts; fetch upstream's human_goals.json again.") from None
    drawn = [_published_text(goal.instruction) for goal in goals]
    return [number for number, pair in enumerate(itertools.zip_longest(drawn, published)) if pair[0] != pair[1]]


def _published_text(instruction: str) -> str:
    text = instruction.lower().replace('"', "").replace("'", "")
    return text.split(LIMIT_TEXT)[0].strip()


def _human_goals(shop: Shop, prices: Sequence[float], rng: random.Random) -> Iterator[Goal]:
    for number in shop.with_instructions(human=True):
        product = shop.product(number)
        for instruction in product.human:
            limit = _draw_price_limit(prices[number], rng)
            text = instruction.text.strip(".") + price_limit_text(limit)
            yield _goal(product, text, instruction, limit, instruction.options)


def _synthetic_goals(shop: Shop, prices: Sequence[float], rng: random.Random) -> Iterator[Goal]:
    """One goal for each combination of a product's option values; goals with rare attributes have larger weights."""
    unweighted: list[Goal] = []
    for number in shop.with_instructions(human=False):
        product = shop.product(number)
        limit = _draw_price_limit(prices[number], rng)
        unweighted += _combinations(product, limit)
    counts = Counter(attribute for goal in unweighted for attribute in goal.attributes)
    for goal in unweighted:
        rarity = sum(1.0 / counts[attribute] for attribute in goal.attributes)
        yield replace(goal, weight=rarity / len(goal.attributes))


def _combinations(product: Product, limit: float) -> Iterator[Goal]:
    if not product.synthetic or not product.synthetic.attributes:
        raise UserError(f"product {product.asin}: its synthetic instruction has no attributes; correct items_ins_v2.")
    names = sorted(product.options)
    for values in itertools.product(*(product.options[name] for name in names)):
        options = dict(zip(names, values, strict=True))
        option_text = ", and ".join(f"{name}: {value}" for name, value in options.items())
        text = product.synthetic.text + (f" with {option_text}" if option_text else "") + price_limit_text(limit)
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


def _draw_price_limit(price: float, rng: random.Random) -> float:
    """A limit above the price, drawn from `rng`; `NO_LIMIT`, without a draw, if fewer than two are above it."""
    above = [limit for limit in PRICE_LIMITS if limit > price][:4]
    return max(rng.sample(above, 2)) if len(above) >= 2 else NO_LIMIT


def price_limit_text(limit: float) -> str:
    """The limit as the end of an instruction; empty if there is none."""
    return "" if limit == NO_LIMIT else f"{LIMIT_TEXT} {limit:.2f} dollars"
