"""Checks a result without a model: actions are executed again, and records and pairs are made again."""

from __future__ import annotations

import contextlib
import functools
import itertools
import lzma
import tarfile
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError

from coevolve.config.restriction import part_of
from coevolve.envs.base import EnvError
from coevolve.errors import UserError, brief
from coevolve.export import suite_evidence, suite_export
from coevolve.pipeline.branch import Branch
from coevolve.pipeline.job import Job
from coevolve.pipeline.registry import REMADE, STAGES
from coevolve.pipeline.stages import evaluate
from coevolve.records.base import Record, is_none
from coevolve.records.episodes import Trajectory
from coevolve.records.provenance import Provenance
from coevolve.results.tables import of_job
from coevolve.shipped import shipped_file
from coevolve.storage import files, jsonl, provenance, pruned
from coevolve.watch import reexecution
from coevolve.watch.reexecution import Environments, FileDifference, Locate

EPISODES, RECORDS = "episodes.jsonl", "records.jsonl"
#: The most that an archive is unpacked to; a small one can hold much larger files.
MAX_ARCHIVE_BYTES = 1 << 34


class FileCheck(Record):
    """What was found of a file: as it was made, different, or not to be checked here; `how`: by which check, or why.

    `context` counts episodes that ended with a full context, which was not checked, `failed` those that an error of the
    environment ended, which were not executed.
    """

    file: str
    status: Literal["same", "differs", "unchecked"]
    how: str
    difference: FileDifference | None = Field(default=None, exclude_if=is_none)
    episodes: int = 0
    turns: int = 0
    context: int = 0
    failed: int = 0

    def __str__(self) -> str:
        return f"{self.status:9}  {self.file}: " + (f"{self.difference} ({self.how})" if self.difference else self.how)


class Reverification(Record):
    """The outcome for a folder: its files that were executed or made again, and each other file that differs.

    `hashed` counts the others, whose sha256 is that of their provenance. `seconds` is wall time.
    """

    folder: str
    files: tuple[FileCheck, ...]
    hashed: int
    seconds: float

    @property
    def exit_status(self) -> int:
        """1: a file differs; else 0: some were executed or made again; 3: none was."""
        statuses = {check.status for check in self.files}
        return 1 if "differs" in statuses else 0 if "same" in statuses else 3

    def summary(self) -> str:
        """The counts in sentences."""
        statuses: list[str] = [check.status for check in self.files]
        same, differs, unchecked = map(statuses.count, ("same", "differs", "unchecked"))
        episodes, turns, context, failed = (
            sum(getattr(check, name) for check in self.files) for name in ("episodes", "turns", "context", "failed")
        )
        return (
            f"{same} files are as they were made, {differs} differ, {unchecked} could not be checked; {self.hashed} "
            f"others have the sha256 of their provenance. {episodes:,} episodes with {turns:,} turns were executed in "
            f"{self.seconds:.0f} s. Not checked: {context:,} ends by a full context, and {failed:,} episodes that an "
            "error of the environment ended."
        )


def reverify(
    path: Path, cache: Path, show: Callable[[FileCheck], None], given: Mapping[str, Any] | None = None
) -> Reverification:
    """Check a folder of results, or an archive of them; calls `show` with the outcome of each file.

    `cache`: folder of what environments prepare. `given`: this machine's own settings, in place of a record's
    (`coevolve.config.recorded`). Raises `UserError` if there is no result.
    """
    checks, hashed, began = list[FileCheck](), 0, time.monotonic()
    with contextlib.ExitStack() as stack:
        home = _opened(path, stack)
        results = _results(home, path)
        envs = stack.enter_context(contextlib.closing(Environments(cache.resolve(), given or {})))
        outcomes = (CheckedResult.read(folder, home).check(envs) for folder in results)
        for of_folder, others in itertools.chain([(_unlisted(home, results), 0)], outcomes):
            for check in of_folder:
                show(check)
            checks += of_folder
            hashed += others
    seconds = round(time.monotonic() - began, 1)
    return Reverification(folder=path.as_posix(), files=tuple(checks), hashed=hashed, seconds=seconds)


def _unlisted(home: Path, results: Collection[Path]) -> list[FileCheck]:
    """The files of episodes that no provenance describes."""
    others = [file.relative_to(home) for file in sorted(home.rglob(EPISODES)) if file.parent not in results]
    names = [name.as_posix() for name in others if not _is_hidden(name)]
    return [FileCheck(file=name, status="unchecked", how=f"no {provenance.NAME} beside it") for name in names]


