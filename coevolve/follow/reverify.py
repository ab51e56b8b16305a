"""Checks a result without a model: actions are executed again, and records, pairs and products are made again."""

from __future__ import annotations

import contextlib
import functools
import lzma
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from coevolve.config.kinds import module_name
from coevolve.config.restriction import digest
from coevolve.envs.base import EnvError
from coevolve.errors import UserError, brief
from coevolve.export import suite_evidence, suite_export
from coevolve.follow import reexecution, remaking, rescoring
from coevolve.follow.reexecution import Environments, FileDifference
from coevolve.follow.rescoring import Rescoring
from coevolve.pipeline.registry import REMADE, STAGES
from coevolve.records.base import Record, is_none
from coevolve.records.episodes import Trajectory
from coevolve.records.provenance import Provenance
from coevolve.shipped import shipped_file
from coevolve.storage import code_digest, files, jsonl, provenance, pruned
from coevolve.storage.jsonl import Journal

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

    `hashed` counts the others, whose sha256 is that of their provenance. `seconds` is wall time. `rescored`: the scores
    that the given policy has for its tokens, which change no status.
    """

    folder: str
    rescored: Rescoring | None = Field(default=None, exclude_if=is_none)
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
            f"error of the environment ended.{f' {self.rescored}' if self.rescored else ''}"
        )


class Agreed(Record):
    """A line of the journal: the digest of a result and of the code that checked it, and the outcome of its files."""

    key: str
    checks: tuple[FileCheck, ...]
    hashed: int


def reverify(
    path: Path,
    cache: Path,
    show: Callable[[FileCheck], None],
    policy: Path | None = None,
    turns: int = 1,
    given: Mapping[str, Any] | None = None,
) -> Reverification:
    """Check a folder of results, or an archive of them; calls `show` with the outcome of each file.

    Results that agreed before are read from a journal in `cache`. Up to `turns` turns of a `policy` are scored with it.
    `given`: this machine's own settings, in place of a record's (`coevolve.config.recorded`). Raises `UserError` if
    there is no result, or none of the policy.
    """
    checks, hashed = list[FileCheck](), 0
    with contextlib.ExitStack() as stack:
        home = _opened(path, stack)
        results = _results(home, path)
        played = [each for each in results if (each / EPISODES).exists()]
        rescored = rescoring.rescore(played, policy, turns, given or {}) if policy else None
        began = time.monotonic()
        for file in sorted(home.rglob(EPISODES)):
            if file.parent not in results and not _is_hidden(file.relative_to(home)):
                name = file.relative_to(home).as_posix()
                checks.append(FileCheck(file=name, status="unchecked", how=f"no {provenance.NAME} beside it"))
                show(checks[-1])
        journal = stack.enter_context(contextlib.closing(Journal(cache / "reverify.jsonl", Agreed)))
        envs = stack.enter_context(contextlib.closing(Environments(cache.resolve(), given or {})))
        known = {line.key: line for line in journal.records}
        for folder in results:
            result = CheckedResult.read(folder, home)
            if not (outcome := known.get(key := result.key())):
                outcome = result.check(key, envs)
                if all(check.status == "same" for check in outcome.checks):
                    journal.append(outcome)
            checks += outcome.checks
            hashed += outcome.hashed
            for check in outcome.checks:
                show(check)
    seconds = round(time.monotonic() - began, 1)
    return Reverification(
        folder=path.as_posix(), files=tuple(checks), hashed=hashed, seconds=seconds, rescored=rescored
    )


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

    def key(self) -> str:
        """The digest of the result's name, files and provenance, and of the code that checks it."""
        declared = STAGES.get(self.record.stage)
        modules = [f"{declared.module}.run"] if declared else []
        modules += [module_name(each["kind"], "domain") for each in self.record.config.get("envs", {}).values()]
        code = code_digest.code_digest(__name__, *modules)
        content = files.sha256(self.folder / provenance.NAME), self.hashes, str(self.changed_input)
        return digest([self.name.as_posix(), *content, code])

    @functools.cached_property
    def changed_input(self) -> FileDifference | None:
        """The first file of the suite that was another when the job read it; no file at its path is no difference."""
        home = Path(self.folder.as_posix().removesuffix(f"/{self.record.result}"))
        for name, sha256 in self.record.inputs.items():
            path = home / name.partition(f"/{home.name}/")[2]
            if path.is_file() and (now := _sha256(path, path.stat().st_mtime_ns)) != sha256:
                return FileDifference(what=f"input {name}", recorded=sha256, now=now)
        return None

    def check(self, key: str, envs: Environments) -> Agreed:
        """The outcome of the files that can be executed or made again, and of all others that differ."""
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
        return Agreed(key=key, checks=tuple(checks.values()), hashed=hashed)

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
                return [self._check(RECORDS, "made again", remaking.records(self.folder, record))]
            made = remaking.stage(self.folder, record, self.locate)
        except UserError as error:
            return [self._unchecked(name, error) for name in ([RECORDS] if evaluated else self.hashes)]
        how = f"made again; it was made at commit {self.record.commit[:12]}"
        return [self._check(name, how, difference) for name, difference in made.items()]

    def _check(self, name: str, how: str, difference: FileDifference | None = None) -> FileCheck:
        values: dict[str, Any] = {"file": (self.name / name).as_posix(), "how": how, "difference": difference}
        return FileCheck(status="differs" if difference else "same", **values)

    def _unchecked(self, name: str, reason: object) -> FileCheck:
        return FileCheck(file=(self.name / name).as_posix(), status="unchecked", how=brief(reason))


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
