"""Applies each mutant of `mutants.yaml` to a copy of the code and runs the tests that must fail.

    python tests/mutants/run.py [WORD ...]

With words, only the mutants whose file or description contains one of them. Exit status 1 if a mutant survives, does
not apply, or if its tests do not run; also if the tests fail without any mutant.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import yaml
from pydantic import BaseModel, ConfigDict

ROOT = Path(__file__).parents[2]
LIST = Path(__file__).with_name("mutants.yaml")
#: What an edit can change or a test can write.
COPIED = ("coevolve", "configs", "tests", "pyproject.toml")
#: Links in a copy. All other folders are real ones with links to files: tests copy what git lists, which is no file
#: behind a linked folder.
LINKED = (".git", ".venv")
IGNORED = shutil.ignore_patterns("__pycache__")
SERVER = Path(__file__).with_name("server.py")
SERVERS = threading.local()
#: A wrong edit that makes a test hang is found by this limit, in seconds, in place of the project's.
LIMIT = "--timeout=600"
Result = Literal["killed", "survived", "not found", "not run"]


class Mutant(BaseModel):
    """A wrong edit: `old`, found exactly once in `file`, becomes `new`; one of `tests` (arguments of pytest) fails."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    what: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]

    def occurrences(self, root: Path) -> int:
        """How often the old text is in the file."""
        return (root / self.file).read_text(encoding="utf-8").count(self.old)

    def apply(self, root: Path) -> None:
        """Write the mutated file."""
        path = root / self.file
        path.write_text(path.read_text(encoding="utf-8").replace(self.old, self.new), encoding="utf-8")


def load(path: Path = LIST) -> list[Mutant]:
    """The mutants of a list; raises pydantic's `ValidationError` for a malformed one."""
    return [Mutant.model_validate(item) for item in yaml.safe_load(path.read_text(encoding="utf-8"))]


@contextmanager
def copied(root: Path) -> Iterator[Path]:
    """A copy of the code and tests in a temporary folder, without bytecode that could stand for unmutated code."""
    with tempfile.TemporaryDirectory(prefix="mutant-") as folder:
        for source in root.iterdir():
            target, copy = Path(folder) / source.name, shutil.copy2 if source.name in COPIED else _link
            if source.name in LINKED:
                target.symlink_to(source)
            elif source.is_file():
                copy(source, target)
            elif source.name != ".mutants":
                shutil.copytree(source, target, symlinks=True, copy_function=copy, ignore=IGNORED)
        yield Path(folder)


def _link(source: str | Path, target: str | Path) -> None:
    """The same file under another name, or where that cannot be, on another disk, a copy of it."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def run_tests(root: Path, tests: Sequence[str]) -> int:
    """Exit status of pytest on the tests of a copy, which import the copy; each thread has a server of its own."""
    if not hasattr(SERVERS, "process"):
        SERVERS.process = subprocess.Popen(
            [sys.executable, str(SERVER)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
    SERVERS.process.stdin.write(json.dumps([str(root), list(tests)]) + "\n")
    SERVERS.process.stdin.flush()
    return int(SERVERS.process.stdout.readline())


def judge(mutant: Mutant, root: Path = ROOT) -> Result:
    """What the tests make of one mutant."""
    if mutant.occurrences(root) != 1:
        return "not found"
    with copied(root) as copy:
        mutant.apply(copy)
        status = run_tests(copy, (LIMIT, *mutant.tests))
    return {0: "survived", 1: "killed"}.get(status, "not run")  # type: ignore[return-value]


def main(words: Sequence[str], mutants: Sequence[Mutant], root: Path = ROOT) -> int:
    """Print each mutant's result and the counts; 0 if all are killed."""
    chosen = [each for each in mutants if not words or any(word in f"{each.file} {each.what}" for word in words)]
    if not chosen:
        print("no such mutant")
        return 1
    tests = list(dict.fromkeys(test for mutant in chosen for test in mutant.tests))
    with copied(root) as copy:
        if status := run_tests(copy, tests):
            print(f"The tests fail without a mutant (pytest's exit status {status}): {' '.join(tests)}")
            return 1
    counts: Counter[str] = Counter()
    for number, mutant in enumerate(chosen, start=1):
        started = time.monotonic()
        result = judge(mutant, root)
        counts[result] += 1
        seconds = time.monotonic() - started
        print(f"{number:3}/{len(chosen)} {result:9} {seconds:4.0f} s  {mutant.file}: {mutant.what}", flush=True)
    print(", ".join(f"{count} {result}" for result, count in counts.items()))
    return 0 if counts["killed"] == len(chosen) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], load()))
