"""Folders that are whole or absent: written under a temporary name, then renamed."""

import contextlib
import os
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

from coevolve.errors import UserError
from coevolve.storage.files import disk_errors, temporary_name


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

    Raises `UserError` if `path` is a file or a link, and as `disk_errors`.
    """
    temporary, replaced = temporary_name(path), path.with_name(f".{path.name}.old")
    if path.is_symlink() or (path.exists() and not path.is_dir()):
        raise UserError(f"{path}: exists and is not a folder; name another folder, or remove it.")
    try:
        with disk_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            _remove(temporary)
            temporary.mkdir()
            yield temporary
            # A deletion takes time, so the old folder is deleted under another name: `path` is never half a folder.
            _remove(replaced)
            if path.exists():
                path.rename(replaced)
            temporary.replace(path)
    finally:
        for leftover in (temporary, replaced):
            shutil.rmtree(leftover, ignore_errors=True)


def named_directory(path: Path, written: Iterable[str]) -> contextlib.AbstractContextManager[Path]:
    """`directory`, for a folder that the user names; raises `UserError` if it has an entry that is not `written`."""
    if not path.name:
        raise UserError(f"{path}: cannot be replaced as a whole; name a folder in it.")
    others = sorted(entry.name for entry in path.iterdir() if entry.name not in {*written}) if path.is_dir() else []
    if others:
        raise UserError(f"{path}: has {others[0]}, which is not of this export; name another folder, or remove it.")
    return directory(path)


def _remove(folder: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(folder)
