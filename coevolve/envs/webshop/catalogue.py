"""Reader of upstream's three product files, equivalent to its `load_products`, with bounded memory."""

import codecs
import contextlib
import json
import mmap
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from coevolve.errors import UserError

Json = dict[str, Any]

#: Upstream's product files; each may have a size suffix, but for the last.
FILE_NAMES = {
    "products": "items_shuffle.json",
    "attributes": "items_ins_v2.json",
    "instructions": "items_human_ins.json",
}
#: Price in dollars, and attributes, of a product whose entry has none.
DEFAULT_PRICING = (100.0,)
DEFAULT_ATTRIBUTES = ("DUMMY_ATTR",)
#: Bytes that are decoded to find an object, tried in turn; a longer object is an error.
WINDOW_BYTES = (1 << 14, 1 << 18, 1 << 24)
_SPACE = re.compile(rb"[ \t\n\r]*")
_decoder = json.JSONDecoder()


@dataclass(frozen=True, slots=True)
class Instruction:
    """Source of a product's goals: text without the price limit, attributes, and options (human instructions only)."""

    text: str
    attributes: tuple[str, ...]
    options: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Product:
    """A product of upstream's shop; upstream's data has neither ratings nor reviews.

    `options` maps lower-cased names to values in the page's order. `pricing` is one price or the two ends of a range,
    in dollars. `attributes` affect the reward but are not searched.
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
        """The price shown on pages: `$9.5`, or `$9.5 to $12.0`; the price paid for a range is drawn (`Shop.prices`)."""
        return " to ".join(f"${price}" for price in self.pricing)

    @property
    def document(self) -> str:
        """The text that the search engine indexes: title, description, first bullet and options, in lower case."""
        options = ", and ".join(f"{name}: {', '.join(values)}" for name, values in self.options.items())
        return " ".join((self.title, self.description, *self.bullets[:1], options)).lower()


@dataclass(frozen=True, slots=True)
class Catalogue:
    """Paths of upstream's files: products; attributes with synthetic instructions; human instructions."""

    products: Path
    attributes: Path
    instructions: Path

    @classmethod
    def find(cls, folder: Path) -> Self:
        """The three files in `folder`, with or without a size suffix; raises `UserError` unless each exists once."""
        names = "items_shuffle*.json", "items_ins_v2*.json", "items_human_ins.json"
        return cls(*(_single_file(folder, name) for name in names))

    def read(self, limit: int | None, skipped: Counter[str]) -> Iterator[tuple[int, Product, bool]]:
        """Yields bytes of the product file read so far, a product that is kept, and whether the shop sells it.

        Upstream's shop sells the products kept of the first `limit` entries, but its search engine indexes the first
        `limit` products kept of the whole file; the difference is yielded as not sold. Entries skipped among the first
        `limit` are counted in `skipped`, by reason. Raises `UserError` for an entry that upstream cannot load either.
        """
        attributes, instructions = _read_object(self.attributes), _read_object(self.instructions)
        kept: set[str] = set()
        for number, (position, entry) in enumerate(read_objects(self.products)):
            if len(kept) == limit:
                return
            sold = limit is None or number < limit
            with _naming_product(self.products, entry):
                asin = _text(entry, "asin")
            reason = _skip_reason(asin, kept)
            if not reason:
                kept.add(asin)
                yield position, self._product(entry, attributes.get(asin, {}), instructions.get(asin, ())), sold
            elif sold:
                skipped[reason] += 1

    def _product(self, entry: Json, attributes: Json, instructions: list[Json]) -> Product:
        with _naming_product(self.attributes, entry):
            attribute_texts = _texts(attributes, "attributes") if "attributes" in attributes else DEFAULT_ATTRIBUTES
            synthetic = _synthetic(attributes)
        with _naming_product(self.instructions, entry):
            human = tuple(_human(record) for record in instructions if record.get("instruction_attributes"))
        with _naming_product(self.products, entry):
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
                attributes=attribute_texts,
                human=human,
                synthetic=synthetic,
            )


def read_objects(path: Path) -> Iterator[tuple[int, Json]]:
    """The objects of a JSON array in a file of any size, each with the byte after its end, decoded as by `json.load`.

    Raises `UserError` naming the byte at which the file is truncated or is not a JSON array of objects.
    """
    if not path.stat().st_size:
        raise _malformed(path, 0, "`[` is expected")
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        position = _take(path, content, 0, b"[")
        while content[position : position + 1] != b"]":
            value, position = _object(path, content, position)
            yield position, value
            position = _after_space(content, position)
            if content[position : position + 1] != b"]":
                position = _take(path, content, position, b",")
        if (end := _after_space(content, position + 1)) < len(content):
            raise _malformed(path, end, "the array has ended")


