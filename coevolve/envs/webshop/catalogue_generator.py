"""Generator of synthetic catalogues of any size in upstream's three-file schema, for suites, tests and benchmarks.

Nothing is taken from a real shop. Text lengths, word frequencies and the mix of fields are chosen so that building and
searching a generated catalogue costs as much as one of upstream's of the same size.
"""

import collections
import contextlib
import functools
import itertools
import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from coevolve import seeds, shipped
from coevolve.envs.webshop.catalogue import FILE_NAMES, Json
from coevolve.progress import Progress
from coevolve.storage import folders

#: Lists of words and of texts for edge cases, by name. `function_words` are the most frequent words of the vocabulary;
#: the others are made of `onsets`, `nuclei` and `forms`, whose suffixes, hyphens and digits exercise the analyzer.
WORD_LISTS = json.loads((shipped.DATA / "webshop" / "synthetic_words.json").read_text(encoding="utf-8"))
TRAITS = [
    f"{how} {what}"
    for how in ("easy", "quick", "hand", "double", "extra", "long", "non", "super")
    for what in ("fold", "clean", "made", "lasting", "grip", "seal", "woven", "dry")
]
#: Number of synthetic words.
VOCABULARY_SIZE = 50_000
_EMPTY_FIELDS = dict.fromkeys(
    (
        *("product_information", "brand_url", "list_price", "availability_quantity", "availability_status"),
        *("total_reviews", "total_answered_questions", "average_rating", "seller_id", "seller_name"),
        *("fulfilled_by_amazon", "fast_track_message", "aplus_present", "small_description_old"),
    ),
    "",
)


@dataclass(frozen=True, slots=True)
class ProductShares:
    """Shares of products, in [0, 1]: with human instructions, with a synthetic one, near copies, with edge cases."""

    human: float = 0.01
    synthetic: float = 0.05
    copies: float = 0.05
    edge_cases: float = 0.02


@dataclass(frozen=True, slots=True)
class _GeneratedProduct:
    """An entry of the product file with the noun and traits that it was generated from."""

    entry: Json
    noun: str
    traits: list[str]


def generate(folder: Path, products: int, seed: int = 0, shares: ProductShares = ProductShares()) -> None:
    """Write the three files of a catalogue from which `products` products are loaded; equal arguments give equal bytes.

    The product file also has entries that loading skips. Memory use does not depend on the size.
    """
    generator = _ProductGenerator(seed, products, shares)
    progress = Progress("webshop: products generated")
    with folders.directory(folder) as partial, contextlib.ExitStack() as stack:
        add_item, add_attributes, add_instructions = (
            stack.enter_context(_json_writer(partial / name, brackets))
            for name, brackets in zip(FILE_NAMES.values(), ("[]", "{}", "{}"), strict=True)
        )
        for done in range(1, products + 1):
            product = generator.product()
            add_item(json.dumps(product.entry))
            key, attributes = json.dumps(product.entry["asin"]), generator.attributes(product)
            add_attributes(f"{key}: {json.dumps(attributes)}")
            if attributes and (instructions := generator.instructions(product)):
                add_instructions(f"{key}: {json.dumps(instructions)}")
            if skipped := generator.skipped_entry(product):
                add_item(json.dumps(skipped))
            progress.report(done, products)


@contextlib.contextmanager
def _json_writer(path: Path, brackets: str) -> Iterator[Callable[[str], object]]:
    """Yields a function that appends an item to a file of one JSON array or object."""
    commas = itertools.chain([""], itertools.repeat(", "))
    with path.open("w", encoding="utf-8") as file:
        file.write(brackets[0])
        yield lambda item: file.write(next(commas) + item)
        file.write(brackets[1])


