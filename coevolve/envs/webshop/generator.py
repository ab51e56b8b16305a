"""Catalogues of any size in upstream's three-file schema, in invented words: what tests and benchmarks shop in.

Nothing here comes from a real shop. Lengths, frequencies of words and the mix of fields are such that an index or a
store of a generated catalogue costs what one of upstream's costs.
"""

from __future__ import annotations

import collections
import contextlib
import json
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from coevolve import seeds
from coevolve.envs.webshop.invented import CATEGORIES, GROUPS, REQUESTS, TRAITS, Words, invented
from coevolve.envs.webshop.oddities import spoil
from coevolve.envs.webshop.stream import Json
from coevolve.progress import Progress
from coevolve.storage import files

_FILLING = dict.fromkeys(
    (
        *("product_information", "brand_url", "list_price", "availability_quantity", "availability_status"),
        *("total_reviews", "total_answered_questions", "average_rating", "seller_id", "seller_name"),
        *("fulfilled_by_amazon", "fast_track_message", "aplus_present", "small_description_old"),
    ),
    "",
)


@dataclass(frozen=True, slots=True)
class Shares:
    """Shares of products, in [0, 1]: with human instructions, with a synthetic one, near copies of others, odd ones."""

    human: float = 0.01
    synthetic: float = 0.05
    copies: float = 0.05
    odd: float = 0.02


@dataclass(frozen=True, slots=True)
class _Kind:
    """A sort of product: what it is called, and where in the shop it stands."""

    noun: str
    category: str
    path: str


@dataclass(frozen=True, slots=True)
class _Made:
    """An entry of the product file, and what it was made from."""

    entry: Json
    kind: _Kind
    traits: list[str]


def generate(folder: Path, products: int, seed: int = 0, shares: Shares = Shares()) -> None:
    """Write the three files of a catalogue of which loading keeps this many products; equal arguments, equal bytes.

    Some further entries are there to be skipped. Memory does not grow with the size.
    """
    maker = _Maker(seed, products, shares)
    progress = Progress("webshop: products generated")
    with files.directory(folder) as aside, contextlib.ExitStack() as stack:
        items = stack.enter_context(_Collection(aside / "items_shuffle.json", ("[", "]")))
        attributes = stack.enter_context(_Collection(aside / "items_ins_v2.json", ("{", "}")))
        instructions = stack.enter_context(_Collection(aside / "items_human_ins.json", ("{", "}")))
        for done in range(1, products + 1):
            made = maker.product()
            items.add(made.entry)
            known = maker.attributes(made)
            attributes.add(known, made.entry["asin"])
            if known and (asked := maker.instructions(made)):
                instructions.add(asked, made.entry["asin"])
            if unwanted := maker.unwanted(made):
                items.add(unwanted)
            progress.report(done, products)


class _Collection:
    """A file of one JSON array or object that grows by one item at a time."""

    def __init__(self, path: Path, brackets: tuple[str, str]) -> None:
        self._file = path.open("w", encoding="utf-8")
        opening, self._closing = brackets
        self._file.write(opening)
        self._comma = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.write(self._closing)
        self._file.close()

    def add(self, item: object, key: str = "") -> None:
        """Append an item, under a key if the file is an object."""
        name = f"{json.dumps(key)}: " if key else ""
        self._file.write(f"{self._comma}{name}{json.dumps(item)}")
        self._comma = ", "


