"""The shop of a suite with its frozen goals and their provenance: prepared once, then opened by every job."""

import hashlib
import json
import logging
import os
import random
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from coevolve.envs.base import Setup
from coevolve.envs.webshop import tasks
from coevolve.envs.webshop.catalogue import FILE_NAMES
from coevolve.envs.webshop.catalogue_generator import ProductShares, generate
from coevolve.envs.webshop.config import WebShopConfig
from coevolve.envs.webshop.goals import FrozenGoal, Goal, draw_prices_and_goals
from coevolve.envs.webshop.reward import MATCHER
from coevolve.envs.webshop.shop import Shop
from coevolve.envs.webshop.tagger import Tagger, load_tagger
from coevolve.records.base import Record
from coevolve.storage import files, jsonl

SHOP, GOALS, META = "shop", "goals.jsonl", "meta.json"
#: sha256 of upstream's full catalogue, on which published results were measured.
PUBLISHED_CATALOGUE = {
    "items_shuffle.json": "2ef591d65df3af89e972ab72468eb82cbf124d876552d9f3678667edd620a6c8",
    "items_ins_v2.json": "1d36af476bdb8f82a5da62bd8acdabe54cd8de2fa84010d37da5c4890feb447e",
    "items_human_ins.json": "cf78667548a71786e1d9049c24b802e48e1084ad4bb021cae56ce1f6d96954a3",
}
#: Approximate number of products with instructions of each kind in a generated catalogue; all of a smaller one.
PRODUCTS_WITH_INSTRUCTIONS = 1000

_log = logging.getLogger(__name__)


class PreparedMeta(Record):
    """Provenance of a prepared shop: sizes, entries skipped by reason, hashes, and overlap of the task lists.

    `sources` and `shop` are the sha256 of the catalogue's files and of the shop's meta file, `limit` is the configured
    number of entries, `manifest` the sha256 of the goals. `overlap` and `duplicates` are goal numbers; see `GoalLists`.
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
class PreparedShop:
    """An opened shop, shared by all episodes. `identity` names everything that rewards depend on."""

    shop: Shop
    goals: Sequence[Goal]
    prices: Sequence[float]
    tagger: Tagger
    identity: str

    @classmethod
    def open(cls, folder: Path, config: WebShopConfig, seed: int | None) -> Self:
        """The shop prepared in `folder`, with the frozen prices and price limits (`seed` None) or with drawn ones.

        The seed of a draw is logged but not part of the identity, since results of two jobs could then not be averaged.
        """
        shop, meta, tagger = Shop(folder / SHOP), read_meta(folder), load_tagger(config.tagger)
        if seed is None:
            prices = shop.prices(random.Random(config.seed))
            return cls(shop, read_goals(folder), prices, tagger, _identity(meta, tagger, meta.manifest[:8]))
        _log.info("webshop: prices and price limits of this job are drawn from seed %d", seed)
        prices, goals = draw_prices_and_goals(shop, random.Random(seed), config.goals == "human")
        return cls(shop, goals, prices, tagger, _identity(meta, tagger, "drawn in each job"))


def prepared_folder(setup: Setup) -> Path:
    """The folder that the stage `prepare` wrote."""
    assert setup.prepared is not None, "the stage `prepare` runs before all others"
    return setup.prepared


def prepare(config: WebShopConfig, key: str, out: Path) -> PreparedMeta:
    """Build the shop, freeze its goals and write the provenance of both, in the folder `out`.

    Raises `UserError` for a missing or changed source file, and for a list with goals that the shop does not have.
    """
    shop = _build_shop(config, key, out / SHOP)
    prices, goals = draw_prices_and_goals(shop, random.Random(config.seed), config.goals == "human")
    jsonl.write(out / GOALS, _frozen(goals, shop, prices))
    lists = tasks.goal_lists(config.tasks, len(goals))
    tagger = load_tagger(config.tagger)
    meta = PreparedMeta(
        products=len(shop),
        goals=len(goals),
        skipped=shop.meta.skipped,
        sources=shop.meta.sources,
        limit=shop.meta.limit,
        shop=files.sha256(out / SHOP / META),
        manifest=files.sha256(out / GOALS),
        tagger=(tagger.id, tagger.version),
        matcher=MATCHER,
        overlap=lists.overlap,
        duplicates=lists.duplicates,
    )
    files.write_bytes(out / META, f"{meta.model_dump_json(indent=2)}\n".encode())
    return meta


def read_meta(folder: Path) -> PreparedMeta:
    """The provenance that `prepare` wrote to a folder."""
    return PreparedMeta.from_json((folder / META).read_bytes())


def read_goals(folder: Path) -> list[Goal]:
    """The goals that `prepare` wrote to a folder, equal in every field."""
    return [frozen.goal for frozen in jsonl.read(folder / GOALS, FrozenGoal)]


def _frozen(goals: Sequence[Goal], shop: Shop, prices: Sequence[float]) -> Iterator[FrozenGoal]:
    for number, goal in enumerate(goals):
        product = shop.number(goal.asin)
        assert product is not None, "the goals are those of this shop"
        yield FrozenGoal(number=number, price=prices[product], goal=goal)


def _build_shop(config: WebShopConfig, key: str, folder: Path) -> Shop:
    source = config.catalogue
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".catalogue") as temporary:
        catalogue = Path(temporary) / "files"
        if source.generated:
            share = min(1.0, PRODUCTS_WITH_INSTRUCTIONS / source.generated)
            generate(catalogue, source.generated, config.seed, ProductShares(human=share, synthetic=share))
        else:
            catalogue.mkdir()
            for name, file in source.files.items():
                path = files.verified(Path(file.path), file.sha256, f"{key}.catalogue.{name}")
                (catalogue / FILE_NAMES[name]).symlink_to(path.resolve())
        return Shop.build(catalogue, folder, source.limit, os.cpu_count() or 1)


def _identity(meta: PreparedMeta, tagger: Tagger, goals: str) -> str:
    published = meta.sources == PUBLISHED_CATALOGUE and meta.limit is None
    remark = "" if published and tagger.exact else ", non-comparable"
    origin = f"catalogue {meta.catalogue}, goals {goals}, tagger {tagger}"
    return f"WebShop ({origin}, {meta.matcher}{remark})"
