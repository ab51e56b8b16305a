"""Reading the JSON file of a product again."""

from pathlib import Path
from typing import TypeVar

from pydantic import TypeAdapter, ValidationError

from coevolve.errors import UserError
from coevolve.storage import files

T = TypeVar("T")


def read(path: Path, kind: type[T]) -> T:
    """The content of a product's file; raises `UserError` if it is damaged or of another version of the kit."""
    try:
        return TypeAdapter(kind).validate_json(files.read_bytes(path))
    except ValidationError as error:
        key = ".".join(str(part) for part in error.errors()[0]["loc"])
        problem = f"key `{key}` is not as this version of the kit writes it"
        raise UserError(f"{path}: {problem}; make the file again.") from None
