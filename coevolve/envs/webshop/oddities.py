"""What can be odd about a product: emoji, markup, foreign scripts, empty fields, options named like buttons."""

from __future__ import annotations

import random
from collections.abc import Callable

from coevolve.envs.webshop.stream import Json

#: What careless sellers and scrapers leave in texts, between bars; braces are filled with words.
TEXTS = (
    "\u2605\u2605|\U0001f44d\U0001f3fd|\U0001f468\u200d\U0001f469\u200d\U0001f467|\U0001f1eb\U0001f1f7|\u2764\ufe0f|"
    "1\ufe0f\u20e3|<b>{}</b>|<br/>|&amp; {}|{}'s|{}\u2019s|\u201c{}\u201d|{}\u2122|{}\u00a0{}|{}\u200b{}|{}\u00ad{}|"
    "{}\u2028{}|\t{}\n|{}\r\n{}|\u00bd cup|1\u20442|20\u00b0|stra\u00dfe|caf\u00e9|cafe\u0301|\u0130zmir|\ufb01t|"
    "\u03a3\u03b1\u03c2|\uff08\uff21\uff22\uff09|\u6a21\u68b3|\u30b3\u30fc\u30c9|\ud55c\uae00|\u0e44\u0e17\u0e22|"
    "\u0645\u0631\u062d\u0628\u0627|\U00010348|3,000.50|12:30|a_b|don't|{}@{}.invalid|[SEP]|{{{{ {} }}}}|{}/{}|{}--{}|"
    "U.S.A.|'{}'"
)
VALUES = (
    'Description|< Prev|Next >|Buy Now| Search ||A/B/C|\u2605 Best|Caf\u00e9 \u2615|<i>Red</i>|Red & Blue|7" x 9"|'
    "\u0130\u0307|stra\u00dfe|1/2|features"
)
PRICES = "|$1,234.50|$5|$7.00$ 12.50$ 99.99|$ 20.00 - $ 18.00|$0.01|$975.00|$985.00|$990.00|$2,000"


def spoil(entry: Json, rng: random.Random, words: list[str]) -> None:
    """Make an entry of the product file odd in up to three ways; two words go into the odd texts."""
    for way in rng.sample(_WAYS, 3):
        way(entry, rng, rng.choice(TEXTS.split("|")).format(*words))


def _add_group(entry: Json, name: str, group: list[Json] | None) -> None:
    entry["customization_options"] = {**(entry["customization_options"] or {}), name: group}


_WAYS: tuple[Callable[[Json, random.Random, str], None], ...] = (
    lambda entry, rng, text: entry.update(name=f"{entry['name']} {text}"),
    lambda entry, rng, text: entry.update(name=f"{text} {entry['name']}"),
    lambda entry, rng, text: entry.update(name=rng.choice(("", text))),
    lambda entry, rng, text: entry.update(full_description=f"{text} {entry['full_description']} {text}"),
    lambda entry, rng, text: entry.update(full_description=rng.choice(("", "   ", text))),
    lambda entry, rng, text: entry.update(small_description=rng.choice(("", text, f"{text}, and more"))),
    lambda entry, rng, text: entry.update(small_description=[text, "", text]),
    lambda entry, rng, text: entry.update(pricing=rng.choice(PRICES.split("|"))),
    lambda entry, rng, text: entry.update(query=f" {text.strip()} {entry['query'].upper()} "),
    lambda entry, rng, text: entry.update(product_category=rng.choice(("", text, f"{entry['category']} \u203a"))),
    lambda entry, rng, text: _add_group(
        entry, "COLOR", [{"value": value} for value in rng.sample(VALUES.split("|"), 3)]
    ),
    lambda entry, rng, text: _add_group(entry, f"Trim {text}", [{"value": text}, {"value": "Red"}]),
    lambda entry, rng, text: _add_group(entry, "Empty", rng.choice((None, []))),
)
