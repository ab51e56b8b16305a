"""Upstream's three product files, read as its `load_products` reads them, without a whole shop in memory."""

from __future__ import annotations

import contextlib
import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any, Self

from coevolve.envs.webshop import stream
from coevolve.envs.webshop.stream import Json
from coevolve.errors import UserError

#: What a product gets whose file has no price, in dollars, or no attributes.
NO_PRICE = (100.0,)
NO_ATTRIBUTES = ("DUMMY_ATTR",)


@dataclass(frozen=True, slots=True)
class Instruction:
    """What goals of a product are made of: text without the price limit, attributes, and options (human ones only)."""

    text: str
    attributes: tuple[str, ...]
    options: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Product:
    """A product as upstream's shop knows it; upstream's data has neither ratings nor reviews.

    `options` maps lower-cased names to values in the page's order; `pricing` is one price or the two ends of a range,
    in dollars; `attributes` are known to the reward, not to the search engine.
    """

    asin: str
    title: str
    description: str
    category: str | None
    query: str
    product_category: str
    bullets: tuple[str, ...]
    pricing: tuple[float, ...]
    options: dict[str, tuple[str, ...]]
    attributes: tuple[str, ...]
    human: tuple[Instruction, ...] = ()
    synthetic: Instruction | None = None

    @property
    def price_tag(self) -> str:
        """The price a page shows: `$9.5`, or `$9.5 to $12.0`; what is paid for a range is drawn (`Shop.prices`)."""
        return " to ".join(f"${price}" for price in self.pricing)

    @property
    def document(self) -> str:
        """The text the search engine indexes: title, description, first bullet and options, lower-cased."""
        options = ", and ".join(f"{name}: {', '.join(values)}" for name, values in self.options.items())
        return " ".join((self.title, self.description, *self.bullets[:1], options)).lower()


@dataclass(frozen=True, slots=True)
class Catalogue:
    """Upstream's files: products; attributes with synthetic instructions; human instructions."""

    products: Path
    attributes: Path
    instructions: Path

    @classmethod
    def find(cls, folder: Path) -> Self:
        """The three files in `folder`, with or without a size suffix; raises `UserError` unless each is there once."""
        names = "items_shuffle*.json", "items_ins_v2*.json", "items_human_ins.json"
        return cls(*(_only(folder, name) for name in names))

    def read(self, limit: int | None, skipped: Counter[str]) -> Iterator[tuple[int, Product, bool]]:
        """Bytes of the product file read so far, each product kept, in the file's order, and whether it is sold.

        Upstream sells what it keeps of the first `limit` entries, but its search engine holds the first `limit`
        products that it keeps of the whole file: the surplus follows, unsold. `skipped` is told what was left out of
        the first `limit` entries and why. Raises `UserError` at an entry that upstream could not load either.
        """
        attributes, instructions = _whole(self.attributes), _whole(self.instructions)
        kept: set[str] = set()
        for number, (position, entry) in enumerate(stream.objects(self.products)):
            if len(kept) == limit:
                return
            sold = limit is None or number < limit
            with _blame(self.products, entry):
                asin = _text(entry, "asin")
            reason = _reason(asin, kept)
            if not reason:
                kept.add(asin)
                yield position, self._product(entry, attributes.get(asin, {}), instructions.get(asin, ())), sold
            elif sold:
                skipped[reason] += 1

    def _product(self, entry: Json, attributes: Json, instructions: list[Json]) -> Product:
        with _blame(self.attributes, entry):
            known = _texts(attributes, "attributes") if "attributes" in attributes else NO_ATTRIBUTES
            synthetic = _synthetic(attributes)
        with _blame(self.instructions, entry):
            human = tuple(_human(record) for record in instructions if record.get("instruction_attributes"))
        with _blame(self.products, entry):
            return Product(
                asin=entry["asin"],
                title=_text(entry, "name"),
                description=_text(entry, "full_description"),
                category=None if entry.get("category", "") is None else _text(entry, "category"),
                query=_text(entry, "query").lower().strip(),
                product_category=_text(entry, "product_category"),
                bullets=_bullets(entry),
                pricing=_pricing(entry.get("pricing")),
                options=_options(entry.get("customization_options")),
                attributes=known,
                human=human,
                synthetic=synthetic,
            )


def _only(folder: Path, pattern: str) -> Path:
    found = sorted(folder.glob(pattern))
    if len(found) != 1:
        there = ", ".join(path.name for path in found) or "none"
        raise UserError(f"{folder}: one file named {pattern} is needed ({there} found); put upstream's file there.")
    return found[0]


def _whole(path: Path) -> dict[str, Any]:
    """A file that is one JSON object by product id."""
    try:
        content = json.loads(path.read_bytes())
    except ValueError as error:
        raise UserError(f"{path}: is damaged or cut off ({error}); fetch the file again.") from None
    if not isinstance(content, dict):
        raise UserError(f"{path}: is no JSON object by product id; fetch the file again.")
    return content


def _reason(asin: str, kept: set[str]) -> str:
    """Why `load_products` leaves out an entry with this id; "" where it does not."""
    if asin == "nan":
        return "no id"
    if len(asin) > 10:
        return "id longer than 10"
    return "repeated id" if asin in kept else ""


def _bullets(entry: Json) -> tuple[str, ...]:
    if isinstance(entry.get("small_description"), list):
        return _texts(entry, "small_description")
    return (_text(entry, "small_description"),)


def _pricing(text: str | None) -> tuple[float, ...]:
    """One price or two, in dollars, out of a text like `$9.50` or `$1,010.50 - $2,000`."""
    if not text:
        return NO_PRICE
    prices = tuple(_price(part) for part in text.split("$")[1:])
    if not prices:
        raise ValueError(f"pricing {text!r} has no `$`")
    return prices[:2]


def _price(text: str) -> float:
    try:
        return float(Decimal(re.sub(r"[^\d.]", "", text)))
    except InvalidOperation:
        raise ValueError(f"pricing has no number after a `$` but {text!r}") from None


def _options(groups: dict[str, list[Json] | None] | None) -> dict[str, tuple[str, ...]]:
    """Values by lower-cased name; of names that become equal the last one's values stay, at the first one's place."""
    return {
        name.lower(): tuple(_text(option, "value").strip().replace("/", " | ").lower() for option in group)
        for name, group in (groups or {}).items()
        if group is not None
    }


def _synthetic(attributes: Json) -> Instruction | None:
    if attributes.get("instruction") is None:
        return None
    known = attributes.get("instruction_attributes") is not None
    return Instruction(_text(attributes, "instruction"), _texts(attributes, "instruction_attributes") if known else ())


def _human(record: Json) -> Instruction:
    return Instruction(
        _text(record, "instruction"),
        _texts(record, "instruction_attributes"),
        _texts(record, "instruction_options"),
    )


def _text(entry: Json, key: str) -> str:
    if not isinstance(entry.get(key), str):
        raise ValueError(f"`{key}` is no text")
    return str(entry[key])


def _texts(entry: Json, key: str) -> tuple[str, ...]:
    if not isinstance(entry.get(key), list) or not all(isinstance(text, str) for text in entry[key]):
        raise ValueError(f"`{key}` is no list of texts")
    return tuple(entry[key])


@contextlib.contextmanager
def _blame(path: Path, entry: Json) -> Iterator[None]:
    """What is wrong with one product as a sentence that names it and its file."""
    try:
        yield
    except (ValueError, TypeError, AttributeError) as error:
        raise UserError(f"{path}: product {entry.get('asin')!r}: {error}; fetch the file again.") from None
