"""The packages of environments by kind, of this distribution and of others.

An environment of kind `K` is the package `coevolve.envs.K`, or the package that an installed distribution names as its
entry point `K` of the group `coevolve.envs`. Its section is the subclass of `EnvSection` in the package's module
`config`. The module is imported by name when a suite first names the kind, so the code digest of a job covers the
sections of its own environments and no others.
"""

import functools
import importlib
import importlib.util
import json
import pkgutil
from collections.abc import Iterable
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

from pydantic import ModelWrapValidatorHandler, SerializeAsAny, ValidationError, WrapValidator
from pydantic_core import PydanticCustomError

from coevolve.config.environments import EnvSection
from coevolve.config.sections import SENTENCE
from coevolve.errors import UserError, suggestion

#: The package whose subpackages are the environments, and the group of entry points that name others.
ENVIRONMENTS = "coevolve.envs"


def module_name(kind: str, name: str) -> str:
    """The full name of a module in an environment's package; raises `UserError` if several packages have the kind."""
    return f"{_package(kind)}.{name}"


@functools.cache
def has_module(kind: str, name: str) -> bool:
    """Whether an environment's package has the module; False for a kind without a package."""
    try:
        return kind in known_kinds() and importlib.util.find_spec(module_name(kind, name)) is not None
    except ImportError:  # an entry point that names no package
        return False


def known_kinds() -> list[str]:
    """The kinds of environments in alphabetical order: the packages under `coevolve.envs`, and the entry points."""
    return sorted({*_built_in_kinds(), *_entry_points()})


def distributions(kinds: Iterable[str]) -> list[str]:
    """Names of the installed distributions, other than this one, that the environments come from."""
    points = (point for kind in kinds for point in _entry_points().get(kind, ()))
    return sorted({point.dist.name for point in points if point.dist})


def section_class(kind: str) -> type[EnvSection]:
    """The section class of a kind; raises `UserError` unless its package has a module `config` with one."""
    name = module_name(kind, "config")
    try:
        module = importlib.import_module(name)
    except ImportError as error:
        raise UserError(f"environment `{kind}`: cannot import `{name}` ({error}); {_fix(kind)}") from None
    sections = [
        value
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, EnvSection) and value.__module__ == module.__name__
    ]
    if len(sections) != 1:
        count = f"{len(sections)} subclasses of `EnvSection`"
        raise UserError(f"environment `{kind}`: {count} in the module `{name}`, it must have one; {_fix(kind)}")
    return sections[0]


def _fix(kind: str) -> str:
    """What to do about a package that cannot be used."""
    names = ", ".join(distributions([kind]))
    return f"correct the package or remove it (`pip uninstall {names}`)." if names else "correct the package."


def _package(kind: str) -> str:
    """The package of a kind, of this distribution unless an entry point names another."""
    points = _entry_points().get(kind, ())
    packages = {*(point.value for point in points), *([f"{ENVIRONMENTS}.{kind}"] if kind in _built_in_kinds() else [])}
    if len(packages) > 1:
        raise UserError(f"environment `{kind}`: several packages have it ({', '.join(sorted(packages))}); {_fix(kind)}")
    return packages.pop() if packages else f"{ENVIRONMENTS}.{kind}"


@functools.cache
def _built_in_kinds() -> frozenset[str]:
    packages = pkgutil.iter_modules(importlib.import_module(ENVIRONMENTS).__path__)
    return frozenset(package.name for package in packages if package.ispkg)


@functools.cache
def _entry_points() -> dict[str, tuple[EntryPoint, ...]]:
    """The installed entry points of the group by name."""
    points = entry_points(group=ENVIRONMENTS)
    return {point.name: tuple(points.select(name=point.name)) for point in points}


def _require_current(point: EntryPoint) -> None:
    """Raises `UserError` if pip copied the package from a folder in which it was edited since: no job would rerun."""
    origin = json.loads((point.dist and point.dist.read_text("direct_url.json")) or "{}")
    if not point.dist or "dir_info" not in origin or origin["dir_info"].get("editable"):
        return
    folder = Path(url2pathname(urlsplit(origin["url"]).path))
    for file in point.dist.files or ():
        edited = next((path for path in (folder / file, folder / "src" / file) if path.is_file()), None)
        if file.suffix == ".py" and edited and edited.read_bytes() != file.read_binary():
            problem = f"{edited} was edited after pip copied it, and the copy is what runs"
            raise UserError(f"environment `{point.name}`: {problem}; run `pip install --editable {folder}`.")


def _by_kind(raw: Any, handler: ModelWrapValidatorHandler[EnvSection]) -> EnvSection:
    """Validates `raw` as the section class of its kind."""
    kind = raw.get("kind") if isinstance(raw, dict) else None
    if not isinstance(kind, str):
        return handler(raw)
    if kind not in known_kinds():
        hint = suggestion(kind, known_kinds()) or f"; known are {', '.join(known_kinds())}"
        # Pydantic substitutes the braces itself.
        error = PydanticCustomError(SENTENCE, "no environment `{kind}`{hint}", {"kind": kind, "hint": hint})
        raise ValidationError.from_exception_data("EnvSection", [{"type": error, "loc": ("kind",), "input": kind}])
    for point in _entry_points().get(kind, ()):
        _require_current(point)
    return section_class(kind).model_validate(raw)


#: A section of any kind: validated and serialised as the section class that its `kind` names.
EnvConfig = Annotated[EnvSection, SerializeAsAny(), WrapValidator(_by_kind)]