def _after_space(content: mmap.mmap, position: int) -> int:
    space = _SPACE.match(content, position)
    return space.end() if space else position


def _take(path: Path, content: mmap.mmap, position: int, expected: bytes) -> int:
    """The position after `expected` and the white space around it."""
    position = _after_space(content, position)
    if content[position : position + 1] != expected:
        raise _malformed(path, position, f"`{expected.decode()}` is expected")
    return _after_space(content, position + 1)


def _object(path: Path, content: mmap.mmap, start: int) -> tuple[Json, int]:
    if content[start : start + 1] != b"{":
        raise _malformed(path, start, "an object is expected")
    problem = start, ""
    for size in WINDOW_BYTES:
        window = content[start : start + size]
        try:
            text, _ = codecs.utf_8_decode(window, "strict", len(window) < size)
            value, end = _decoder.raw_decode(text)
            return value, start + len(text[:end].encode())
        except UnicodeDecodeError as error:
            problem = start + error.start, "a byte is not valid UTF-8"
        except json.JSONDecodeError as error:
            problem = start + len(text[: error.pos].encode()), error.msg
    raise _malformed(path, *problem)


def _malformed(path: Path, byte: int, problem: str) -> UserError:
    return UserError(f"{path}: is damaged or truncated at byte {byte} ({problem}); fetch the file again.")


def _single_file(folder: Path, pattern: str) -> Path:
    matches = sorted(folder.glob(pattern))
    if len(matches) != 1:
        names = ", ".join(path.name for path in matches) or "none"
        raise UserError(f"{folder}: one file named {pattern} is needed ({names} found); put upstream's file there.")
    return matches[0]


def _read_object(path: Path) -> dict[str, Any]:
    """The content of a file that is one JSON object, with product ids as keys."""
    try:
        content = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: is damaged or truncated ({error}); fetch the file again.") from None
    if not isinstance(content, dict):
        raise UserError(f"{path}: is not a JSON object with product ids as keys; fetch the file again.")
    return content


def _skip_reason(asin: str, kept: set[str]) -> str:
    """Why `load_products` skips an entry with this id; "" if it keeps it."""
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
    """One price or two, in dollars, in a text like `$9.50` or `$1,010.50 - $2,000`."""
    if not text:
        return DEFAULT_PRICING
    prices = tuple(float(re.sub(r"[^\d.]", "", part)) for part in text.split("$")[1:])
    if not prices:
        raise ValueError(f"pricing {text!r} has no `$`")
    return prices[:2]


def _options(groups: dict[str, list[Json] | None] | None) -> dict[str, tuple[str, ...]]:
    """Values by lower-cased name; of equal names the last one's values are kept, in the first one's position."""
    return {
        name.lower(): tuple(_text(option, "value").strip().replace("/", " | ").lower() for option in group)
        for name, group in (groups or {}).items()
        if group is not None
    }


def _synthetic(attributes: Json) -> Instruction | None:
    if attributes.get("instruction") is None:
        return None
    texts = _texts(attributes, "instruction_attributes") if attributes.get("instruction_attributes") is not None else ()
    return Instruction(_text(attributes, "instruction"), texts)


def _human(record: Json) -> Instruction:
    texts, options = _texts(record, "instruction_attributes"), _texts(record, "instruction_options")
    return Instruction(_text(record, "instruction"), texts, options)


def _text(entry: Json, key: str) -> str:
    if not isinstance(entry.get(key), str):
        raise ValueError(f"`{key}` is not a text")
    return str(entry[key])


def _texts(entry: Json, key: str) -> tuple[str, ...]:
    if not isinstance(entry.get(key), list) or not all(isinstance(text, str) for text in entry[key]):
        raise ValueError(f"`{key}` is not a list of texts")
    return tuple(entry[key])


@contextlib.contextmanager
def _naming_product(path: Path, entry: Json) -> Iterator[None]:
    """Turn an error into a `UserError` that names the product and its file."""
    try:
        yield
    except (ValueError, TypeError, AttributeError) as error:
        raise UserError(f"{path}: product {entry.get('asin')!r}: {error}; fetch the file again.") from None
