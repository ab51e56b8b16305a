"""Replay of upstream's recorded answers: counts how many differ from this implementation's."""

from __future__ import annotations

import itertools
import json
import random
import string
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import UnionType
from typing import Any

from coevolve.envs.webshop.goals import Goal, check_human_goals, draw_goals, draw_prices_and_goals
from coevolve.envs.webshop.session import ShopSession
from coevolve.envs.webshop.shop import Shop
from coevolve.envs.webshop.tagger import Tagger
from coevolve.errors import UserError

#: Kinds of answers that are compared, in the order of the report.
ANSWER_KINDS = ("prices", "goals", "observations", "clickables", "rewards", "endings", "details", "rankings", "nouns")
#: Required keys of a line, with their types, by kind of line.
LINE_KEYS: dict[str, dict[str, type | UnionType]] = {
    "meta": {
        "seed_before_ctor": int,
        "human_goals": int | None,
        "num_products": int | None,
        "prices": dict,
        "goals": list,
    },
    "episode": {"goal_idx": int, "reset_obs": str, "info": dict | None, "steps": list},
    "bm25": {"query": str, "top50": list},
    "nouns": {"title": str, "nouns": list},
}
STEP_KEYS: dict[str, type | UnionType] = {
    "action": str,
    "obs": str,
    "reward": float | int,
    "done": bool,
    "clickables": list,
}
#: Upstream's keys of a goal that differ from the fields of `Goal`.
_GOAL_KEYS = {"instruction_text": "instruction", "goal_options": "options"}

Line = dict[str, Any]


@dataclass(frozen=True, slots=True)
class AnswerDifference:
    """An answer that differs: its kind, its position in the record, and both answers."""

    what: str
    where: str
    upstream: object
    ours: object

    def __str__(self) -> str:
        return f"{self.what}, {self.where}\n  upstream: {self.upstream!r}\n  ours:     {self.ours!r}"


@dataclass
class ConformanceReport:
    """Numbers of compared and of different answers by kind, and the first difference."""

    compared: Counter[str] = field(default_factory=Counter)
    different: Counter[str] = field(default_factory=Counter)
    first: AnswerDifference | None = None

    @property
    def agrees(self) -> bool:
        """Whether at least one answer was compared and none differs."""
        return self.first is None and self.compared.total() > 0

    def check(self, what: str, where: str, upstream: object, ours: object) -> None:
        """Count one comparison."""
        self.compared[what] += 1
        if upstream != ours:
            self.different[what] += 1
            self.first = self.first or AnswerDifference(what, where, upstream, ours)

    def text(self) -> str:
        """A line for each kind of answer that was compared, and the first difference in full."""
        lines = [
            f"{what:12} {self.compared[what]:7} compared, {self.different[what]:5} different"
            for what in ANSWER_KINDS
            if self.compared[what]
        ]
        return "\n".join([*lines, f"first difference: {self.first}" if self.first else "no difference"])


def replay(catalogue: Path, traces: Path, tagger: Tagger) -> ConformanceReport:
    """Compare the recorded traces in a file with a shop built from a folder of upstream's files.

    Raises `UserError` for a line in another format.
    """
    return compare(catalogue, _lines(traces), tagger)


def replay_goals(catalogue: Path, published: Path) -> tuple[int, list[int]]:
    """Number of human goals of a folder of upstream's files, and the numbers of those that differ from `published`.

    The order and the compared texts do not depend on the drawn prices.
    """
    with tempfile.TemporaryDirectory() as folder:
        _, goals = draw_prices_and_goals(Shop.build(catalogue, Path(folder) / "shop"), seed=0, human=True)
    return len(goals), check_human_goals(goals, published)


def compare(catalogue: Path, answers: Iterator[tuple[str, Line]], tagger: Tagger) -> ConformanceReport:
    """Compare upstream's answers, pairs of a position and a line; the first must be the `meta` line."""
    where, meta = next(answers, ("the first line", {}))
    if meta.get("kind") != "meta":
        raise UserError(f"{where}: is not a `meta` line; give a file of recorded traces.")
    with tempfile.TemporaryDirectory() as folder:
        shop = Shop.build(catalogue, Path(folder) / "shop", meta["num_products"])
        replayed = _Replay(shop, meta, tagger)
        for where, line in answers:
            replayed.compare(line, where)
    return replayed.report


