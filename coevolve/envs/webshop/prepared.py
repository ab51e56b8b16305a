"""What all jobs of a suite shop in: a shop, its frozen goals and what is known of both, made once and then opened."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import random
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from coevolve.envs.webshop import tasks
from coevolve.envs.webshop.config import WebShopConfig
from coevolve.envs.webshop.generator import Shares, generate
from coevolve.envs.webshop.goals import Goal, draw, read_manifest, write_manifest
from coevolve.envs.webshop.reward import MATCHER
from coevolve.envs.webshop.shop import Shop
from coevolve.envs.webshop.tagger import Tagger, tagger
from coevolve.storage import files
from coevolve.types import Record

SHOP, GOALS, META = "shop", "goals.jsonl", "meta.json"
#: What upstream calls its files.
NAMES = {"products": "items_shuffle", "attributes": "items_ins_v2", "instructions": "items_human_ins"}
#: sha256 of upstream's full catalogue, which published results are about.
PUBLISHED = {
    "items_shuffle.json": "2ef591d65df3af89e972ab72468eb82cbf124d876552d9f3678667edd620a6c8",
    "items_ins_v2.json": "1d36af476bdb8f82a5da62bd8acdabe54cd8de2fa84010d37da5c4890feb447e",
    "items_human_ins.json": "cf78667548a71786e1d9049c24b802e48e1084ad4bb021cae56ce1f6d96954a3",
}
#: About how many products of a generated catalogue have instructions of either sort; all of a smaller one.
INSTRUCTED = 1000

_log = logging.getLogger(__name__)


class Meta(Record):
    """What was made: sizes, entries skipped by reason, hashes, and what ETO's lists have in common where they are used.

    `sources` and `shop` are sha256 of the catalogue's files and of the shop's own meta file, `limit` the number of
    entries asked for, `manifest` the sha256 of the goals.
    """

    products: int
    goals: int
    skipped: dict[str, int]
    sources: dict[str, str]
    limit: int | None
    shop: str
    manifest: str
    tagger: tuple[str, str]
    matcher: str
    overlap: tuple[int, ...]
    duplicates: tuple[int, ...]

    @property
    def catalogue(self) -> str:
        """First 8 hex digits of a hash over the catalogue's files and the limit."""
        return hashlib.sha256(json.dumps([self.sources, self.limit], sort_keys=True).encode()).hexdigest()[:8]


@dataclass(frozen=True)
class Stock:
    """An opened shop: all that episodes share. `identity` names what rewards depend on."""

    shop: Shop
    goals: Sequence[Goal]
    prices: Sequence[float]
    tagger: Tagger
    identity: str

    @classmethod
    def open(cls, folder: Path, config: WebShopConfig, seed: int | None) -> Self:
        """The shop prepared in `folder`; prices and price limits are the frozen ones (None), or drawn from `seed`.

        A draw's seed goes into the log, not into the identity: results of two jobs could never be averaged.
        """
        shop, meta, nouns = Shop.open(folder / SHOP), read_meta(folder), tagger(config.tagger)
        if seed is None:
            prices = shop.prices(random.Random(config.seed))
            return cls(shop, read_goals(folder), prices, nouns, _identity(meta, nouns, meta.manifest[:8]))
        _log.info("webshop: prices and price limits of this job are drawn from seed %d", seed)
        prices, drawn = draw(shop, seed, config.goals == "human")
        return cls(shop, drawn, prices, nouns, _identity(meta, nouns, "drawn in each job"))


def prepare(config: WebShopConfig, key: str, out: Path) -> Meta:
    """Build the shop, freeze its goals and write down what is known of both, in the folder `out`.

    Raises `UserError` for a source file that is absent or changed, and for a list that names goals the shop lacks.
    """
    shop = _built(config, key, out / SHOP)
    prices, found = draw(shop, config.seed, config.goals == "human")
    lists = tasks.listed(config.tasks, len(found))
    nouns = tagger(config.tagger)
    meta = Meta(
        products=len(shop),
        goals=len(found),
        skipped=shop.meta.skipped,
        sources=shop.meta.sources,
        limit=shop.meta.limit,
        shop=files.sha256(out / SHOP / META),
        manifest=write_manifest(out / GOALS, found, shop, prices),
        tagger=(nouns.id, nouns.version),
        matcher=MATCHER,
        overlap=lists.overlap,
        duplicates=lists.duplicates,
    )
    files.write_bytes(out / META, f"{meta.model_dump_json(indent=2)}\n".encode())
    return meta


def read_meta(folder: Path) -> Meta:
    """What `prepare` wrote down in a folder."""
    return Meta.from_json((folder / META).read_bytes())


def read_goals(folder: Path) -> list[Goal]:
    """The goals that `prepare` froze in a folder."""
    return read_manifest(folder / GOALS)


def _built(config: WebShopConfig, key: str, folder: Path) -> Shop:
    source = config.catalogue
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".catalogue") as aside:
        catalogue = Path(aside) / "files"
        if source.generated:
            share = min(1.0, INSTRUCTED / source.generated)
            generate(catalogue, source.generated, config.seed, Shares(human=share, synthetic=share))
        else:
            catalogue.mkdir()
            for name, file in source.files.items():
                path = files.verified(Path(file.path), file.sha256, f"{key}.catalogue.{name}")
                (catalogue / f"{NAMES[name]}.json").symlink_to(path.resolve())
        return Shop.build(catalogue, folder, source.limit, os.cpu_count() or 1)


def _identity(meta: Meta, nouns: Tagger, drawn: str) -> str:
    published = meta.sources == PUBLISHED and meta.limit is None
    parts = [
        f"catalogue {meta.catalogue}",
        f"goals {drawn}",
        f"tagger {nouns.id} {nouns.version}",
        meta.matcher,
        *([] if published and nouns.exact else ["non-comparable"]),
    ]
    return f"WebShop ({', '.join(parts)})"
