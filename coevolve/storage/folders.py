"""Folders that are whole or absent: written under a temporary name, then renamed."""

import contextlib
import errno
import fcntl
import os
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

from coevolve.errors import UserError
from coevolve.storage.files import disk_errors, temporary_name, temporary_names


def link_or_copy(source: str | Path, target: str | Path) -> None:
    """Hard-link a file, or copy it where no link is allowed; raises FileNotFoundError for a missing source."""
    try:
        os.link(Path(source).resolve(), target)
    except FileNotFoundError:
        raise
    except OSError:
        shutil.copyfile(source, target)


@contextlib.contextmanager
def directory(path: Path) -> Iterator[Path]:
    """A new directory, renamed to `path` when the block ends without an error; an existing one is replaced.

    Of processes that write `path` at once each has a directory of its own; the last one to end stays. Raises
    `UserError` if `path` is a file or a link, and as `disk_errors`.
    """
    if path.is_symlink() or (path.exists() and not path.is_dir()):
        raise UserError(f"{path}: exists and is not a folder; name another folder, or remove it.")
    temporary = temporary_name(path)
    with disk_errors(path), contextlib.ExitStack() as at_end:
        path.parent.mkdir(parents=True, exist_ok=True)
        _remove_abandoned(path)
        temporary.mkdir()
        at_end.callback(shutil.rmtree, temporary, ignore_errors=True)
        handle = os.open(temporary, os.O_RDONLY)
        at_end.callback(os.close, handle)
        with contextlib.suppress(OSError):  # a disk without locks
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield temporary
        while not _is_renamed(temporary, path):
            # A deletion takes time, so the old folder is deleted under another name: `path` is never half a folder.
            replaced = temporary_name(path)
            at_end.callback(shutil.rmtree, replaced, ignore_errors=True)
            with contextlib.suppress(FileNotFoundError):
                path.rename(replaced)


def named_directory(path: Path, written: Iterable[str]) -> contextlib.AbstractContextManager[Path]:
    """`directory`, for a folder that the user names; raises `UserError` if it has an entry that is not `written`."""
    if not path.name:
        raise UserError(f"{path}: cannot be replaced as a whole; name a folder in it.")
    others = sorted(entry.name for entry in path.iterdir() if entry.name not in {*written}) if path.is_dir() else []
    if others:
        raise UserError(f"{path}: has {others[0]}, which is not of this export; name another folder, or remove it.")
    return directory(path)


def _is_renamed(temporary: Path, path: Path) -> bool:
    """Rename a folder; returns False if `path` is a folder with content."""
    try:
        temporary.rename(path)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        return False
    return True


def _remove_abandoned(path: Path) -> None:
    """Delete what killed processes left under temporary names of `path`: no process locks it, and it has content."""
    for leftover in temporary_names(path):
        with contextlib.suppress(OSError):  # locked, deleted meanwhile, or on a disk without locks
            handle = os.open(leftover, os.O_RDONLY | os.O_DIRECTORY)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if any(leftover.iterdir()):
                    shutil.rmtree(leftover)
            finally:
                os.close(handle)