class _Replay:
    """A shop in the state of upstream's after its constructor, and the report so far."""

    def __init__(self, shop: Shop, meta: Line, tagger: Tagger) -> None:
        self.report = ConformanceReport()
        self._shop, self._tagger = shop, tagger
        # Upstream has one random generator. Its constructor also begins an episode with a random name and goal, which
        # affects only later searches for random products.
        self._rng = random.Random(meta["seed_before_ctor"])
        self._prices = shop.prices(self._rng)
        self._goals = draw_goals(shop, self._prices, self._rng, meta["human_goals"])
        self._rng.choices(string.ascii_lowercase, k=10)
        self._rng.random()
        self._compare_meta(meta)

    def compare(self, line: Line, where: str) -> None:
        """Compare the answers of one line."""
        match line["kind"]:
            case "episode":
                self._compare_episode(line, where)
            case "bm25":
                ranked = [self._shop.product(number).asin for number in self._shop.ranked(line["query"])]
                upstream = [hit[0] for hit in line["top50"]]
                self.report.check("rankings", f"{where}, query {line['query']!r}", upstream, ranked)
            case "nouns":
                nouns = self._tagger.nouns(line["title"])
                self.report.check("nouns", f"{where}, title {line['title']!r}", line["nouns"], nouns)
            case _:
                raise UserError(f"{where}: is a second `meta` line; give each recording in a separate file.")

    def _compare_meta(self, meta: Line) -> None:
        prices = {self._shop.product(number).asin: price for number, price in enumerate(self._prices)}
        for asin in {**meta["prices"], **prices}:
            self.report.check("prices", f"product {asin!r}", meta["prices"].get(asin), prices.get(asin))
        goals = map(_as_upstream, self._goals)
        for number, (upstream, ours) in enumerate(itertools.zip_longest(meta["goals"], goals)):
            self.report.check("goals", f"goal {number}", upstream, ours)

    def _compare_episode(self, line: Line, where: str) -> None:
        number = line["goal_idx"]
        if not 0 <= number < len(self._goals):
            self.report.check("observations", f"{where}, goal {number}", line["reset_obs"], None)
            return
        session = ShopSession(self._shop, self._prices, self._tagger, self._goals[number], self._rng)
        self.report.check("observations", f"{where}, goal {number}, reset", line["reset_obs"], session.page.text)
        details = None
        for count, step in enumerate(line["steps"], start=1):
            at = f"{where}, goal {number}, step {count}, action {step['action']!r}"
            outcome = session.step(step["action"])
            details = outcome.details or details
            self.report.check("observations", at, step["obs"], outcome.page.text)
            self.report.check("clickables", at, step["clickables"], list(outcome.page.clickables))
            self.report.check("rewards", at, step["reward"], outcome.reward)
            self.report.check("endings", at, step["done"], outcome.done)
        if details or any(step["done"] for step in line["steps"]):
            # Without a purchase, upstream returns the parts of an earlier episode with the same goal.
            self.report.check("details", f"{where}, goal {number}", line["info"], details)


def _as_upstream(goal: Goal) -> Line:
    """A goal with upstream's keys, and with lists instead of tuples, as in JSON."""
    values = asdict(goal)
    values |= {key: values.pop(field) for key, field in _GOAL_KEYS.items()}
    return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}


def _lines(path: Path) -> Iterator[tuple[str, Line]]:
    """Yields the position and the content of each line."""
    number = 0
    try:
        with path.open(encoding="utf-8-sig") as file:
            for number, line in enumerate(file, start=1):
                where = f"{path}, line {number}"
                if line.strip():
                    yield where, _parse_line(line, where)
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot be read ({error}); give a file of recorded traces.") from None
    if not number:
        raise UserError(f"{path}: is empty; give a file of recorded traces.")


def _parse_line(line: str, where: str) -> Line:
    """The content of a line; raises `UserError` unless it has the keys of its kind."""
    try:
        content = json.loads(line)
    except (ValueError, RecursionError):
        raise UserError(f"{where}: is not JSON; the file is damaged or not a file of recorded traces.") from None
    kind = content.get("kind") if isinstance(content, dict) else None
    if not isinstance(kind, str) or kind not in LINE_KEYS:
        raise UserError(
            f"{where}: kind is {kind!r}, not one of {', '.join(LINE_KEYS)}; give a file of recorded traces."
        )
    _require(content, LINE_KEYS[kind], where)
    for step in content["steps"] if kind == "episode" else ():
        _require(step, STEP_KEYS, where)
    if kind == "bm25" and not all(isinstance(hit, list) and hit for hit in content["top50"]):
        raise UserError(f"{where}: `top50` does not hold pairs of id and score; the file has another format.")
    return dict(content)


def _require(part: object, keys: Mapping[str, type | UnionType], where: str) -> None:
    """Raise `UserError` unless a part of a line has these keys with values of these types."""
    values = part if isinstance(part, dict) else {}
    for key, kind in keys.items():
        if not isinstance(values.get(key, ...), kind):
            raise UserError(f"{where}: lacks `{key}` of the right type; the file is damaged or has another format.")
