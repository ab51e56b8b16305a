"""The shop: a folder built once from upstream's files, opened in milliseconds and shared by all workers."""

from __future__ import annotations

import dataclasses
import json
import math
import mmap
import random
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from coevolve.envs.webshop import index
from coevolve.envs.webshop.catalogue import Catalogue, Instruction, Product
from coevolve.envs.webshop.tables import Collector, Numbers, Table, decoded, encoded, mapped
from coevolve.errors import UserError
from coevolve.progress import Progress
from coevolve.storage import files, jsonl, provenance
from coevolve.types import Record

#: Changes with the layout of the folder: a shop of another format must be built again.
FORMAT = 1
#: Upstream's longest list of search results and of random products.
HITS = 50

META, RECORDS, INDEX = "meta.json", "products.jsonl", "index"
TABLES = "asins", "attributes", "categories", "queries"
#: Ends of the records in bytes; prices, and upper ends of ranges (NaN: none) in dollars; numbers with instructions.
COLUMNS = {"ends": "q", "low": "d", "high": "d", "human": "i", "synthetic": "i"}


class Meta(Record):
    """What a shop was built from: sha256 by source file, entries asked for, kept, and skipped by reason.

    `files` has the sizes in bytes of all other files of the folder.
    """

    format: int
    sources: dict[str, str]
    limit: int | None
    products: int
    skipped: dict[str, int]
    versions: dict[str, str]
    files: dict[str, int]


class Shop:
    """Products by number, in upstream's order of loading, with their search engine; read-only, memory-mapped."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.meta = folder, _meta(folder)
        with (folder / RECORDS).open("rb") as file:
            self._records = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self._ends, self._low, self._high, self._human, self._synthetic = (
            mapped(folder / f"{name}.npy") for name in COLUMNS
        )
        self._asins, self._attributes, self._categories, self._queries = (Table(folder / name) for name in TABLES)
        self._index = index.Index.open(folder / INDEX)

    @classmethod
    def build(cls, catalogue: Path, folder: Path, products: int | None = None, workers: int = 1) -> Self:
        """The shop of a folder with upstream's three files, or of the first `products` entries, built in `folder`.

        It appears there whole or not at all. Raises `UserError` for a file that is missing, damaged or cut off.
        """
        source = Catalogue.find(catalogue)
        with files.directory(folder) as aside:
            skipped: Counter[str] = Counter()
            count = _Writer(aside).write(_kept(source, products, skipped))
            index.build(_documents(aside), aside / INDEX, workers)
            meta = Meta(
                format=FORMAT,
                sources={path.name: files.sha256(path) for path in dataclasses.astuple(source)},
                limit=products,
                products=count,
                skipped=dict(sorted(skipped.items())),
                versions=provenance.versions(),
                files=_sizes(aside),
            )
            jsonl.write(aside / META, [meta])
        return cls.open(folder)

    @classmethod
    def open(cls, folder: Path) -> Self:
        """The shop built in `folder`; raises `UserError` if there is none, a damaged one or one of another format."""
        return cls(folder)

    def __len__(self) -> int:
        return self.meta.products

    def product(self, number: int) -> Product:
        """The product with a number from 0 on."""
        return _product(self._records, self._ends, number)

    def number(self, asin: str) -> int | None:
        """The number of the product with this id; None if there is none."""
        found = self._asins[asin]
        return int(found[0]) if len(found) and found[0] < len(self) else None

    def instructed(self, human: bool) -> list[int]:
        """Numbers of the products that have human instructions, or else a synthetic one."""
        return _list(self._human if human else self._synthetic)

    def search(self, keywords: Sequence[str], rng: random.Random) -> list[int]:
        """Numbers of the products that upstream lists for an action's words, best first.

        `<r>` lists random products out of `rng`; `<a>`, `<c>` and `<q>` list all with an attribute, a one-word
        category or a query, in order of number; anything else asks the search engine for its best 50. (Upstream's
        text environment fails at `<a>`, and at `<r>` in a shop of fewer than 50; its web site answers `<a>` like this.)
        """
        rest = " ".join(keywords[1:]).strip()
        match keywords[0]:
            case "<r>":
                return rng.sample(range(len(self)), k=min(HITS, len(self)))
            case "<a>":
                return _list(self._attributes[rest])
            case "<c>":
                return _list(self._categories["".join(keywords[1:2]).strip()])
            case "<q>":
                return _list(self._queries[rest])
        return [number for number in self.ranked(" ".join(keywords)) if number < len(self)]

    def ranked(self, query: str) -> list[int]:
        """The search engine's best 50; numbers past the shop's length are of products not sold (`Catalogue.read`)."""
        return _list(self._asins.numbers[self._index.search(query, HITS)])

    def prices(self, rng: random.Random) -> Sequence[float]:
        """What each product costs in dollars, by number: range prices are drawn from `rng` as upstream draws them."""
        prices = self._low.copy()
        ranges = np.flatnonzero(~np.isnan(self._high))
        prices[ranges] = [rng.uniform(*ends) for ends in zip(prices[ranges], self._high[ranges], strict=True)]
        return array("d", prices.tobytes())


class _Writer:
    """Puts products, in order, into the files of a new shop."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._tables = {name: Collector() for name in TABLES}
        self._columns: dict[str, array[Any]] = {name: array(code) for name, code in COLUMNS.items()}

    def write(self, products: Iterable[tuple[Product, bool]]) -> int:
        """Write all products, each with whether it is sold; how many are."""
        ends = self._columns["ends"]
        with (self._folder / RECORDS).open("wb") as records:
            for number, (product, sold) in enumerate(products):
                records.write(_packed(product))
                ends.append(records.tell())
                self._tables["asins"].add(product.asin, number)
                if sold:
                    self._note(product, number)
        for name, table in self._tables.items():
            table.write(self._folder / name)
        for name, column in self._columns.items():
            np.save(self._folder / f"{name}.npy", np.array(column))
        return len(self._columns["low"])

    def _note(self, product: Product, number: int) -> None:
        if product.category is not None:
            self._tables["categories"].add(product.category, number)
        self._tables["queries"].add(product.query, number)
        for attribute in dict.fromkeys(product.attributes):
            self._tables["attributes"].add(attribute, number)
        self._columns["low"].append(product.pricing[0])
        self._columns["high"].append(product.pricing[1] if len(product.pricing) > 1 else math.nan)
        if product.human:
            self._columns["human"].append(number)
        if product.synthetic:
            self._columns["synthetic"].append(number)


