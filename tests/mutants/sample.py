"""Draws wrong edits at random and runs the tests that cover their lines; prints the share that survives, by room.

    python tests/mutants/sample.py [--core 200] [--rest 200] [--changed REVISION] [--minutes 60] [--another 1]
    python tests/mutants/sample.py --again [--seconds 300]
    python tests/mutants/sample.py --slow tests/run/test_online_launch.py

The edits follow from the tree of the commit that is checked out, and from the number of `--another` sample of it. What
was done is kept in `.mutants/`: the same command goes on where it ended. A first part records which tests cover which
lines (coverage.py), again for test files that have changed. The second command judges once more what survived,
the third by slow tests. An edit that no test can notice, because it changes nothing, is listed with the reason in
`equivalent.yaml`.
"""

import argparse
import hashlib
import json
import os
import random
import re
import sqlite3
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pytest
import yaml
from coverage.numbits import numbits_to_nums
from scipy.stats import binomtest

sys.path.insert(0, str(Path(__file__).parents[1]))
from mutants.operators import Edit, edits
from mutants.run import ROOT, copied, run_tests

EQUIVALENT = Path(__file__).with_name("equivalent.yaml")
#: Of a mistake here every number is wrong.
CORE = re.compile(r"coevolve/(methods|train|chat)/|coevolve/report/(stats|comparison|measurement|claim_tests|verdicts)")
#: Tests that run first; all others that cover the line follow if these pass.
FIRST = 12
#: The tests of a line that run longer than this together, when the lines are recorded, are not all run.
SECONDS = 90.0
#: Tests that take longer, with the fixtures that they share, follow after all others.
LONG = 10.0
#: How pytest exits where no test has stopped it; a file may have slow tests alone.
ENDED = (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.NO_TESTS_COLLECTED)
#: Tests of machines, pages and tests.
LEFT_OUT = {"slurm", "mutants", "docs", "containers", "airgap", "wheel", "benchmarks", "test_laws.py"}


@dataclass(frozen=True)
class Mutation:
    """An edit of a file, and the text of its first line before and after."""

    file: str
    edit: Edit
    old: str
    new: str

    @classmethod
    def of(cls, file: str, edit: Edit, source: str) -> "Mutation":
        row = source.count("\n", 0, edit.start)
        old, new = (text.splitlines()[row].strip() for text in (source, edit.apply(source)))
        return cls(file, edit, old, new)

    @property
    def name(self) -> str:
        """The same in each commit that has the line."""
        return f"{self.file}: {self.edit.operator}: {self.old} -> {self.new}"

    @property
    def room(self) -> str:
        return Path(self.file).parts[1]


def draw(count: int, files: Mapping[str, str], seed: str, only: Mapping[str, set[int]] | None = None) -> list[Mutation]:
    """`count` edits on different lines; each line that can be edited is as probable as any other."""
    by_line: dict[tuple[str, int], list[Edit]] = defaultdict(list)
    for file, source in files.items():
        for edit in edits(source):
            if only is None or edit.line in only.get(file, ()):
                by_line[file, edit.line].append(edit)
    randomness = random.Random(seed)
    lines = randomness.sample(sorted(by_line), len(by_line))
    drawn: list[Mutation] = []
    for file, line in lines:
        if len(drawn) == count:
            break
        edit = randomness.choice(by_line[file, line])
        if _compiles(edit.apply(files[file])):
            drawn.append(Mutation.of(file, edit, files[file]))
    return drawn


def _compiles(source: str) -> bool:
    try:
        compile(source, "mutant", "exec")
    except SyntaxError:
        return False
    return True


