"""Drive a WebShop checkout that the user has, and compare this implementation with it answer for answer."""

from __future__ import annotations

import contextlib
import json
import random
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from coevolve.envs.webshop.conformance import Line, Report, compare
from coevolve.envs.webshop.tagger import CachedTagger
from coevolve.errors import UserError

_NAMES = ("items_shuffle.json", "items_ins_v2.json", "items_human_ins.json")

DRIVER = Path(__file__).with_name("upstream_driver.py")
#: Actions in an episode that does not end by itself.
STEPS = 25
#: Actions that no page offers, or that upstream's server fails on.
STRANGE = ("buy", "click[no such thing]", "search[]", "think[hm]\nclick[buy now]", "search[<r>]", "search[<q> none]")


def compare_checkout(
    checkout: Path, python: Path, episodes: int = 20, seed: int = 0, human: bool = True, products: int | None = 1000
) -> Report:
    """Run random episodes in upstream's environment and ours, over the product files that the checkout reads.

    `python` is the interpreter of the environment that the checkout runs in; `products` selects one of upstream's
    indexes. Nouns are upstream's own. Raises `UserError` if the checkout does not start or stops.
    """
    settings = (str(seed), "human" if human else "synthetic", str(products or ""))
    with tempfile.TemporaryDirectory() as catalogue, _running(checkout, python, settings) as upstream:
        for file, name in zip(upstream.start["files"], _NAMES, strict=True):
            (Path(catalogue) / name).symlink_to(Path(checkout, file).resolve())
        answers = _answers(upstream, episodes, seed, human, products)
        return compare(Path(catalogue), answers, CachedTagger("upstream", "", True, upstream.nouns))


class _Upstream:
    """Upstream's environment in a process of its own; `start` is what it says once it is built."""

    def __init__(self, process: subprocess.Popen[str], log: IO[str], place: str) -> None:
        assert process.stdin and process.stdout
        self._requests, self._answers = process.stdin, process.stdout
        self._log, self._place = log, place
        self.start = self._answer()

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """What upstream answers to one request of the driver's."""
        with contextlib.suppress(BrokenPipeError):
            self._requests.write(json.dumps(request) + "\n")
            self._requests.flush()
        return self._answer()

    def nouns(self, title: str) -> list[str]:
        """What upstream's tagger takes for nouns."""
        return list(self.ask({"nouns": title})["nouns"])

    def _answer(self) -> dict[str, Any]:
        line = self._answers.readline()
        if not line:
            self._log.seek(0)
            last = self._log.read().strip().rpartition("\n")[2]
            raise UserError(f"{self._place}: WebShop stopped ({last}); make it run there by itself first.")
        return dict(json.loads(line))


@contextlib.contextmanager
def _running(checkout: Path, python: Path, settings: tuple[str, ...]) -> Iterator[_Upstream]:
    """Upstream's environment, ended with the block."""
    place = f"{checkout} under {python}"
    with tempfile.TemporaryFile("w+") as log:
        # As text, so that the folder of this package is not among those that upstream imports from.
        command = [str(python), "-c", DRIVER.read_text(encoding="utf-8"), str(checkout.resolve()), *settings]
        pipe = subprocess.PIPE
        try:
            process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=log, text=True, cwd=checkout)
        except OSError as error:
            raise UserError(f"{place}: does not start ({error.strerror}); correct the two paths.") from None
        try:
            yield _Upstream(process, log, place)
        finally:
            process.kill()
            with contextlib.suppress(BrokenPipeError):
                process.communicate()


def _answers(
    upstream: _Upstream, episodes: int, seed: int, human: bool, products: int | None
) -> Iterator[tuple[str, Line]]:
    """Upstream's answers as lines of recorded traces."""
    goals = upstream.start["goals"]
    meta = {"kind": "meta", "seed_before_ctor": seed, "human_goals": human, "num_products": products}
    yield "start", {**meta, "prices": upstream.start["prices"], "goals": goals}
    rng = random.Random(seed)
    for number in range(episodes):
        yield f"episode {number}", _episode(upstream, rng.randrange(len(goals)), rng)


def _episode(upstream: _Upstream, goal: int, rng: random.Random) -> Line:
    """A random episode; where upstream's server fails, ours must change nothing, and there the episode ends."""
    seen = first = upstream.ask({"reset": goal})
    steps: list[dict[str, Any]] = []
    for _ in range(STEPS):
        action = _action(seen["clickables"], upstream.start["goals"][goal]["instruction_text"].split(), rng)
        answer = upstream.ask({"step": action})
        failed = "error" in answer
        seen = {**seen, "reward": 0.0, "done": False} if failed else answer
        steps.append({"action": action, **seen})
        if seen["done"] or failed:
            break
    return {"kind": "episode", "goal_idx": goal, "reset_obs": first["obs"], "info": seen["details"], "steps": steps}


def _action(clickables: list[str], words: list[str], rng: random.Random) -> str:
    """Mostly a click on something there, else a search for words of the instruction, seldom something strange."""
    if rng.random() < 0.05:
        return rng.choice(STRANGE)
    if rng.random() < 0.15 or clickables in ([], ["search"]):
        return f"search[{' '.join(rng.sample(words, min(len(words), 4)))}]"
    return f"click[{rng.choice(clickables)}]"
