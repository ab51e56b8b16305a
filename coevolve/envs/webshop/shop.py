"""The shop: a folder that is built once from upstream's files, and memory-mapped by all workers."""

from __future__ import annotations

import dataclasses
import json
import math
import mmap
import random
from array import array
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from coevolve.envs.webshop import search_index
from coevolve.envs.webshop.catalogue import Catalogue, Instruction, Product
from coevolve.envs.webshop.key_table import (
    KeyTable,
    Numbers,
    decode_text,
    encode_text,
    entry_slice,
    memory_map,
    write_key_table,
)
from coevolve.errors import UserError
from coevolve.progress import Progress
from coevolve.records.base import Record
from coevolve.storage import files, folders, jsonl, origin

#: Most search results, and number of random products, in upstream's shop.
MAX_HITS = 50

META, RECORDS, INDEX = "meta.json", "products.jsonl", "index"
TABLES = "asins", "attributes", "categories", "queries"
#: Ends of the records in bytes; prices in dollars, with upper ends of ranges (NaN: none); numbers with instructions.
COLUMNS = {"ends": "q", "low": "d", "high": "d", "human": "i", "synthetic": "i"}


class ShopMeta(Record):
    """Provenance of a shop: sha256 by source file, limit of entries, products kept, entries skipped by reason.

    `format` is the version of the folder's layout. `files` holds the sizes in bytes of all other files of the folder.
    """

    format: Literal[1]
    sources: dict[str, str]
    limit: int | None
    products: int
    skipped: dict[str, int]
    versions: dict[str, str]
    files: dict[str, int]


class Shop:
    """Products by number, in upstream's loading order, with the search engine; read-only and memory-mapped.

    Raises `UserError` if the folder has no shop, a damaged one or one of another format.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.meta = folder, _read_meta(folder)
        with (folder / RECORDS).open("rb") as file:
            self._records = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self._ends, self._low, self._high, self._human, self._synthetic = (
            memory_map(folder / f"{name}.npy") for name in COLUMNS
        )
        self._asins, self._attributes, self._categories, self._queries = (KeyTable(folder / name) for name in TABLES)
        self._index = search_index.SearchIndex(folder / INDEX)

    @classmethod
    def build(cls, catalogue: Path, folder: Path, products: int | None = None, workers: int = 1) -> Self:
        """Build a shop in `folder` from a folder of upstream's three files, or from their first `products` entries.

        The folder appears complete or not at all. Raises `UserError` for a missing, damaged or truncated file.
        """
        source = Catalogue.find(catalogue)
        with folders.directory(folder) as partial:
            skipped: Counter[str] = Counter()
            count = _write_products(partial, _read_with_progress(source, products, skipped))
            search_index.build(_documents(partial), partial / INDEX, workers)
            meta = ShopMeta(
                format=1,
                sources={path.name: files.sha256(path) for path in dataclasses.astuple(source)},
                limit=products,
                products=count,
                skipped=dict(sorted(skipped.items())),
                versions=origin.versions(),
                files=_file_sizes(partial),
            )
            jsonl.write(partial / META, [meta])
        return cls(folder)

    def __len__(self) -> int:
        return self.meta.products

    def product(self, number: int) -> Product:
        """The product with this number, counted from 0."""
        return _product(self._records, self._ends, number)

    def number(self, asin: str) -> int | None:
        """Number of the product with this id; None if the shop does not sell it."""
        numbers = self._asins[asin]
        return int(numbers[0]) if len(numbers) and numbers[0] < len(self) else None

    def with_instructions(self, human: bool) -> list[int]:
        """Numbers of the products with human instructions, or with a synthetic one."""
        return _as_list(self._human if human else self._synthetic)

    def search(self, keywords: Sequence[str], rng: random.Random) -> list[int]:
        """Numbers of the products that upstream lists for the keywords of an action, best first.

        `<r>` lists random products drawn from `rng`; `<a>`, `<c>` and `<q>` list all products with an attribute, a
        one-word category or a query, in order of number; other keywords list the search engine's best 50. (Upstream's
        text environment fails on `<a>`, which its website answers like this, and on `<r>` in a shop of fewer than 50.)
        """
        rest = " ".join(keywords[1:]).strip()
        match keywords[0]:
            case "<r>":
                return rng.sample(range(len(self)), k=min(MAX_HITS, len(self)))
            case "<a>":
                return _as_list(self._attributes[rest])
            case "<c>":
                return _as_list(self._categories["".join(keywords[1:2]).strip()])
            case "<q>":
                return _as_list(self._queries[rest])
        return [number for number in self.ranked(" ".join(keywords)) if number < len(self)]

    def ranked(self, query: str) -> list[int]:
        """The search engine's best 50; products with numbers from `len(self)` on are not sold (`Catalogue.read`)."""
        return _as_list(self._asins.numbers[self._index.search(query, MAX_HITS)])

    def prices(self, rng: random.Random) -> Sequence[float]:
        """Prices in dollars, by product number; prices within ranges are drawn from `rng` in upstream's order."""
        prices = self._low.copy()
        ranges = np.flatnonzero(~np.isnan(self._high))
        prices[ranges] = [rng.uniform(*ends) for ends in zip(prices[ranges], self._high[ranges], strict=True)]
        return array("d", prices.tobytes())


