"""Extraction of the archives that IPR's `setup.sh` downloads into the files that a config names."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from coevolve.envs.intercode_sql import tasks
from coevolve.errors import UserError
from coevolve.storage import archives, files

TRAIN, TEST, EXPERTS = "ic_spider_train.json", "ic_spider_test.json", "intercode_sql_sft.json"


def unpack(paths: Sequence[Path], out: Path) -> dict[str, str]:
    """Extract training items, test items, expert trajectories and dumps to `out`; returns sha256 by file name.

    Raises `UserError` naming an archive that is not a zip file, or a file that is missing or does not fit IPR's lists.
    Nothing is written then.
    """
    members = {name: content for archive in paths for name, content in _members(archive)}
    for name in (TRAIN, TEST, EXPERTS):
        if name not in members:
            raise UserError(f"{', '.join(map(str, paths))}: no {name} inside; give both archives of IPR's setup.sh.")
    training = set(tasks.indices("ipr/train_indices.json"))
    _require(TRAIN, len(_items(members, TRAIN)) > max(training), f"has no item {max(training)}")
    _require(TEST, len(_items(members, TEST)) == tasks.USABLE, f"does not have {tasks.USABLE} items")
    missing = {str(number) for number in training} - {str(item.get("id")) for item in _items(members, EXPERTS)}
    _require(EXPERTS, not missing, f"lacks {len(missing)} of {len(training)} training items")
    for name, content in members.items():
        files.write_bytes(out / name, content)
    return {name: files.sha256(out / name) for name in sorted(members)}


def _members(archive: Path) -> Iterator[tuple[str, bytes]]:
    """Names, without folders, and contents of the files to extract."""
    with archives.open_zip(archive) as opened:
        for path in opened.namelist():
            name = PurePosixPath(path).name
            if name in (TRAIN, TEST, EXPERTS) or name.endswith(".sql"):
                yield name, archives.read_member(opened, path)


def _items(members: dict[str, bytes], name: str) -> list[dict[str, Any]]:
    try:
        items = json.loads(members[name])
    except (ValueError, RecursionError) as error:
        raise UserError(f"{name}: not readable as JSON ({error}); download the archive again.") from None
    _require(name, isinstance(items, list) and all(isinstance(item, dict) for item in items), "is not a list of items")
    return list(items)


def _require(name: str, condition: bool, problem: str) -> None:
    if not condition:
        raise UserError(f"{name}: it {problem}, so it is not IPR's; download the archive again.")