@dataclass(frozen=True)
class CheckedResult:
    """A folder that a stage wrote, with its name in the checked folder, and the sha256 of its files that are here."""

    folder: Path
    name: Path
    record: Provenance
    hashes: dict[str, str]

    @classmethod
    def read(cls, folder: Path, home: Path) -> CheckedResult:
        """The result in a folder; raises `UserError` if its provenance is of another version of the kit."""
        record = provenance.read(folder / provenance.NAME)
        present = [name for name in {EPISODES: "", RECORDS: "", **record.outputs} if (folder / name).exists()]
        return cls(folder, folder.relative_to(home), record, {name: files.sha256(folder / name) for name in present})

    @functools.cached_property
    def changed_input(self) -> FileDifference | None:
        """The first file of the suite that was another when the job read it; no file at its path is no difference."""
        home = Path(self.folder.as_posix().removesuffix(f"/{self.record.result}"))
        for name, sha256 in self.record.inputs.items():
            path = home / name.partition(f"/{home.name}/")[2]
            if path.is_file() and (now := _sha256(path, path.stat().st_mtime_ns)) != sha256:
                return FileDifference(what=f"input {name}", recorded=sha256, now=now)
        return None

    def check(self, envs: Environments) -> tuple[list[FileCheck], int]:
        """The outcome of files that are executed or made again and of others that differ; the number of the rest."""
        executed = [self._executed(envs)] if EPISODES in self.hashes else []
        checks = {check.file: check for check in [*executed, *self._remade(envs.given)]}
        partial = (self.folder / suite_evidence.MARKER).exists()
        for name, sha256 in (dict.fromkeys(self.hashes, "not listed") | self.record.outputs).items():
            now = self.hashes.get(name, sha256 if partial or name in pruned.deleted(self.folder) else "no such file")
            file = (self.name / name).as_posix()
            if now != sha256 and (file not in checks or checks[file].status != "differs"):
                difference = FileDifference(what="sha256", recorded=sha256, now=now)
                checks[file] = self._check(name, f"listed in {provenance.NAME}", difference)
        hashed = sum((self.name / name).as_posix() not in checks for name in self.hashes)
        if self.changed_input:
            checks[""] = self._check(provenance.NAME, "read by the job", self.changed_input)
        return [*checks.values()], hashed

    def locate(self, name: str) -> Path | None:
        """The file of an input of the result's job, below any folder around it; None if none has its sha256."""
        as_recorded = Path(name).absolute(), shipped_file(Path(name)).absolute()
        for path in (*provenance.possible_paths(name, self.folder), *as_recorded):
            if path.is_file() and _sha256(path, path.stat().st_mtime_ns) == self.record.inputs[name]:
                return path
        return None

    def _executed(self, envs: Environments) -> FileCheck:
        """The outcome of executing the episodes again."""
        try:
            episodes = jsonl.read(self.folder / EPISODES, Trajectory)
        except UserError as error:
            return self._check(EPISODES, "read", FileDifference(what="records", now=str(error)))
        try:
            outcome = reexecution.execute(episodes, self.record, self.locate, envs)
        except (UserError, EnvError) as error:
            return self._unchecked(EPISODES, error)
        if isinstance(outcome, FileDifference):
            return self._check(EPISODES, "executed again", outcome)
        how = f"{outcome['episodes']:,} episodes, {outcome['turns']:,} turns executed again"
        return self._check(EPISODES, how).model_copy(update=outcome)

    def _remade(self, given: Mapping[str, Any]) -> list[FileCheck]:
        """The outcomes of the files that are made again."""
        evaluated = RECORDS in self.hashes
        if not evaluated and self.record.stage not in REMADE:
            return []
        if evaluated and EPISODES not in self.hashes:
            return [self._unchecked(RECORDS, "the episodes that it is made of are not here")]
        try:
            record = reexecution.record_here(self.record, given)
            if evaluated:
                return [self._check(RECORDS, "made again", remade_records(self.folder, record))]
            made = remade_files(self.folder, record, self.locate)
        except UserError as error:
            return [self._unchecked(name, error) for name in ([RECORDS] if evaluated else self.hashes)]
        how = f"made again; it was made at commit {self.record.commit[:12]}"
        return [self._check(name, how, difference) for name, difference in made.items()]

    def _check(self, name: str, how: str, difference: FileDifference | None = None) -> FileCheck:
        values: dict[str, Any] = {"file": (self.name / name).as_posix(), "how": how, "difference": difference}
        return FileCheck(status="differs" if difference else "same", **values)

    def _unchecked(self, name: str, reason: object) -> FileCheck:
        return FileCheck(file=(self.name / name).as_posix(), status="unchecked", how=brief(reason))


def remade_records(folder: Path, record: Provenance) -> FileDifference | None:
    """How the `records.jsonl` of an evaluation differs from that of its episodes."""
    quirks = reexecution.quirks(record)
    episodes, samples = jsonl.read(folder / EPISODES, Trajectory), record.config["evaluation"]["samples"]
    needs_actions = reexecution.section(record).needs_actions
    made = evaluate.records(episodes, quirks, record.seeds["suite"], samples, needs_actions)
    return _difference(folder / RECORDS, "".join(f"{each.to_json()}\n" for each in made).encode())


