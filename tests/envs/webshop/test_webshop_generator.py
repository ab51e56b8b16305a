import json
from collections import Counter

from coevolve.envs.webshop import lucene_analyzer
from coevolve.envs.webshop.catalogue import Catalogue
from coevolve.envs.webshop.catalogue_generator import WORD_LISTS, ProductShares, generate
from coevolve.storage import files


def products(folder):
    return [product for _, product, _ in Catalogue.find(folder).read(None, Counter())]


def entries(folder):
    return json.loads((folder / "items_shuffle.json").read_bytes())


def test_equal_arguments_give_equal_bytes(tmp_path):
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        generate(tmp_path / name, 200, seed)
    assert files.sha256(tmp_path / "a") == files.sha256(tmp_path / "b") != files.sha256(tmp_path / "c")
    generate(tmp_path / "empty", 0)
    contents = {path.name: json.loads(path.read_bytes()) for path in (tmp_path / "empty").iterdir()}
    assert contents == {"items_shuffle.json": [], "items_ins_v2.json": {}, "items_human_ins.json": {}}


def test_texts_and_shares_are_those_of_a_shop(tmp_path):
    generate(tmp_path / "large", 4000)
    made = products(tmp_path / "large")
    terms = [lucene_analyzer.index_terms(product.document) for product in made]
    lengths = sorted(map(len, terms))
    assert 100 < sum(lengths) / len(lengths) < 150
    assert lengths[len(lengths) // 20] < 40
    assert lengths[-len(lengths) // 20] > 250
    ranks = [count for _, count in Counter(term for document in terms for term in document).most_common()]
    assert 5 < ranks[100] / ranks[1000] < 20
    assert len(ranks) > 20_000
    assert len(made) == len({product.asin for product in made}) == 4000
    assert 4000 < len(entries(tmp_path / "large")) < 4060
    assert 20 < sum(bool(product.human) for product in made) < 65
    assert 150 < sum(product.synthetic is not None for product in made) < 250
    assert 350 < sum(len(product.pricing) == 2 for product in made) < 650
    copies = Counter(product.document for product in made)
    assert 60 < sum(count - 1 for count in copies.values()) < 160


def test_products_without_oddities_or_instructions_can_be_had(tmp_path):
    generate(tmp_path / "plain", 300, shares=ProductShares(human=0, synthetic=0, copies=0, edge_cases=0))
    found = entries(tmp_path / "plain")
    assert len(found) == len({entry["name"] for entry in found}) == 300
    assert all(json.dumps(entry).isascii() and "<" not in entry["name"] for entry in found)
    assert json.loads((tmp_path / "plain" / "items_human_ins.json").read_bytes()) == {}


def test_what_is_odd_is_there(tmp_path):
    generate(tmp_path / "odd", 1000, seed=7, shares=ProductShares(human=0, synthetic=0, copies=0, edge_cases=1.0))
    found = products(tmp_path / "odd")
    text = "\n".join(product.title + product.description + "".join(product.bullets) for product in found)
    texts = WORD_LISTS["edge_case_texts"]
    assert all(text.format("one", "two").count("{") in (0, 2) for text in texts)
    parts = [part for part in texts if "{" not in part]
    assert sum(part in text for part in parts) > len(parts) / 2
    assert all(part in text for part in ("\u200d", "<b>", "&amp; ", "{ "))
    options = {value for product in found for values in product.options.values() for value in values}
    assert {"description", "< prev", "buy now", "", "a | b | c"} <= options
    assert any(product.title == "" for product in found)
    assert any(product.attributes == ("DUMMY_ATTR",) for product in found)
    assert any(product.bullets == ("",) for product in found)