def _kept(source: Catalogue, limit: int | None, skipped: Counter[str]) -> Iterator[tuple[Product, bool]]:
    """The catalogue's products, with a line now and then about how far the file is read."""
    size, position = source.products.stat().st_size, None
    progress = Progress("webshop: bytes of products read")
    for position, product, sold in source.read(limit, skipped):
        progress.report(position, size)
        yield product, sold
    if position is None:
        raise UserError(f"{source.products}: has no product to keep; fetch the file again.")


def _documents(folder: Path) -> Iterator[str]:
    """Texts for the search engine in order of product id, which is how upstream breaks ties of score."""
    ends, numbers = mapped(folder / "ends.npy"), Table(folder / "asins").numbers
    progress = Progress("webshop: products indexed")
    with (folder / RECORDS).open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as records:
        for done, number in enumerate(numbers.tolist(), start=1):
            yield _product(records, ends, number).document
            progress.report(done, len(numbers))


def _product(records: mmap.mmap, ends: NDArray[np.int64], number: int) -> Product:
    start = int(ends[number - 1]) if number else 0
    return _unpacked(records[start : int(ends[number])])


def _packed(product: Product) -> bytes:
    """A product as one line of JSON."""
    record = {field.name: getattr(product, field.name) for field in dataclasses.fields(Product)}
    return encoded(json.dumps(record, ensure_ascii=False, default=dataclasses.astuple)) + b"\n"


def _unpacked(line: bytes) -> Product:
    record = json.loads(decoded(line))
    for name in ("bullets", "pricing", "attributes"):
        record[name] = tuple(record[name])
    record["options"] = {name: tuple(values) for name, values in record["options"].items()}
    record["human"] = tuple(map(_instruction, record["human"]))
    record["synthetic"] = record["synthetic"] and _instruction(record["synthetic"])
    return Product(**record)


def _instruction(values: Sequence[Any]) -> Instruction:
    text, attributes, options = values
    return Instruction(text, tuple(attributes), tuple(options))


def _meta(folder: Path) -> Meta:
    """What a shop's folder says of itself, after its files were found to have the sizes it says."""
    try:
        meta = Meta.from_json((folder / META).read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        raise UserError(f"{folder}: no shop; build one there from upstream's files.") from None
    except ValidationError:
        raise UserError(f"{folder / META}: is damaged or of another version; build the shop again.") from None
    if meta.format != FORMAT:
        raise UserError(f"{folder}: has format {meta.format}, this version reads {FORMAT}; build the shop again.")
    found = _sizes(folder)
    for name, size in meta.files.items():
        if found.get(name) != size:
            raise UserError(f"{folder / name}: is not the file that was built; build the shop again.")
    return meta


def _sizes(folder: Path) -> dict[str, int]:
    """Sizes in bytes of all files in a folder, by path."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {path.relative_to(folder).as_posix(): path.stat().st_size for path in files}


def _list(numbers: Numbers) -> list[int]:
    found: list[int] = numbers.tolist()
    return found