class Cover:
    """Which tests execute a line: a database that one run of the quick tests makes, folder by folder, for a commit."""

    def __init__(self, folder: Path, root: Path = ROOT) -> None:
        self.folder, self.root = folder, root

    def record(self) -> None:
        """Run the test files that were not run as they are now, in a copy of the tree: as edits will be judged."""
        self.folder.mkdir(parents=True, exist_ok=True)
        rooms = {path.relative_to(self.root / "tests").parts[0] for path in (self.root / "tests").rglob("test_*.py")}
        with ThreadPoolExecutor(2) as pool:
            for room, files in pool.map(self._record, sorted(rooms - LEFT_OUT)):
                if files:
                    print(f"lines covered by {files} files of tests/{room}", flush=True)

    def _record(self, room: str) -> tuple[str, int]:
        """The room and the number of its test files that were run."""
        done, data, tests = (self.folder / f"{room}.{kind}" for kind in ("done", "coverage", "tests"))
        digests = self._digests(self.root / "tests" / room)
        changed = _changed(json.loads(done.read_text()) if done.exists() else {}, digests)
        if not changed:
            return room, 0
        for part in self.folder.glob(f"{data.name}*"):
            part.unlink()
        rows = [json.loads(line) for line in tests.read_text().splitlines()] if tests.exists() else []
        kept = [row for row in rows if row[0].partition("::")[0] not in changed]
        tests.write_text("".join(json.dumps(row) + "\n" for row in kept))
        with copied(self.root) as copy:
            settings = self.folder / f"{room}.rc"
            settings.write_text(
                f"[run]\ninclude = */coevolve/*\ndata_file = {data}\nparallel = true\npatch = _exit, fork\n"
                "context = ${COVERED_BY-}\ndisable_warnings = dynamic-conflict\n"
            )
            variables = {"COVERAGE_PROCESS_START": str(settings), "TESTS_RUN": str(tests), "OMP_NUM_THREADS": "1"}
            command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "mutants.contexts"]
            command += ["--tb=native", "-m", "not slow and not dag", *changed]
            variables["PYTHONPATH"] = f"{copy}:{Path(__file__).parents[1]}"
            with done.with_suffix(".log").open("w") as log:
                ended = subprocess.run(command, cwd=copy, env=os.environ | variables, stdout=log, check=False)
            if ended.returncode not in ENDED:
                raise RuntimeError(f"{log.name}: pytest did not run tests/{room} to its end")
            for part in self.folder.glob(f"{data.name}.*"):
                try:
                    _collect(part, self.folder / "lines.sqlite")
                except sqlite3.DatabaseError as error:  # of a process that a test has killed while it wrote
                    print(f"tests/{room}: the lines of one process are lost ({error})", flush=True)
                part.unlink()
        done.write_text(json.dumps(digests))
        return room, len(changed)

    def _digests(self, room: Path) -> dict[str, str]:
        """The sha256 of each Python file of a room, which may be one file."""
        files = (path for path in sorted([room, *room.rglob("*.py")]) if path.is_file())
        return {path.relative_to(self.root).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}

    @cached_property
    def run(self) -> dict[str, tuple[float, set[str]]]:
        """The seconds of each test that passes and is still there, and the fixtures that it shares; also of these."""
        rows = [json.loads(line) for file in self.folder.glob("*.tests") for line in file.read_text().splitlines()]
        failing = {name for name, _, passed, _ in rows if not passed}
        found: dict[str, tuple[float, set[str]]] = defaultdict(lambda: (0.0, set()))
        for name, seconds, _, fixtures in rows:
            if name.startswith("fixture "):
                found[name] = (max(found[name][0], seconds), set())
            elif name not in failing:
                found[name] = (found[name][0] + seconds, found[name][1] | set(fixtures))
        return {name: row for name, row in found.items() if "::" not in name or self._is_there(*name.split("::"))}

    def _seconds(self, test: str, ready: Collection[str] = ()) -> float:
        """Of a test with its shared fixtures, of which some are `ready`."""
        seconds, shared = self.run[test]
        return seconds + sum(self.run[name][0] for name in shared if name in self.run and name not in ready)

    def _is_there(self, file: str, name: str) -> bool:
        path = self.root / file
        return path.is_file() and f"def {name}(" in path.read_text()

    def tests(self, file: str, line: int) -> list[str]:
        """Names of tests that execute the line, quick ones first, of its module before its folder before others.

        Of a line that is executed at the import: all tests of its module.
        """
        with sqlite3.connect(self.folder / "lines.sqlite") as database:
            of_line = "select distinct name from line where file = ? and line = ?"
            contexts = {name for (name,) in database.execute(of_line, (file, line))}
            if "" in contexts:
                contexts = {name for (name,) in database.execute("select name from line where file = ?", (file,))}
        stem, room = Path(file).stem, Path(file).parts[1]

        def order(test: str) -> tuple[bool, bool, bool, float]:
            path, seconds = Path(test.partition("::")[0]), self._seconds(test)
            return seconds > LONG, stem not in path.stem, path.parts[1] != room, seconds

        named = ((name, shared) for name, (_, shared) in self.run.items() if "::" in name)
        return sorted((name for name, shared in named if contexts & {name, *shared}), key=order)

    def within(self, tests: Sequence[str], seconds: float) -> list[str]:
        """Tests that took this time together, with a fixture that several share once; the first have precedence."""
        fitting: list[str] = []
        ready: set[str] = set()
        for test in tests:
            needed = self._seconds(test, ready)
            if needed <= seconds:
                fitting.append(test)
                seconds -= needed
                ready |= self.run[test][1]
        return fitting


def _changed(before: Mapping[str, str], digests: Mapping[str, str]) -> list[str]:
    """The test files that differ; all of them if a file differs that they share."""
    changed = [file for file, digest in digests.items() if before.get(file) != digest]
    shared = any(not _is_test(file) for file in changed)
    return [file for file in (digests if shared else changed) if _is_test(file)]


def _is_test(file: str) -> bool:
    return Path(file).name.startswith("test_")


def _collect(part: Path, target: Path) -> None:
    """Add the lines of one process to the database: file, line, test or fixture (empty: at the import).

    A test may have run them in a copy of the tree that it has made.
    """
    with closing(sqlite3.connect(part)) as source, sqlite3.connect(target, timeout=60) as database:
        database.execute("create table if not exists line (file text, line int, name text)")
        database.execute("create index if not exists of_line on line (file, line)")
        query = "select path, context, numbits from line_bits join file on file.id = file_id "
        query += "join context on context.id = context_id"
        rows = {
            (f"coevolve/{path.rpartition('/coevolve/')[2]}", line, context.rpartition("|")[2])
            for path, context, bits in source.execute(query)
            for line in numbits_to_nums(bits)
        }
        database.executemany("insert into line values (?, ?, ?)", sorted(rows))


