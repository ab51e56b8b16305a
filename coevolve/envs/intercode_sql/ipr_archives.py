"""Extraction of the archives that IPR's `setup.sh` downloads into the files that a config names."""

from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath

from coevolve.errors import UserError
from coevolve.storage import archives, files

TRAIN, TEST, EXPERTS = "ic_spider_train.json", "ic_spider_test.json", "intercode_sql_sft.json"


def unpack(paths: Sequence[Path], out: Path) -> dict[str, str]:
    """Extract training items, test items, expert trajectories and dumps to `out`; returns sha256 by file name.

    Raises `UserError` naming an archive that is not a zip file, or a file that is missing. Nothing is written then.
    Whether the files fit IPR's lists is checked where a suite reads them.
    """
    members = {name: content for archive in paths for name, content in _members(archive)}
    for name in (TRAIN, TEST, EXPERTS):
        if name not in members:
            raise UserError(f"{', '.join(map(str, paths))}: no {name} inside; give both archives of IPR's setup.sh.")
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
