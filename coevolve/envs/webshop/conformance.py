"""Replay what upstream answered, and count where this implementation answers otherwise."""

from __future__ import annotations

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

from coevolve.envs.webshop.goals import Goal, check_human_goals, draw, goals
from coevolve.envs.webshop.session import Session
from coevolve.envs.webshop.shop import Shop
from coevolve.envs.webshop.tagger import Tagger
from coevolve.errors import UserError

#: What is compared, in the order of the report.
WHAT = ("prices", "goals", "observations", "clickables", "rewards", "endings", "details", "rankings", "nouns")
#: What a line of each kind must hold, and of which type.
KEYS: dict[str, dict[str, type | UnionType]] = {
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
#: Upstream's names of what we call otherwise.
_GOAL_KEYS = {"instruction_text": "instruction", "goal_options": "options"}

Line = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Difference:
    """The first answer that differs: what it is, where it stands, upstream's and ours."""

    what: str
    where: str
    upstream: object
    ours: object

    def __str__(self) -> str:
        return f"{self.what}, {self.where}\n  upstream: {self.upstream!r}\n  ours:     {self.ours!r}"


@dataclass
class Report:
    """How many answers of each kind were compared, how many differ, and the first that does."""

    compared: Counter[str] = field(default_factory=Counter)
    different: Counter[str] = field(default_factory=Counter)
    first: Difference | None = None

    @property
    def agrees(self) -> bool:
        """Whether something was compared and nothing differs."""
        return self.first is None and self.compared.total() > 0

    def check(self, what: str, where: str, upstream: object, ours: object) -> None:
        """Count one comparison."""
        self.compared[what] += 1
        if upstream != ours:
            self.different[what] += 1
            self.first = self.first or Difference(what, where, upstream, ours)

    def text(self) -> str:
        """One line for each kind that was compared, and the first difference in full."""
        lines = [
            f"{what:12} {self.compared[what]:7} compared, {self.different[what]:5} different"
            for what in WHAT
            if self.compared[what]
        ]
        return "\n".join([*lines, f"first difference: {self.first}" if self.first else "no difference"])


def replay(catalogue: Path, traces: Path, tagger: Tagger) -> Report:
    """Compare all that a file of recorded traces holds with a shop built from a folder of upstream's files.

    Raises `UserError` for a line that is none of the format's.
    """
    return compare(catalogue, _lines(traces), tagger)


def replay_goals(catalogue: Path, published: Path) -> tuple[int, list[int]]:
    """How many human goals a folder of upstream's files gives, and the numbers of those that are not as `published`.

    Order and texts do not depend on the prices drawn.
    """
    with tempfile.TemporaryDirectory() as aside:
        _, found = draw(Shop.build(catalogue, Path(aside) / "shop"), seed=0, human=True)
    return len(found), check_human_goals(found, published)


def compare(catalogue: Path, answers: Iterator[tuple[str, Line]], tagger: Tagger) -> Report:
    """Compare upstream's answers, each with the place it stands, as they come; the first must be the `meta` one."""
    where, meta = next(answers, ("the first line", {}))
    if meta.get("kind") != "meta":
        raise UserError(f"{where}: is no `meta` line; give a file of recorded traces.")
    with tempfile.TemporaryDirectory() as aside:
        shop = Shop.build(catalogue, Path(aside) / "shop", meta["num_products"])
        replayed = _Replay(shop, meta, tagger)
        for place, line in answers:
            replayed.compare(line, place)
    return replayed.report


class _Replay:
    """A shop in the state that upstream's is in once it is constructed, and the report so far."""

    def __init__(self, shop: Shop, meta: Line, tagger: Tagger) -> None:
        self.report = Report()
        self._shop, self._tagger = shop, tagger
        # Upstream draws from one generator for everything; its constructor also begins an episode with a random name
        # and goal, which matters to searches for random products only.
        self._rng = random.Random(meta["seed_before_ctor"])
        self._prices = shop.prices(self._rng)
        self._goals = goals(shop, self._prices, self._rng, meta["human_goals"])
        self._rng.choices(string.ascii_lowercase, k=10)
        self._rng.random()
        self._compare_meta(meta)

    def compare(self, line: Line, where: str) -> None:
        """Compare one line's answers with ours."""
        match line["kind"]:
            case "episode":
                self._compare_episode(line, where)
            case "bm25":
                found = [self._shop.product(number).asin for number in self._shop.ranked(line["query"])]
                asked = f"{where}, query {line['query']!r}"
                self.report.check("rankings", asked, [hit[0] for hit in line["top50"]], found)
            case "nouns":
                ours = self._tagger.nouns(line["title"])
                self.report.check("nouns", f"{where}, title {line['title']!r}", line["nouns"], ours)
            case _:
                raise UserError(f"{where}: is a second `meta` line; give each recording a file of its own.")

    def _compare_meta(self, meta: Line) -> None:
        ours = {self._shop.product(number).asin: price for number, price in enumerate(self._prices)}
        for asin in {**meta["prices"], **ours}:
            self.report.check("prices", f"product {asin!r}", meta["prices"].get(asin), ours.get(asin))
        own = [_as_upstream(goal) for goal in self._goals]
        for number in range(max(len(own), len(meta["goals"]))):
            theirs, mine = (goals[number] if number < len(goals) else None for goals in (meta["goals"], own))
            self.report.check("goals", f"goal {number}", theirs, mine)

    def _compare_episode(self, line: Line, where: str) -> None:
        number = line["goal_idx"]
        if not 0 <= number < len(self._goals):
            self.report.check("observations", f"{where}, goal {number}", line["reset_obs"], None)
            return
        session = Session(self._shop, self._prices, self._tagger, self._goals[number], self._rng)
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
            # Without a purchase, upstream's parts are those of an earlier episode of the same goal.
            self.report.check("details", f"{where}, goal {number}", line["info"], details)


def _as_upstream(goal: Goal) -> Line:
    """A goal under upstream's names, with lists for tuples as JSON has them."""
    values = asdict(goal)
    values |= {theirs: values.pop(ours) for theirs, ours in _GOAL_KEYS.items()}
    return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}


