import json
import random
from collections import Counter
from dataclasses import replace

import pytest
from envs.webshop.cup import entry, write_catalogue

from coevolve.envs.webshop import catalogue
from coevolve.envs.webshop.catalogue import DEFAULT_ATTRIBUTES, Catalogue, Instruction, Product
from coevolve.envs.webshop.shop import Shop
from coevolve.errors import UserError

ASIN = "B000000001"
ENTRY = entry(name="Oak Desk", full_description="Very plain.", small_description=["First", "Second"])


def load(folder, limit=None):
    skipped: Counter[str] = Counter()
    return [product for _, product, sold in Catalogue.find(folder).read(limit, skipped) if sold], skipped


def one(folder, attributes=None, instructions=None, **changes):
    (product,), _ = load(write_catalogue(folder, [{**ENTRY, **changes}], attributes, instructions))
    return product


@pytest.mark.parametrize("layout", [{}, {"indent": 2}, {"separators": (",", ":")}, {"ensure_ascii": False}])
def test_a_file_larger_than_what_is_held_reads_as_json_reads_it(tmp_path, layout):
    expected = [
        {"number": number, "text": 'é👍\\" }],[{ \ud83d' * 20_000, "deep": [{}, {"a": [None]}]} for number in range(60)
    ]
    path = tmp_path / "array.json"
    text = json.dumps(expected, **layout)
    path.write_bytes(b" \n" + text.encode("utf-8", "replace") + b"\r\n ")
    assert path.stat().st_size > 60 * catalogue.WINDOW_BYTES[1]
    found = list(catalogue.read_objects(path))
    assert [entry for _, entry in found] == json.loads(path.read_bytes())
    assert [position for position, _ in found] == sorted(position for position, _ in found)
    assert path.read_bytes()[found[-1][0] :].strip() == b"]"
    path.write_text(" [ ] ")
    assert list(catalogue.read_objects(path)) == []


@pytest.mark.parametrize(
    ("content", "byte"),
    [
        (b"", 0),
        (b"[", 1),
        (b'[{"a": 1}', 9),
        (b'[{"a": 1}, ', 11),
        ('[{"é": "x"}, {"b": '.encode(), 20),
        (b'[{"a": "never closed]', 7),
        (b'{"a": 1}', 0),
        (b'[{"a": 1} {"b": 2}]', 10),
        (b'[{"a": 1},, {"b": 2}]', 10),
        ('[{"é": 1}, 7]'.encode(), 12),
        (b'[{"a": 1}] []', 11),
        (b'[{"a": "\xff"}]', 8),
        (b'[{"a": "\xc3', 8),
        (b"\xef\xbb\xbf[]", 0),
    ],
)
def test_a_damaged_file_is_named_with_the_byte(tmp_path, content, byte):
    path = tmp_path / "items_shuffle.json"
    path.write_bytes(content)
    with pytest.raises(UserError, match=rf"items_shuffle\.json: is damaged or truncated at byte {byte} "):
        list(catalogue.read_objects(path))


def test_a_text_without_an_end_is_not_read_to_the_end_of_the_file(tmp_path):
    path = tmp_path / "items_shuffle.json"
    path.write_bytes(b'[{"a": "' + b"x" * (2 * catalogue.WINDOW_BYTES[-1]))
    for_ever = catalogue.read_objects(path)
    with pytest.raises(UserError, match="is damaged or truncated at byte 7 "):
        next(for_ever)


@pytest.mark.parametrize(
    ("text", "pricing", "tag"),
    [
        (None, (100.0,), "$100.0"),
        ("", (100.0,), "$100.0"),
        ("$9.5", (9.5,), "$9.5"),
        ("$1,234.56", (1234.56,), "$1234.56"),
        ("$8.50$ 45.99", (8.5, 45.99), "$8.5 to $45.99"),
        ("from $20.00 - $18", (20.0, 18.0), "$20.0 to $18.0"),
        ("$1$2$3", (1.0, 2.0), "$1.0 to $2.0"),
        ("$٣.5", (3.5,), "$3.5"),
    ],
)
def test_prices(tmp_path, text, pricing, tag):
    product = one(tmp_path, pricing=text)
    assert (product.pricing, product.price_tag) == (pricing, tag)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("pricing", text) for text in ("$", "$ each", "9.50", "$1.2.3", "$5 or $", ["$5"])),
        ("asin", 7),
        ("name", None),
        ("full_description", None),
        ("query", 3),
        ("small_description", None),
        ("small_description", ["a", None]),
        ("customization_options", {"Color": [{"value": None}]}),
        ("customization_options", {"Color": ["red"]}),
        ("customization_options", ["red"]),
    ],
)
def test_a_field_upstream_cannot_load_is_one_sentence(tmp_path, field, value):
    with pytest.raises(UserError, match=r"items_shuffle\.json: product .*; fetch the file again\.$"):
        one(tmp_path, **{field: value})


