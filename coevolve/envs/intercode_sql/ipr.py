"""IPR's archives, which its `setup.sh` downloads from a drive, taken apart into the files that a config names."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from coevolve.envs.intercode_sql import tasks
from coevolve.errors import UserError
from coevolve.storage import files

TRAIN, TEST, EXPERTS = "ic_spider_train.json", "ic_spider_test.json", "intercode_sql_sft.json"


def unpack(archives: Sequence[Path], out: Path) -> dict[str, str]:
    """Write training items, test items, experts and dumps found in the zip files to `out`; sha256 by file name.

    Raises `UserError` naming the archive for one that is no zip file, and the file for one that is missing or does not
    fit IPR's lists.
    """
    members = {name: content for archive in archives for name, content in _members(archive)}
    for name in (TRAIN, TEST, EXPERTS):
        if name not in members:
            raise UserError(f"{', '.join(map(str, archives))}: no {name} inside; give both archives of IPR's setup.sh.")
    training = set(tasks.indices("ipr/train_indices.json"))
    _expect(TRAIN, len(_items(members, TRAIN)) > max(training), f"has no item {max(training)}")
    _expect(TEST, len(_items(members, TEST)) == tasks.USABLE, f"does not have {tasks.USABLE} items")
    lacking = {str(number) for number in training} - {str(item.get("id")) for item in _items(members, EXPERTS)}
    _expect(EXPERTS, not lacking, f"lacks {len(lacking)} of {len(training)} training items")
    for name, content in members.items():
        files.write_bytes(out / name, content)
    return {name: files.sha256(out / name) for name in sorted(members)}


def _members(archive: Path) -> Iterator[tuple[str, bytes]]:
    """Names, without folders, and contents of the files that are wanted."""
    try:
        with zipfile.ZipFile(archive) as opened:
            for path in opened.namelist():
                name = PurePosixPath(path).name
                if name in (TRAIN, TEST, EXPERTS) or name.endswith(".sql"):
                    yield name, opened.read(path)
    except (OSError, zipfile.BadZipFile) as error:
        raise UserError(f"{archive}: not readable as a zip file ({error}); download it again.") from None


def _items(members: dict[str, bytes], name: str) -> list[dict[str, Any]]:
    try:
        found = json.loads(members[name])
    except ValueError as error:
        raise UserError(f"{name}: not readable as JSON ({error}); download the archive again.") from None
    _expect(name, isinstance(found, list) and all(isinstance(item, dict) for item in found), "is no list of items")
    return list(found)


def _expect(name: str, fits: bool, problem: str) -> None:
    if not fits:
        raise UserError(f"{name}: it {problem}, so it is not IPR's; download the archive again.")
