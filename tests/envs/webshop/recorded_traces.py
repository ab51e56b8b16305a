"""What WebShop itself answered, beside what the kit's shop answers."""

import itertools
import json
import random
import string
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple

from envs.webshop.recorded_tagger import TAGGER

from coevolve.envs.webshop.goals import draw_prices_and_goals
from coevolve.envs.webshop.session import ShopSession
from coevolve.envs.webshop.shop import Shop


class Answer(NamedTuple):
    """A kind of answer, its position in the recording, and both answers."""

    kind: str
    where: object
    upstream: object
    ours: object


def read_traces(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def replay(catalogue, traces):
    """Yields all recorded answers; the first line of the traces holds the prices and goals."""
    meta, *lines = traces
    with tempfile.TemporaryDirectory() as folder:
        shop = Shop.build(catalogue, Path(folder) / "shop", meta["num_products"])
        # Upstream has one random generator. Its constructor also begins an episode with a random name and goal, which
        # affects only later searches for random products.
        rng = random.Random(meta["seed_before_ctor"])
        prices, goals = draw_prices_and_goals(shop, rng, meta["human_goals"])
        rng.choices(string.ascii_lowercase, k=10)
        rng.random()
        by_asin = {shop.product(number).asin: price for number, price in enumerate(prices)}
        yield Answer("prices", "start", meta["prices"], by_asin)
        for number, (upstream, ours) in enumerate(itertools.zip_longest(meta["goals"], map(as_upstream, goals))):
            yield Answer("goals", number, upstream, ours)
        for line in lines:
            match line["kind"]:
                case "episode":
                    session = ShopSession(shop, prices, TAGGER, goals[line["goal_idx"]], rng)
                    yield from replay_episode(line, session)
                case "bm25":
                    ranked = [shop.product(number).asin for number in shop.ranked(line["query"])]
                    yield Answer("rankings", line["query"], [hit[0] for hit in line["top50"]], ranked)
                case "nouns":
                    yield Answer("nouns", line["title"], line["nouns"], TAGGER.nouns(line["title"]))


def replay_episode(line, session):
    yield Answer("observations", line["goal_idx"], line["reset_obs"], session.page.text)
    details = None
    for number, step in enumerate(line["steps"]):
        where = line["goal_idx"], number, step["action"]
        outcome = session.step(step["action"])
        details = outcome.details or details
        yield Answer("observations", where, step["obs"], outcome.page.text)
        yield Answer("clickables", where, step["clickables"], list(outcome.page.clickables))
        yield Answer("rewards", where, step["reward"], outcome.reward)
        yield Answer("endings", where, step["done"], outcome.done)
    if details or any(step["done"] for step in line["steps"]):
        # Without a purchase, upstream returns the parts of an earlier episode with the same goal.
        yield Answer("details", line["goal_idx"], line["info"], details)


def as_upstream(goal):
    """A goal with upstream's keys, as in JSON."""
    values = asdict(goal)
    values |= {"instruction_text": values.pop("instruction"), "goal_options": values.pop("options")}
    return json.loads(json.dumps(values))
