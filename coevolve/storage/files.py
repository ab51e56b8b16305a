"""Files that are whole or absent: written to a temporary name, then renamed; their hashes, and errors of the disk."""

import contextlib
import errno
import glob
import hashlib
import json
import os
import re
import stat
import uuid
from collections.abc import Collection, Iterator
from io import BufferedReader
from pathlib import Path
from typing import Any

from coevolve.errors import UserError, brief

#: The file of a result folder that holds its provenance.
PROVENANCE = "provenance.json"


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file so that at any moment it is the old one or the new one; raises as `disk_errors`."""
    temporary = temporary_name(path)
    with disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with temporary.open("xb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)


def write_json(path: Path, value: Any) -> None:
    """Write JSON data, indented, with its keys in the order given."""
    write_bytes(path, (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode())


def read_json(path: Path) -> Any:
    """The value in a JSON file; raises `UserError` if it cannot be read, or holds anything else."""
    try:
        return json.loads(read_bytes(path))
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: not readable as JSON ({brief(error)}); make or copy the file again.") from None


def sha256(path: Path, without: Collection[str] = ()) -> str:
    """sha256 of a file's bytes, or of a directory's names and file hashes in order.

    Hidden entries of a directory do not count, nor do its files with a name in `without`.
    """
    if path.is_dir():
        files = sorted(p for p in path.rglob("*") if p.is_file() and not _hidden(p.relative_to(path)))
        counted = [file for file in files if file.name not in without]
        listing = "".join(f"{file.relative_to(path).as_posix()} {sha256(file)}\n" for file in counted)
        return hashlib.sha256(listing.encode()).hexdigest()
    with open_file(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def verified(path: Path, expected: str, key: str) -> Path:
    """`path`, if its sha256 is `expected`; raises `UserError` with the config key otherwise."""
    if not path.exists():
        raise UserError(f"{path}: no such file; put it there or change `{key}.path`.")
    actual = sha256(path)
    if actual != expected:
        raise UserError(
            f"{path}: sha256 is {actual}, but `{key}.sha256` is {expected}; fetch it again or correct the key."
        )
    return path


def read_bytes(path: Path) -> bytes:
    """The bytes of a file that a stage makes; raises `UserError` if it does not exist or cannot be read."""
    with read_errors(path), open_file(path) as file:
        return file.read()


def open_file(path: Path) -> BufferedReader:
    """A regular file, opened for reading; raises `OSError` for a pipe or a device, whose bytes may never end."""
    descriptor = os.open(str(path), os.O_RDONLY | os.O_NONBLOCK)
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return os.fdopen(descriptor, "rb")
    os.close(descriptor)
    raise OSError(errno.ESPIPE, "not a regular file", str(path))


@contextlib.contextmanager
def read_errors(path: Path) -> Iterator[None]:
    """Raise `UserError` if the file that a stage makes does not exist or cannot be read."""
    try:
        yield
    except FileNotFoundError:
        raise UserError(f"{path}: no such file; run the stage that makes it.") from None
    except OSError as error:
        raise UserError(disk_problem(error)) from None


#: What the user can do about an error of the operating system.
_REMEDIES = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), "make room, then run again"),
    errno.EFBIG: "raise the limit of file sizes (`ulimit -f`), or make room, then run again",
    errno.EROFS: "the disk is mounted read-only: name a folder on another disk",
    **dict.fromkeys((errno.EACCES, errno.EPERM), "give this user the permission, or name another path"),
    **dict.fromkeys((errno.EMFILE, errno.ENFILE), "raise the limit of open files (`ulimit -n`), then run again"),
    **dict.fromkeys((errno.ENOTDIR, errno.EISDIR, errno.EEXIST), "name another path, or remove what is there"),
    **dict.fromkeys((errno.ENAMETOOLONG, errno.ELOOP), "name another path"),
    errno.ESPIPE: "name a regular file",
    errno.EIO: "the disk failed: copy the files to another one",
}


@contextlib.contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Turn an error of the disk while `path` is written into a `UserError`: full, read-only, no permission.

    The message names the file that the error names, which can be an input; an error without one is of `path`.
    """
    try:
        yield
    except Exception as error:
        of_system = error if isinstance(error, OSError) else _of_library(str(error))
        if isinstance(error, UserError) or not of_system or not is_disk_problem(of_system):
            raise
        raise UserError(disk_problem(of_system, path)) from error


def _of_library(text: str) -> OSError | None:
    """The error of the operating system that safetensors, tokenizers and PyTorch raise as another one; None if none."""
    if number := re.search(r"\(os error (\d+)\)", text):
        return OSError(int(number[1]), os.strerror(int(number[1])))
    if re.search(f"unexpected pos|StreamWriter failed|iostream error|{os.strerror(errno.ENOSPC)}", text):
        return OSError(errno.ENOSPC, "PyTorch could not write it whole")
    return None


def is_disk_problem(error: OSError) -> bool:
    """Whether the user can correct this error of the operating system, so that a traceback would be of no use."""
    return error.errno in _REMEDIES


def disk_problem(error: OSError, path: Path | None = None) -> str:
    """The sentence about an error of the operating system; `path` is the file that was written, if one was."""
    remedy = _REMEDIES.get(error.errno or 0, "correct the path, then run again")
    named = Path(os.fsdecode(error.filename)) if isinstance(error.filename, str | bytes) else None
    if path is None or (named and not _concerns(named, path)):
        return f"{named or 'a file'}: cannot be read ({error.strerror or error}); {remedy}."
    return f"{path}: cannot be written ({error.strerror or error}); {remedy}."


def _concerns(named: Path, path: Path) -> bool:
    """Whether a file is `path`, a folder above it, or its temporary name or a file in that."""
    within = (named, *named.parents)
    temporary = any(part.parent == path.parent and part.match(_pattern(path)) for part in within)
    return named in path.parents or path in within or temporary


def temporary_name(path: Path) -> Path:
    """A new name under which `path` is written, so that no other process writes or deletes it."""
    return path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.tmp")


def temporary_names(path: Path) -> Iterator[Path]:
    """What is on disk under temporary names of `path`."""
    return path.parent.glob(_pattern(path))


def _pattern(path: Path) -> str:
    return f".{glob.escape(path.name)}.{'[0-9a-f]' * 8}.tmp"


def _hidden(relative: Path) -> bool:
    return any(part.startswith(".") for part in relative.parts)