class _ProductGenerator:
    def __init__(self, seed: int, products: int, shares: ProductShares) -> None:
        self._rng = random.Random(seeds.derive(seed, "webshop products"))
        self._words = WordStream(seed)
        self._shares = shares
        self._types = _product_types(min(600, max(8, products // 25)), self._rng)
        self._recent: collections.deque[_GeneratedProduct] = collections.deque(maxlen=200)
        self._number = 0

    def product(self) -> _GeneratedProduct:
        """The next product: new, or a near copy of a recent one; some with edge cases."""
        copied = self._recent and self._rng.random() < self._shares.copies
        product = self._copy(self._rng.choice(self._recent)) if copied else self._new()
        if self._rng.random() < self._shares.edge_cases:
            add_edge_cases(product.entry, self._rng, self._words.take(2))
        self._recent.append(product)
        return product

    def attributes(self, product: _GeneratedProduct) -> Json:
        """A product's entry in `items_ins_v2`: a few have no attributes, some have an instruction."""
        if self._rng.random() < self._shares.synthetic:
            requested = product.traits[:2]
            text = f"Find me {', '.join(requested)} {product.noun}"
            return {"attributes": product.traits, "instruction": text, "instruction_attributes": requested}
        return {"attributes": product.traits} if self._rng.random() > self._shares.edge_cases else {}

    def instructions(self, product: _GeneratedProduct) -> list[Json]:
        """Human instructions for a product; most products have none."""
        if self._rng.random() >= self._shares.human:
            return []
        return [self._instruction(product) for _ in range(self._rng.choice((1, 1, 1, 2, 3)))]

    def skipped_entry(self, product: _GeneratedProduct) -> Json | None:
        """For some products, an entry that loading skips: its id is repeated, missing or too long."""
        if self._rng.random() >= self._shares.edge_cases / 4:
            return None
        asin = self._rng.choice((product.entry["asin"], "nan", f"{product.entry['asin']}X"))
        return {**product.entry, "asin": asin, "name": " ".join(self._words.take(8))}

    def _new(self) -> _GeneratedProduct:
        rng, words = self._rng, self._words
        noun, category, path = self._types[int(len(self._types) * rng.random() ** 2)]
        traits = rng.sample(TRAITS, rng.randint(1, 5))
        asin = self._asin()
        name = f"{' '.join(words.take(rng.randint(3, 10)))} {noun}, {traits[0]} for {words.take(1)[0]}".title()
        bullets = [words.prose(rng.randint(8, 32)) for _ in range(rng.randint(3, 7))]
        bullets[0] = f"{traits[-1].upper()} - {bullets[0]}"
        length = min(1500, int(rng.lognormvariate(4.7, 0.8)))
        entry = {
            **_EMPTY_FIELDS,
            "name": name,
            "brand": name.split()[0],
            "full_description": words.prose(length) if rng.random() < 0.8 else "",
            "pricing": _pricing(rng),
            "images": [f"https://images.invalid/{asin}/{number}.jpg" for number in range(rng.randint(1, 7))],
            "product_category": path,
            "small_description": bullets,
            "customization_options": _options(rng, asin),
            "asin": asin,
            "category": category,
            "query": f"{noun}s",
        }
        return _GeneratedProduct(entry, noun, traits)

    def _copy(self, product: _GeneratedProduct) -> _GeneratedProduct:
        """The same product with another id and price, and in half of the cases one more word in its title."""
        suffix = f" {self._words.take(1)[0]}" if self._rng.random() < 0.5 else ""
        changed = {"asin": self._asin(), "name": product.entry["name"] + suffix, "pricing": _pricing(self._rng)}
        return _GeneratedProduct({**product.entry, **changed}, product.noun, product.traits)

    def _asin(self) -> str:
        """A unique id; the order of ids differs from the order of products."""
        self._number += 1
        return f"B0{self._number * 2_654_435_761 % (1 << 32):08X}"

    def _instruction(self, product: _GeneratedProduct) -> Json:
        rng = self._rng
        requested = rng.sample(product.traits, min(len(product.traits), rng.randint(1, 3)))
        groups_by_name = {name.lower(): group for name, group in (product.entry["customization_options"] or {}).items()}
        groups = [group for group in groups_by_name.values() if group]
        values = [rng.choice(group)["value"] for group in rng.sample(groups, min(len(groups), 2))]
        options = [value.strip().replace("/", " | ").lower() for value in values]
        option_text = "".join(f", in {option}" for option in options)
        return {
            "asin": product.entry["asin"],
            "instruction": rng.choice(WORD_LISTS["requests"]).format(
                noun=product.noun, traits=" and ".join(requested), options=option_text
            ),
            "attributes": product.traits,
            "options": options,
            "instruction_attributes": requested if rng.random() > 0.05 else [],
            "instruction_options": options,
            "assignment_id": "0",
            "worker_id": "0",
        }


def _product_types(count: int, rng: random.Random) -> list[tuple[str, str, str]]:
    """Noun, category and path of product types; groups share department and head noun, like glass and oak desks."""
    words = [word for word in synthetic_vocabulary() if word.isalpha()]
    choices = (WORD_LISTS["categories"], words, words)
    groups = [tuple(map(rng.choice, choices)) for _ in range(max(1, count // 4))]
    types = []
    for _ in range(count):
        category, department, head = rng.choice(groups)
        noun = f"{rng.choice(words)} {head}"
        types.append((noun, category, " \u203a ".join((category, department, noun)).title()))
    return types


def _pricing(rng: random.Random) -> str:
    low = rng.lognormvariate(3.2, 0.9)
    draw = rng.random()
    if draw < 0.1:
        return ""
    return f"${low:,.2f}" if draw < 0.88 else f"${low:,.2f}$ {low * rng.uniform(1.1, 3):,.2f}"


def _options(rng: random.Random, asin: str) -> dict[str, list[Json]] | str:
    groups = WORD_LISTS["option_groups"]
    names = rng.sample(sorted(groups), rng.choices((0, 1, 2, 3), (35, 40, 20, 5))[0])
    return {name: _group(rng, groups[name], asin) for name in names} or ""


def _group(rng: random.Random, values: list[str], asin: str) -> list[Json]:
    chosen = rng.sample(values, min(len(values), 1 + int(rng.expovariate(0.35))))
    return [
        {"value": value, "image": f"https://images.invalid/{asin}/{number}.jpg"} for number, value in enumerate(chosen)
    ]


def add_edge_cases(entry: Json, rng: random.Random, words: list[str]) -> None:
    """Apply three random edge cases to an entry of the product file; unusual texts may contain the two `words`."""
    for apply in rng.sample(_EDGE_CASES, 3):
        apply(entry, rng, rng.choice(WORD_LISTS["edge_case_texts"]).format(*words))


def _add_option_group(entry: Json, name: str, group: list[Json] | None) -> None:
    entry["customization_options"] = {**(entry["customization_options"] or {}), name: group}


#: Edge cases of products: unusual texts, empty fields, unusual prices, options with the names of buttons.
_EDGE_CASES: tuple[Callable[[Json, random.Random, str], None], ...] = (
    lambda entry, rng, text: entry.update(name=f"{entry['name']} {text}"),
    lambda entry, rng, text: entry.update(name=f"{text} {entry['name']}"),
    lambda entry, rng, text: entry.update(name=rng.choice(("", text))),
    lambda entry, rng, text: entry.update(full_description=f"{text} {entry['full_description']} {text}"),
    lambda entry, rng, text: entry.update(full_description=rng.choice(("", "   ", text))),
    lambda entry, rng, text: entry.update(small_description=rng.choice(("", text, f"{text}, and more"))),
    lambda entry, rng, text: entry.update(small_description=[text, "", text]),
    lambda entry, rng, text: entry.update(pricing=rng.choice(WORD_LISTS["edge_case_prices"])),
    lambda entry, rng, text: entry.update(query=f" {text.strip()} {entry['query'].upper()} "),
    lambda entry, rng, text: entry.update(product_category=rng.choice(("", text, f"{entry['category']} \u203a"))),
    lambda entry, rng, text: _add_option_group(
        entry, "COLOR", [{"value": value} for value in rng.sample(WORD_LISTS["edge_case_option_values"], 3)]
    ),
    lambda entry, rng, text: _add_option_group(entry, f"Trim {text}", [{"value": text}, {"value": "Red"}]),
    lambda entry, rng, text: _add_option_group(entry, "Empty", rng.choice((None, []))),
)


class WordStream:
    """An infinite stream of words that follow Zipf's law; equal seeds give equal streams."""

    def __init__(self, seed: int) -> None:
        self._rng = seeds.generator(seed, "webshop words")
        self._table = _zipf_table()
        self._buffer: list[str] = []

    def take(self, count: int) -> list[str]:
        """The next `count` words."""
        if len(self._buffer) < count:
            self._buffer = self._table[self._rng.integers(0, len(self._table), count + (1 << 16))].tolist()
        taken = self._buffer[-count:]
        del self._buffer[-count:]
        return taken

    def prose(self, count: int) -> str:
        """Sentences of `count` words in total."""
        words = self.take(count)
        return " ".join(f"{' '.join(words[at : at + 11]).capitalize()}." for at in range(0, count, 11))


@functools.cache
def synthetic_vocabulary() -> tuple[str, ...]:
    """The synthetic words, the same in all catalogues, in order of decreasing frequency."""
    rng = random.Random(seeds.derive(0, "webshop vocabulary"))
    onsets, nuclei, forms = (WORD_LISTS[name].split() for name in ("onsets", "nuclei", "forms"))
    words: dict[str, None] = {}
    while len(words) < VOCABULARY_SIZE:
        stem = "".join(rng.choice(onsets) + rng.choice(nuclei) for _ in range(rng.randint(1, 3)))
        words[rng.choice(forms).format(stem, rng.randint(2, 999))] = None
    return tuple(words)


@functools.cache
def _zipf_table() -> NDArray[np.object_]:
    """A million words, each repeated in proportion to its frequency under Zipf's law."""
    ranked = np.array([*WORD_LISTS["function_words"].split(), *synthetic_vocabulary()], dtype=object)
    mass = np.cumsum(1.0 / (np.arange(len(ranked)) + 2.7))
    ranks = np.searchsorted(mass, (np.arange(1 << 20) + 0.5) / (1 << 20) * mass[-1])
    table: NDArray[np.object_] = ranked[ranks]
    return table