def remade_files(folder: Path, record: Provenance, locate: Locate) -> dict[str, FileDifference | None]:
    """How the files of a stage differ from those that it makes now of the same inputs; by name, of the files here.

    Raises `UserError` if an input is not here, or the settings are of another version of the kit.
    """
    job = remade_job(record, locate)
    with tempfile.TemporaryDirectory() as made:
        STAGES[record.stage].run(job, Path(made))
        present = [path for path in sorted(Path(made).iterdir()) if (folder / path.name).exists()]
        return {path.name: _difference(folder / path.name, path.read_bytes()) for path in present}


def remade_job(record: Provenance, locate: Locate) -> Job:
    """The job of a provenance, with the sections and inputs that it has; raises as `remade_files`."""
    inputs = dict[str, list[Path]]()
    for name in record.inputs:
        if (path := locate(name)) is None:
            raise UserError(f"its input {name} is not here as it was then (sha256 {record.inputs[name][:12]}).")
        inputs.setdefault(_input_name(record, Path(name)), []).append(path)
    try:
        suite = part_of({"without": []} | record.config)  # an empty one is in no record
    except (AttributeError, KeyError, ValidationError):
        raise UserError("its settings are of another version of the kit; check out its commit.") from None
    of = of_job(record)
    branch = Branch(of.method, of.seed, of.iteration)
    return Job(record.stage, suite, inputs, record.wildcards, Path("work"), 1, {}, branch=branch)


def _input_name(record: Provenance, path: Path) -> str:
    """The name of an input of pairs or of a selection: the agent that explored, or a file of the stage `data`."""
    selects = any(name.endswith("/sft.jsonl") for name in record.inputs)
    names = {"explore.jsonl": "tasks", "sft.jsonl": "experts", "example.json": "excluded_example"}
    names |= {"experts.jsonl": "explored_experts" if selects else "experts", "episodes.jsonl": path.parent.name}
    return names[path.name]


def _difference(path: Path, made: bytes) -> FileDifference | None:
    """The first line in which a file differs from what was made now, from 40 characters before the difference on."""
    if (content := path.read_bytes()) == made:
        return None
    texts = (text.decode(errors="replace").split("\n") for text in (content, made))
    lines = itertools.zip_longest(*texts, fillvalue="")
    number, (then, now) = next((number, pair) for number, pair in enumerate(lines, start=1) if pair[0] != pair[1])
    begin = max(0, next((n for n, pair in enumerate(zip(then, now, strict=False)) if pair[0] != pair[1]), 0) - 40)
    return FileDifference(what=f"line {number}", recorded=then[begin:], now=now[begin:])


@functools.cache
def _sha256(path: Path, changed: int) -> str:
    """The sha256 of a file that was changed at this time."""
    return files.sha256(path)


def _is_hidden(relative: Path) -> bool:
    return any(part.startswith(".") for part in relative.parts)


def _opened(path: Path, stack: contextlib.ExitStack) -> Path:
    """The folder itself, or a temporary one with the files of an archive."""
    if path.is_dir():
        return path.resolve()
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory())).resolve()
    try:
        with tarfile.open(path) as archive:
            archive.extractall(folder, members=_bounded(archive, path), filter="data")
    except (OSError, tarfile.TarError, lzma.LZMAError, EOFError) as error:
        problem = f"no folder, and no archive that can be read ({brief(error)})"
        raise UserError(f"{path}: {problem}; name a folder of results, or an archive of results/evidence.") from None
    return folder


def _bounded(archive: tarfile.TarFile, path: Path) -> Iterator[tarfile.TarInfo]:
    """The members of an archive; raises `UserError` before their files are larger than `MAX_ARCHIVE_BYTES` together."""
    total = 0
    for member in archive:
        total += member.size
        if total > MAX_ARCHIVE_BYTES:
            problem = f"its files are larger than {MAX_ARCHIVE_BYTES:,} bytes together"
            raise UserError(f"{path}: {problem}; unpack it, and name the folder.")
        yield member


def _results(home: Path, path: Path) -> list[Path]:
    """The folders of results in `home`; raises `UserError` if there is none, or if it has scores without actions."""
    folders = sorted(each.parent for each in home.rglob(provenance.NAME))
    results = [each for each in folders if not _is_hidden(each.relative_to(home))]
    if played := [each for each in results if not (each / suite_export.JOBS).exists()]:
        return played
    if results:
        problem = "has the scores of a run and not its actions, so nothing can be executed again"
        raise UserError(f"{path}: {problem}; the archives of results/evidence have actions.")
    raise UserError(f"{path}: no {provenance.NAME} in it; name a folder of results, such as results/SUITE.")