def _write_products(folder: Path, products: Iterable[tuple[Product, bool]]) -> int:
    """Write products, each with whether it is sold, to the files of a new shop; returns the number of products sold."""
    tables = {name: defaultdict[str, list[int]](list) for name in TABLES}
    columns: dict[str, array[Any]] = {name: array(code) for name, code in COLUMNS.items()}
    with (folder / RECORDS).open("wb") as records:
        for number, (product, sold) in enumerate(products):
            records.write(_pack(product))
            columns["ends"].append(records.tell())
            tables["asins"][product.asin].append(number)
            if sold:
                _add_sold(tables, columns, product, number)
    for name, table in tables.items():
        write_key_table(folder / name, table)
    for name, column in columns.items():
        np.save(folder / f"{name}.npy", np.array(column))
    return len(columns["low"])


def _add_sold(
    tables: Mapping[str, defaultdict[str, list[int]]], columns: Mapping[str, array[Any]], product: Product, number: int
) -> None:
    if product.category is not None:
        tables["categories"][product.category].append(number)
    tables["queries"][product.query].append(number)
    for attribute in dict.fromkeys(product.attributes):
        tables["attributes"][attribute].append(number)
    columns["low"].append(product.pricing[0])
    columns["high"].append(product.pricing[1] if len(product.pricing) > 1 else math.nan)
    if product.human:
        columns["human"].append(number)
    if product.synthetic:
        columns["synthetic"].append(number)


def _read_with_progress(source: Catalogue, limit: int | None, skipped: Counter[str]) -> Iterator[tuple[Product, bool]]:
    """The catalogue's products, with progress reported in bytes of the file."""
    size, position = source.products.stat().st_size, None
    progress = Progress("webshop: bytes of products read")
    for position, product, sold in source.read(limit, skipped):
        progress.report(position, size)
        yield product, sold
    if position is None:
        raise UserError(f"{source.products}: has no product that can be loaded; fetch the file again.")


def _documents(folder: Path) -> Iterator[str]:
    """Texts for the search engine in order of product id, by which upstream breaks ties of the score."""
    ends, numbers = memory_map(folder / "ends.npy"), KeyTable(folder / "asins").numbers
    progress = Progress("webshop: products indexed")
    with (folder / RECORDS).open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as records:
        for done, number in enumerate(numbers.tolist(), start=1):
            yield _product(records, ends, number).document
            progress.report(done, len(numbers))


def _pack(product: Product) -> bytes:
    record = {field.name: getattr(product, field.name) for field in dataclasses.fields(Product)}
    return encode_text(json.dumps(record, ensure_ascii=False, default=dataclasses.astuple)) + b"\n"


def _product(records: mmap.mmap, ends: NDArray[np.int64], number: int) -> Product:
    record = json.loads(decode_text(records[entry_slice(ends, number)]))
    for name in ("bullets", "pricing", "attributes"):
        record[name] = tuple(record[name])
    record["options"] = {name: tuple(values) for name, values in record["options"].items()}
    record["human"] = tuple(map(_instruction, record["human"]))
    record["synthetic"] = record["synthetic"] and _instruction(record["synthetic"])
    return Product(**record)


def _instruction(values: Sequence[Any]) -> Instruction:
    text, attributes, options = values
    return Instruction(text, tuple(attributes), tuple(options))


def _read_meta(folder: Path) -> ShopMeta:
    """The provenance of a shop, after a check that all files have the recorded sizes."""
    try:
        meta = ShopMeta.from_json((folder / META).read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        raise UserError(f"{folder}: no shop; build one there from upstream's files.") from None
    except ValidationError:
        raise UserError(f"{folder / META}: is damaged or has another format; build the shop again.") from None
    sizes = _file_sizes(folder)
    for name, size in meta.files.items():
        if sizes.get(name) != size:
            raise UserError(f"{folder / name}: differs from the file that was built; build the shop again.")
    return meta


def _file_sizes(folder: Path) -> dict[str, int]:
    """Sizes in bytes of all files in a folder, by relative path."""
    paths = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {path.relative_to(folder).as_posix(): path.stat().st_size for path in paths}


def _as_list(numbers: Numbers) -> list[int]:
    integers: list[int] = numbers.tolist()
    return integers