def judge(mutation: Mutation, tests: Sequence[str], root: Path = ROOT) -> str:
    """`killed`, `survived` or `not covered`."""
    limit = f"--timeout={2 * SECONDS}"
    return judged_by(mutation, [(limit, *part) for part in (tests[:FIRST], tests[FIRST:]) if part], root)


def judged_by(mutation: Mutation, runs: Sequence[Sequence[str]], root: Path = ROOT) -> str:
    """What the first run of pytest makes of an edit that does not pass, each given by its arguments."""
    if not runs:
        return "not covered"
    with copied(root) as copy:
        path = copy / mutation.file
        path.write_text(mutation.edit.apply(path.read_text(encoding="utf-8")), encoding="utf-8")
        return "killed" if any(run_tests(copy, run) != 0 for run in runs) else "survived"


def table(results: Mapping[str, str], mutations: Sequence[Mutation], equivalent: Mapping[str, str]) -> Iterator[str]:
    """Lines: survivors of each room with the Wilson interval of their share, equivalent edits left out."""
    rooms: dict[str, list[str]] = defaultdict(list)
    for mutation in mutations:
        if (result := results.get(mutation.name)) and mutation.name not in equivalent:
            for room in (mutation.room, "core" if CORE.match(mutation.file) else "rest"):
                rooms[room].append(result)
    for room, found in sorted(rooms.items()):
        survived = len(found) - found.count("killed")
        interval = binomtest(survived, len(found)).proportion_ci(method="wilson")
        yield f"{room:12} {survived:3} of {len(found):3} survive, {interval.low:.0%} to {interval.high:.0%}"
    judged = sum(mutation.name in equivalent for mutation in mutations)
    yield f"{judged} of {len(mutations)} edits change nothing (equivalent.yaml)"


def changed_lines(revision: str) -> dict[str, set[int]]:
    """The lines of the package that differ from a revision."""
    text = _git("diff", "--unified=0", revision, "--", "coevolve")
    found: dict[str, set[int]] = defaultdict(set)
    file = ""
    for line in text.splitlines():
        if line.startswith("+++ b/"):
            file = line.removeprefix("+++ b/")
        elif hunk := re.match(r"@@ -\S+ \+(\d+)(?:,(\d+))? @@", line):
            start, count = int(hunk[1]), int(hunk[2] or 1)
            found[file] |= set(range(start, start + count))
    return found


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--core", type=int, default=200, help="edits of the science core")
    parser.add_argument("--rest", type=int, default=200, help="edits elsewhere")
    parser.add_argument("--changed", help="only lines that differ from this revision")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="end after the edit that reaches this time")
    parser.add_argument("--another", default="", help="a number: other edits of the same tree")
    parser.add_argument("--again", action="store_true", help="judge the survivors again, after tests have changed")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of tests for an edit (default: %(default)s)")
    parser.add_argument("--slow", nargs="+", metavar="TEST", help="files of which the slow tests judge the survivors")
    options = parser.parse_args()
    tree = _git("rev-parse", "HEAD:coevolve").strip()
    sources = {path: (ROOT / path).read_text() for path in _git("ls-files", "coevolve/*.py").split()}
    only = changed_lines(options.changed) if options.changed else None
    core = {file: source for file, source in sources.items() if CORE.match(file)}
    rest = {file: source for file, source in sources.items() if file not in core}
    seed = tree + options.another
    mutations = draw(options.core, core, seed, only) + draw(options.rest, rest, seed, only)
    folder = ROOT / ".mutants" / tree[:12]
    cover = Cover(folder / "lines")
    cover.record()
    log = folder / "results.jsonl"
    results = dict(json.loads(line) for line in log.read_text().splitlines()) if log.exists() else {}
    ends = time.monotonic() + 60 * options.minutes
    random.Random(tree).shuffle(mutations)  # a part of the sample is a sample
    todo = ("survived", "not covered") if options.again or options.slow else (None,)
    equivalent = yaml.safe_load(EQUIVALENT.read_text()) or {}

    def one(mutation: Mutation) -> tuple[str, str] | None:
        if time.monotonic() > ends:
            return None
        if options.slow:
            return mutation.name, judged_by(mutation, [("-m", "slow", *options.slow)])
        tests = cover.within(cover.tests(mutation.file, mutation.edit.line), options.seconds)
        return mutation.name, judge(mutation, tests)

    with ThreadPoolExecutor(2) as pool, log.open("a") as file:
        left = [each for each in mutations if results.get(each.name) in todo and each.name not in equivalent]
        for done in pool.map(one, left):
            if done:
                results[done[0]] = done[1]
                file.write(json.dumps(done) + "\n")
                file.flush()
                judged = sum(each.name in results for each in mutations)
                print(f"{judged}/{len(mutations)} {done[1]:11} {done[0]}", flush=True)
    print("\n".join(table(results, mutations, equivalent)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