def _lines(path: Path) -> Iterator[tuple[str, Line]]:
    number = 0
    try:
        with path.open(encoding="utf-8-sig") as file:
            for number, line in enumerate(file, start=1):
                where = f"{path}, line {number}"
                if line.strip():
                    yield where, _checked(line, where)
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot be read ({error}); give a file of recorded traces.") from None
    if not number:
        raise UserError(f"{path}: is empty; give a file of recorded traces.")


def _checked(line: str, where: str) -> Line:
    """A line's content, after it was found to hold what its kind needs."""
    try:
        content = json.loads(line)
    except ValueError:
        raise UserError(f"{where}: is no JSON; the file is damaged or no file of recorded traces.") from None
    kind = content.get("kind") if isinstance(content, dict) else None
    if not isinstance(kind, str) or kind not in KEYS:
        raise UserError(f"{where}: kind is {kind!r}, not one of {', '.join(KEYS)}; is the file one of recorded traces?")
    _require(content, KEYS[kind], where)
    for step in content["steps"] if kind == "episode" else ():
        _require(step, STEP_KEYS, where)
    if kind == "bm25" and not all(isinstance(hit, list) and hit for hit in content["top50"]):
        raise UserError(f"{where}: `top50` holds something else than pairs of id and score; is it of another format?")
    return dict(content)


def _require(part: object, keys: Mapping[str, type | UnionType], where: str) -> None:
    """Raise `UserError` unless a part of a line holds these keys with values of these types."""
    found = part if isinstance(part, dict) else {}
    for key, kind in keys.items():
        if not isinstance(found.get(key, ...), kind):
            raise UserError(f"{where}: lacks `{key}` of the right type; the file is damaged or of another format.")