class _Maker:
    """Makes the products of one catalogue, one after another."""

    def __init__(self, seed: int, products: int, shares: Shares) -> None:
        self._rng = random.Random(seeds.derive(seed, "webshop products"))
        self._words = Words(seed)
        self._shares = shares
        self._kinds = _kinds(min(600, max(8, products // 25)), self._rng)
        self._recent: collections.deque[_Made] = collections.deque(maxlen=200)
        self._number = 0

    def product(self) -> _Made:
        """The next product: new, or a near copy of one before; now and then with something odd about it."""
        copied = self._recent and self._rng.random() < self._shares.copies
        made = self._copy(self._rng.choice(self._recent)) if copied else self._new()
        if self._rng.random() < self._shares.odd:
            spoil(made.entry, self._rng, self._words.take(2))
        self._recent.append(made)
        return made

    def attributes(self, made: _Made) -> Json:
        """What `items_ins_v2` says of a product: a few have no attributes there, some an instruction."""
        if self._rng.random() < self._shares.synthetic:
            asked = made.traits[:2]
            text = f"Find me {', '.join(asked)} {made.kind.noun}"
            return {"attributes": made.traits, "instruction": text, "instruction_attributes": asked}
        return {"attributes": made.traits} if self._rng.random() > self._shares.odd else {}

    def instructions(self, made: _Made) -> list[Json]:
        """What people asked for that this product has; mostly nobody asked."""
        if self._rng.random() >= self._shares.human:
            return []
        return [self._instruction(made) for _ in range(self._rng.choice((1, 1, 1, 2, 3)))]

    def unwanted(self, made: _Made) -> Json | None:
        """Now and then an entry that loading skips: a repeated id, none, or one that is too long."""
        if self._rng.random() >= self._shares.odd / 4:
            return None
        asin = self._rng.choice((made.entry["asin"], "nan", f"{made.entry['asin']}X"))
        return {**made.entry, "asin": asin, "name": " ".join(self._words.take(8))}

    def _new(self) -> _Made:
        rng, words = self._rng, self._words
        kind = self._kinds[int(len(self._kinds) * rng.random() ** 2)]
        traits = rng.sample(TRAITS, rng.randint(1, 5))
        asin = self._asin()
        name = f"{' '.join(words.take(rng.randint(3, 10)))} {kind.noun}, {traits[0]} for {words.take(1)[0]}".title()
        bullets = [words.prose(rng.randint(8, 32)) for _ in range(rng.randint(3, 7))]
        bullets[0] = f"{traits[-1].upper()} - {bullets[0]}"
        length = min(1500, int(rng.lognormvariate(4.7, 0.8)))
        entry = {
            **_FILLING,
            "name": name,
            "brand": name.split()[0],
            "full_description": words.prose(length) if rng.random() < 0.8 else "",
            "pricing": _pricing(rng),
            "images": [f"https://images.invalid/{asin}/{number}.jpg" for number in range(rng.randint(1, 7))],
            "product_category": kind.path,
            "small_description": bullets,
            "customization_options": _options(rng, asin),
            "asin": asin,
            "category": kind.category,
            "query": f"{kind.noun}s",
        }
        return _Made(entry, kind, traits)

    def _copy(self, made: _Made) -> _Made:
        """The same product under another id, at another price, half the time with one more word in its title."""
        more = f" {self._words.take(1)[0]}" if self._rng.random() < 0.5 else ""
        changed = {"asin": self._asin(), "name": made.entry["name"] + more, "pricing": _pricing(self._rng)}
        return _Made({**made.entry, **changed}, made.kind, made.traits)

    def _asin(self) -> str:
        """An id that no other product has; the order of ids is not the order of products."""
        self._number += 1
        return f"B0{self._number * 2_654_435_761 % (1 << 32):08X}"

    def _instruction(self, made: _Made) -> Json:
        rng = self._rng
        asked = rng.sample(made.traits, min(len(made.traits), rng.randint(1, 3)))
        shown = {name.lower(): group for name, group in (made.entry["customization_options"] or {}).items()}
        groups = [group for group in shown.values() if group]
        values = [rng.choice(group)["value"] for group in rng.sample(groups, min(len(groups), 2))]
        options = [value.strip().replace("/", " | ").lower() for value in values]
        wishes = "".join(f", in {option}" for option in options)
        return {
            "asin": made.entry["asin"],
            "instruction": rng.choice(REQUESTS).format(noun=made.kind.noun, traits=" and ".join(asked), options=wishes),
            "attributes": made.traits,
            "options": options,
            "instruction_attributes": asked if rng.random() > 0.05 else [],
            "instruction_options": options,
            "assignment_id": "0",
            "worker_id": "0",
        }


def _kinds(count: int, rng: random.Random) -> list[_Kind]:
    """Sorts of products that share shelves and head words, as a glass desk and an oak desk do."""
    plain = [word for word in invented() if word.isalpha()]
    shelves = [(rng.choice(CATEGORIES), rng.choice(plain), rng.choice(plain)) for _ in range(max(1, count // 4))]
    kinds = []
    for _ in range(count):
        category, department, head = rng.choice(shelves)
        noun = f"{rng.choice(plain)} {head}"
        kinds.append(_Kind(noun, category, " \u203a ".join((category, department, noun)).title()))
    return kinds


def _pricing(rng: random.Random) -> str:
    low = rng.lognormvariate(3.2, 0.9)
    sort = rng.random()
    if sort < 0.1:
        return ""
    return f"${low:,.2f}" if sort < 0.88 else f"${low:,.2f}$ {low * rng.uniform(1.1, 3):,.2f}"


def _options(rng: random.Random, asin: str) -> dict[str, list[Json]] | str:
    names = rng.sample(sorted(GROUPS), rng.choices((0, 1, 2, 3), (35, 40, 20, 5))[0])
    return {name: _group(rng, GROUPS[name], asin) for name in names} or ""


def _group(rng: random.Random, values: list[str], asin: str) -> list[Json]:
    chosen = rng.sample(values, min(len(values), 1 + int(rng.expovariate(0.35))))
    return [
        {"value": value, "image": f"https://images.invalid/{asin}/{place}.jpg"} for place, value in enumerate(chosen)
    ]
