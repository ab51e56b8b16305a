import json
import random
import shutil
from collections import Counter
from pathlib import Path

import pytest

from coevolve.envs.webshop import search_index
from coevolve.envs.webshop.catalogue import Catalogue
from coevolve.envs.webshop.catalogue_generator import generate
from coevolve.envs.webshop.shop import MAX_HITS, Shop
from coevolve.errors import UserError
from coevolve.storage import files


@pytest.fixture(scope="module")
def products(catalogue):
    return [product for _, product, _ in Catalogue.find(catalogue).read(None, Counter())]


@pytest.fixture
def copy(shop, tmp_path):
    return Path(shutil.copytree(shop.folder, tmp_path / "shop"))


def test_products_come_back_as_they_were_read_from_files_that_the_folder_names(shop, products, catalogue):
    assert len(shop) == len(products) == shop.meta.products == 300
    assert [shop.product(number) for number in range(len(shop))] == products
    assert [shop.number(product.asin) for product in products] == list(range(len(shop)))
    assert shop.number("B0") is shop.number("") is None
    assert shop.meta.sources == {path.name: files.sha256(path) for path in sorted(catalogue.iterdir(), reverse=True)}
    assert shop.meta.limit is None
    entries = len(json.loads((catalogue / "items_shuffle.json").read_bytes()))
    assert sum(shop.meta.skipped.values()) == entries - 300 > 0


def test_prefixes_list_what_a_scan_finds(shop, products):
    rng = random.Random(0)
    for product in products[::10]:
        for attribute in product.attributes:
            with_attribute = [number for number, other in enumerate(products) if attribute in other.attributes]
            assert shop.search(["<a>", *attribute.split(" ")], rng) == with_attribute
        of_category = [number for number, other in enumerate(products) if other.category == product.category]
        assert shop.search(["<c>", product.category, "more"], rng) == of_category
        of_query = [number for number, other in enumerate(products) if other.query == product.query]
        assert shop.search(["<q>", *product.query.split(" ")], rng) == of_query
    assert shop.search(["<a>", "unheard", "of"], rng) == shop.search(["<c>"], rng) == shop.search(["<q>"], rng) == []
    random_ones = random.Random(5).sample([*range(len(shop))], k=MAX_HITS)
    assert shop.search(["<r>", "whatever"], random.Random(5)) == random_ones


def test_equal_scores_are_listed_by_id(shop, products):
    twins = [
        sorted(group, key=lambda product: product.asin.encode())
        for group in (
            [other for other in products if other.document == document]
            for document, count in Counter(product.document for product in products).items()
            if count > 1 and len(document) > 100
        )
    ]
    assert twins
    for group in twins:
        found = [shop.product(number).asin for number in shop.search(group[0].document.split(" "), random.Random(0))]
        places = [found.index(product.asin) for product in group]
        assert places == sorted(places)


def test_ranges_are_drawn_in_order_from_the_callers_generator(shop, products):
    rng, ours = random.Random(3), random.Random(3)
    expected = [
        rng.uniform(*product.pricing) if len(product.pricing) == 2 else product.pricing[0] for product in products
    ]
    assert list(shop.prices(ours)) == expected
    assert ours.getstate() == rng.getstate()
    assert list(shop.prices(random.Random(4))) != expected


def test_a_limit_counts_entries_of_the_file_and_the_search_engine_holds_as_many_products(catalogue, products, tmp_path):
    shop = Shop.build(catalogue, tmp_path / "shop", products=100)
    assert len(shop) + sum(shop.meta.skipped.values()) == 100 > len(shop)
    assert [shop.product(number) for number in range(len(shop))] == products[: len(shop)]
    surplus = products[len(shop) : 100]
    assert len(search_index.SearchIndex(shop.folder / "index")) == 100 > len(shop)
    assert all(shop.number(product.asin) is None for product in surplus)
    rng = random.Random(0)
    for product in surplus:
        ranked = shop.ranked(product.document)
        assert product in map(shop.product, ranked)
        assert shop.search(product.document.split(" "), rng) == [number for number in ranked if number < len(shop)]
        assert all(number < len(shop) for number in shop.search(["<q>", *product.query.split(" ")], rng))
    assert len(shop.prices(rng)) == len(shop)
    assert len(Shop.build(catalogue, tmp_path / "all", products=10_000)) == len(products)


def test_a_shop_is_the_same_whoever_builds_it(catalogue, shop, tmp_path):
    again = Shop.build(catalogue, tmp_path / "shop", workers=2)
    assert files.sha256(again.folder) == files.sha256(shop.folder)


def test_a_failed_build_leaves_what_was_there(catalogue, copy, tmp_path):
    before = files.sha256(copy)
    cut = Path(shutil.copytree(catalogue, tmp_path / "cut"))
    content = (cut / "items_shuffle.json").read_bytes()
    (cut / "items_shuffle.json").write_bytes(content[: len(content) // 2])
    with pytest.raises(UserError, match=r"items_shuffle\.json: is damaged or truncated at byte"):
        Shop.build(cut, copy)
    assert files.sha256(copy) == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cut", "shop"]


def test_a_folder_without_a_shop_and_a_catalogue_without_a_product_are_refused(tmp_path):
    for folder in (tmp_path / "nowhere", tmp_path):
        with pytest.raises(UserError, match="no shop; build one there"):
            Shop(folder)
    generate(tmp_path / "catalogue", 0)
    with pytest.raises(UserError, match=r"items_shuffle\.json: has no product that can be loaded"):
        Shop.build(tmp_path / "catalogue", tmp_path / "shop")


OTHER_FORMAT = r"meta\.json: is damaged or has another format; build the shop again"
OTHER_BYTES = "{}: differs from the file that was built; build the shop again"


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        ("meta.json", lambda content: json.dumps({**json.loads(content), "format": 0}).encode(), OTHER_FORMAT),
        ("meta.json", lambda content: content[:40], OTHER_FORMAT),
        *(
            (name, change, OTHER_BYTES.format(name))
            for name in ("products.jsonl", "asins/keys.npy", "ends.npy")
            for change in (lambda content: content[:-1], lambda content: None)
        ),
    ],
)
def test_a_shop_whose_files_are_changed_cut_or_gone_is_refused(copy, name, change, words):
    content = change((copy / name).read_bytes())
    (copy / name).unlink()
    if content is not None:
        (copy / name).write_bytes(content)
    with pytest.raises(UserError, match=words):
        Shop(copy)
