"""Zip files from outside."""

import contextlib
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path

from coevolve.errors import UserError

#: The largest member that is unpacked; a small archive can hold a much larger one.
MAX_MEMBER_BYTES = 1 << 30


@contextlib.contextmanager
def open_zip(path: Path) -> Iterator[zipfile.ZipFile]:
    """The zip file at `path`; raises `UserError` if it is damaged or encrypted, also while a member is read."""
    try:
        with zipfile.ZipFile(path) as archive:
            yield archive
    except (OSError, EOFError, ValueError, RuntimeError, zipfile.BadZipFile, zlib.error) as error:
        problem = f"not readable as a zip file ({error or type(error).__name__})"
        raise UserError(f"{path}: {problem}; download it again, without a password.") from None


def read_member(archive: zipfile.ZipFile, member: str) -> bytes:
    """The content of a member; raises `KeyError` for an unknown one, `UserError` for one that is too large."""
    if (size := archive.getinfo(member).file_size) > MAX_MEMBER_BYTES:
        raise UserError(f"{archive.filename}: {member} would be {size:,} bytes; download the archive again.")
    return archive.read(member)
