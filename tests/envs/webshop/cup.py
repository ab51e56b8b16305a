"""A cup, a goal that asks for it and catalogues, with other values for what a test looks at."""

import json

from coevolve.envs.webshop.catalogue import Product
from coevolve.envs.webshop.goals import Goal


def cup(**fields):
    """A product without options."""
    values = {
        "asin": "B000000001",
        "title": "Plum cup",
        "description": "A cup.",
        "bullets": ("Round.", "Plum."),
        "category": "kitchen",
        "query": "plum cups",
        "product_category": "Kitchen \u203a Cups",
        "pricing": (9.5,),
        "options": {},
        "attributes": ("dishwasher safe",),
    }
    return Product(**values | fields)


def goal_of(product, **fields):
    """A goal of a product, with its attributes and without options."""
    shared = ("asin", "category", "query", "product_category", "attributes")
    values = {name: getattr(product, name) for name in shared} | {"name": product.title, "options": ()}
    return Goal(**values | {"instruction": "find a cup", "price_upper": 20.0} | fields)


def entry(asin="B000000001", name="Plum cup", **fields):
    """A product as a catalogue's file has it."""
    values = {"full_description": "A cup.", "small_description": ["Round.", "Plum."], "pricing": "$9.50"}
    values |= {"customization_options": "", "category": "kitchen", "query": " Plum Cups ", "images": ["x"]}
    return {"asin": asin, "name": name, "product_category": "Kitchen \u203a Cups", **values, **fields}


def write_catalogue(folder, entries, attributes=None, instructions=None):
    """The three files of a catalogue; returns the folder."""
    folder.mkdir(exist_ok=True)
    contents = {"items_shuffle": entries, "items_ins_v2": attributes or {}, "items_human_ins": instructions or {}}
    for name, content in contents.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return folder
