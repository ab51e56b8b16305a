"""Runs a WebShop checkout of the user and compares every answer with this implementation's."""

from __future__ import annotations

import contextlib
import json
import random
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from coevolve.envs.webshop.catalogue import FILE_NAMES
from coevolve.envs.webshop.conformance import ConformanceReport, Line, compare
from coevolve.envs.webshop.tagger import Tagger
from coevolve.errors import UserError

DRIVER = Path(__file__).with_name("upstream_driver.py")
#: Products of the shop, the first of the catalogue; for so many upstream has an index.
PRODUCTS = 1000
#: Most actions of an episode.
MAX_STEPS = 25
#: Actions that are invalid on every page, or on which upstream's server fails.
INVALID_ACTIONS = (
    "buy",
    "click[no such thing]",
    "search[]",
    "think[hm]\nclick[buy now]",
    "search[<r>]",
    "search[<q> none]",
)


def compare_checkout(
    checkout: Path, python: Path, episodes: int = 20, seed: int = 0, human: bool = True
) -> ConformanceReport:
    """Run random episodes in both environments, on the product files that the checkout reads.

    `python` is the interpreter that runs the checkout. Nouns are those of upstream's tagger. Raises `UserError` if the
    checkout does not start, or stops.
    """
    settings = (str(seed), "human" if human else "synthetic", str(PRODUCTS))
    with tempfile.TemporaryDirectory() as catalogue, _running(checkout, python, settings) as upstream:
        for file, name in zip(upstream.start["files"], FILE_NAMES.values(), strict=True):
            (Path(catalogue) / name).symlink_to(Path(checkout, file).resolve())
        answers = _answers(upstream, episodes, seed, human)
        return compare(Path(catalogue), answers, Tagger("upstream", "", True, upstream.nouns))


class _Upstream:
    """Upstream's environment in a subprocess; `start` is its first answer, sent after the environment is built."""

    def __init__(self, process: subprocess.Popen[str], log: IO[str], where: str) -> None:
        assert process.stdin and process.stdout
        self._requests, self._answers = process.stdin, process.stdout
        self._log, self._where = log, where
        self.start = self._read_answer()

    def request(self, request: dict[str, Any]) -> dict[str, Any]:
        """Upstream's answer to one request of the driver's protocol."""
        with contextlib.suppress(BrokenPipeError):
            self._requests.write(json.dumps(request) + "\n")
            self._requests.flush()
        return self._read_answer()

    def nouns(self, title: str) -> list[str]:
        """Nouns of a title by upstream's tagger."""
        return list(self.request({"nouns": title})["nouns"])

    def _read_answer(self) -> dict[str, Any]:
        line = self._answers.readline()
        if not line:
            self._log.seek(0)
            last = self._log.read().strip().rpartition("\n")[2]
            raise UserError(f"{self._where}: WebShop stopped ({last}); check that it runs there without this kit.")
        return dict(json.loads(line))


@contextlib.contextmanager
def _running(checkout: Path, python: Path, settings: tuple[str, ...]) -> Iterator[_Upstream]:
    """Start upstream's environment; the process is killed on exit."""
    where = f"{checkout} under {python}"
    with tempfile.TemporaryFile("w+") as log:
        # Passed as text, so that upstream's imports do not search the folder of this package.
        command = [str(python), "-c", DRIVER.read_text(encoding="utf-8"), str(checkout.resolve()), *settings]
        pipe = subprocess.PIPE
        try:
            process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=log, text=True, cwd=checkout)
        except OSError as error:
            raise UserError(f"{where}: does not start ({error.strerror}); correct the two paths.") from None
        try:
            yield _Upstream(process, log, where)
        finally:
            process.kill()
            with contextlib.suppress(BrokenPipeError):
                process.communicate()


def _answers(upstream: _Upstream, episodes: int, seed: int, human: bool) -> Iterator[tuple[str, Line]]:
    """Upstream's answers, in the format of recorded traces with positions."""
    goals = upstream.start["goals"]
    meta = {"kind": "meta", "seed_before_ctor": seed, "human_goals": human, "num_products": PRODUCTS}
    yield "start", {**meta, "prices": upstream.start["prices"], "goals": goals}
    rng = random.Random(seed)
    for number in range(episodes):
        yield f"episode {number}", _episode(upstream, rng.randrange(len(goals)), rng)


def _episode(upstream: _Upstream, goal: int, rng: random.Random) -> Line:
    """A random episode. It ends if upstream's server fails on an action, which must then have no effect here."""
    current = first = upstream.request({"reset": goal})
    steps: list[dict[str, Any]] = []
    for _ in range(MAX_STEPS):
        action = _random_action(current["clickables"], upstream.start["goals"][goal]["instruction_text"].split(), rng)
        answer = upstream.request({"step": action})
        failed = "error" in answer
        current = {**current, "reward": 0.0, "done": False} if failed else answer
        steps.append({"action": action, **current})
        if current["done"] or failed:
            break
    return {"kind": "episode", "goal_idx": goal, "reset_obs": first["obs"], "info": current["details"], "steps": steps}


def _random_action(clickables: list[str], words: list[str], rng: random.Random) -> str:
    """Mostly a click on a random text, otherwise a search for words of the instruction; rarely an invalid action."""
    if rng.random() < 0.05:
        return rng.choice(INVALID_ACTIONS)
    if rng.random() < 0.15 or clickables in ([], ["search"]):
        return f"search[{' '.join(rng.sample(words, min(len(words), 4)))}]"
    return f"click[{rng.choice(clickables)}]"