def test_a_product_is_read_from_the_three_files(tmp_path):
    """Options are cleaned, and the last of equal names wins at the first one's place; the document is lower-cased."""
    options = {
        "Color": [{"value": " Red "}, {"value": "Black/White"}],
        "Size": [{"value": "3/4 Inch/Wide", "image": None}],
        "Gone": None,
        "Empty": [],
        "COLOR": [{"value": "TAN"}, {"value": "TAN"}],
    }
    attributes = {"attributes": ["a", "b"], "instruction": "Find me", "instruction_attributes": ["a"]}
    asked = {"instruction": "i need.", "instruction_attributes": ["b"], "instruction_options": ["red"]}
    unused = {**asked, "instruction_attributes": []}
    product = one(tmp_path, {ASIN: attributes}, {ASIN: [asked, unused]}, customization_options=options)
    assert product == Product(
        asin=ASIN,
        title="Oak Desk",
        description="Very plain.",
        category="kitchen",
        query="plum cups",
        product_category="Kitchen \u203a Cups",
        bullets=("First", "Second"),
        pricing=(9.5,),
        options={"color": ("tan", "tan"), "size": ("3 | 4 inch | wide",), "empty": ()},
        attributes=("a", "b"),
        human=(Instruction("i need.", ("b",), ("red",)),),
        synthetic=Instruction("Find me", ("a",), ()),
    )
    assert [*product.options] == ["color", "size", "empty"]
    assert product.document == "oak desk very plain. first color: tan, tan, and size: 3 | 4 inch | wide, and empty: "
    plain, nothing = one(tmp_path, small_description="Only one"), {"options": {}, "human": (), "synthetic": None}
    assert plain == replace(product, bullets=("Only one",), attributes=DEFAULT_ATTRIBUTES, **nothing)
    bare = one(tmp_path, {ASIN: {"attributes": ["a"], "instruction": "Find me"}})
    assert bare.synthetic == Instruction("Find me", (), ())  # hinders synthetic goals only


def test_skipped_entries_are_counted_and_the_limit_counts_them_too(tmp_path):
    asins = ["nan", "B000000001", "B0000000012", "B000000001", "B000000002", "short"]
    folder = write_catalogue(
        tmp_path, [{**ENTRY, "asin": asin, "name": f"{place}"} for place, asin in enumerate(asins)]
    )
    products, skipped = load(folder)
    assert [(product.asin, product.title) for product in products] == [
        ("B000000001", "1"),
        ("B000000002", "4"),
        ("short", "5"),
    ]
    assert skipped == {"no id": 1, "id longer than 10": 1, "repeated id": 1}
    assert [product.asin for product in load(folder, limit=4)[0]] == ["B000000001"]


def test_missing_ambiguous_and_damaged_files_are_named(tmp_path):
    with pytest.raises(UserError, match=r"one file named items_shuffle\*\.json is needed \(none found\)"):
        Catalogue.find(tmp_path)
    write_catalogue(tmp_path, [ENTRY])
    (tmp_path / "items_ins_v2.json").write_text('{"B000')
    with pytest.raises(UserError, match=r"items_ins_v2\.json: is damaged or truncated"):
        load(tmp_path)
    (tmp_path / "items_shuffle_1000.json").write_text("[]")
    with pytest.raises(UserError, match=r"\(items_shuffle\.json, items_shuffle_1000\.json found\)"):
        Catalogue.find(tmp_path)
    asked = {ASIN: [{"instruction_attributes": ["a"], "instruction_options": []}]}
    with pytest.raises(UserError, match=rf"items_human_ins\.json: product '{ASIN}': `instruction` is not a text"):
        one(tmp_path / "other", None, asked)
    with pytest.raises(UserError, match=rf"items_ins_v2\.json: product '{ASIN}': `attributes` is not a list"):
        one(tmp_path / "other", {ASIN: {"attributes": "a"}})


def test_a_product_may_have_no_category(tmp_path):
    assert one(tmp_path, category=None).category is None
    folder = write_catalogue(tmp_path, [{**ENTRY, "category": None}, {**ENTRY, "asin": "B000000002"}])
    shop = Shop.build(folder, tmp_path / "shop")
    assert [shop.product(number).category for number in range(2)] == [None, "kitchen"]
    assert shop.search(("<c>", "kitchen"), random.Random(0)) == [1]
