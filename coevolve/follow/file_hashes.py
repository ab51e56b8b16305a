"""The sha256 of files as they are now, read again only if a file's size, inode or times differ from those recorded."""

import contextlib
import hashlib
from pathlib import Path

from coevolve.errors import UserError
from coevolve.storage import files, policy_dir

#: The file in a suite's results with what was recorded: by path the sizes, inodes and times, and the sha256.
NAME = ".hashes.json"


class FileHashes:
    """The hashes of a suite's files, with what earlier commands recorded of them; `full`: every file is read."""

    def __init__(self, home: Path, *, full: bool = False) -> None:
        self._path = home / NAME
        self._full = full
        self._known: dict[str, list[str]] = {}
        with contextlib.suppress(UserError):
            self._known = {} if full else dict(files.read_json(self._path))
        self._recorded = dict(self._known)

    def is_other(self, path: Path, sha256: str, written: float) -> bool:
        """Whether a file or folder has another hash than that of its provenance, which was written at this time.

        Folders and weights, which are large, count as they were while nothing is recorded and none of it is newer.
        """
        states = {part: part.stat() for part in (path, *sorted(path.rglob("*")))}
        lines = (f"{part} {s.st_size} {s.st_ino} {s.st_mtime_ns} {s.st_ctime_ns}\n" for part, s in states.items())
        stamp = hashlib.sha256("".join(lines).encode()).hexdigest()
        known = self._known.get(str(path))
        if known is None or known[0] != stamp:
            large = path.is_dir() or path.match(policy_dir.WEIGHTS)
            old = known is None and all(state.st_mtime <= written for state in states.values())
            self._known[str(path)] = [stamp, sha256 if large and old and not self._full else files.sha256(path)]
        return self._known[str(path)][1] != sha256

    def save(self) -> None:
        """Record the hashes, where the results can be written."""
        if self._known != self._recorded:
            with contextlib.suppress(UserError):
                files.write_json(self._path, self._known)
