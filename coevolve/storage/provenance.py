"""Whether a result is still as its stage wrote it: files against the `provenance.json` of their folder."""

import contextlib
import logging
from collections.abc import Iterator, Mapping
from pathlib import Path

from pydantic import ValidationError

from coevolve.errors import UserError
from coevolve.records.provenance import Provenance
from coevolve.storage import files

log = logging.getLogger(__name__)
#: The file of a result folder that holds its provenance.
NAME = files.PROVENANCE


def read(path: Path) -> Provenance:
    """The provenance in a file; raises `UserError` if it is missing, or not of this version of the kit."""
    try:
        return Provenance.from_json(files.read_bytes(path))
    except ValidationError:
        raise UserError(f"{path}: not a provenance of this version of the kit; rerun its stage.") from None


def if_valid(path: Path) -> Provenance | None:
    """The provenance in a file; None if it is missing, or not of this version of the kit."""
    with contextlib.suppress(UserError):
        return read(path)
    return None


def possible_paths(name: str, folder: Path) -> Iterator[Path]:
    """Where an input can lie that a provenance in `folder` names: below any folder around it, the nearest first."""
    parts = Path(name).parts
    return (parent.joinpath(*parts[start:]) for parent in folder.parents for start in range(len(parts)))


def input_files(record: Provenance, file: str, folder: Path) -> Iterator[Path]:
    """Files of the recorded sha256 of the inputs called `file`, of the job whose result is in `folder`."""
    for name, sha256 in record.inputs.items():
        if Path(name).name == file:
            paths = (path for path in possible_paths(name, folder.resolve()) if path.is_file())
            yield from (path for path in paths if files.sha256(path) == sha256)


def of_file(path: Path) -> Provenance | None:
    """The provenance in the folder of a file; None if there is none. Raises `UserError` if it is invalid."""
    record = path.with_name(NAME)
    return read(record) if record.exists() else None


def checked(path: Path) -> Path:
    """The path of a result that a command reads; raises `UserError` if the provenance beside it lists other bytes.

    A file without a provenance is reported as unchecked.
    """
    with files.read_errors(path):
        if record := of_file(path):
            check(record, {path: files.sha256(path)})
        else:
            log.warning("%s: unchecked: no %s beside it lists its sha256.", path, NAME)
    return path


def check(record: Provenance, hashes: Mapping[Path, str]) -> None:
    """Raise `UserError` unless each file has the sha256 with which the provenance of its folder lists it."""
    for path, sha256 in hashes.items():
        listed = record.outputs.get(path.name)
        fix = f"delete {path} and run the suite again; `coevolve status` prints the command"
        if listed is None:
            raise UserError(f"{path}: the {NAME} beside it does not list this file; {fix}.")
        if listed != sha256:
            wrote = f"stage `{record.stage}` wrote {listed[:12]}"
            raise UserError(f"{path}: the file was changed: its sha256 is {sha256[:12]}, but {wrote}; {fix}.")
