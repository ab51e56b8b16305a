"""YAML files merged through `extends:`, each key with the file and line that set it."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TextIO

import yaml

from coevolve.errors import UserError, brief, suggestion
from coevolve.shipped import CONFIGS

#: Folders below `configs/` in which a file that another extends is searched.
SEARCHED = (".", "suites", "suites/studies", "parts")


class Section(dict[str, Any]):
    """A mapping of a YAML file. `origins` names for each key what set it, such as `configs/suites/smoke.yaml:6`."""

    def __init__(self, values: Mapping[str, Any], origins: Mapping[str, str]) -> None:
        super().__init__(values)
        self.origins = dict(origins)

    def over(self, base: Section) -> Section:
        """The keys of `base` and then of this section; where both have a key, sections merge, others replace."""
        merged = Section(base, base.origins | self.origins)
        for key, value in self.items():
            below = merged.get(key)
            both = isinstance(value, Section) and isinstance(below, Section)
            merged[key] = value.over(below) if both else value
        return merged

    def without(self, key: str) -> Section:
        """The same section, but for one key."""
        return Section({other: value for other, value in self.items() if other != key}, self.origins)

    def override(self, assignment: str) -> None:
        """Apply `key.subkey=value`, the value in YAML; raises `UserError` if it cannot be applied.

        Keys of a mapping join those that are there, as with Snakemake's `--config`; `{}` empties a section.
        """
        path, equals, text = assignment.partition("=")
        if not equals:
            raise UserError(f"override `{assignment}`: write it as key.subkey=value.")
        try:
            value = _plain(load(text))
        except YAML_ERRORS as error:
            raise UserError(f"override `{assignment[:300]}`: the value is not YAML ({_joined(error)}).") from None
        origin, section = f"--set {assignment[:300]}", self
        key, rest = section.first_key(path)
        while rest is not None:
            section.origins.setdefault(key, origin)
            below = section.setdefault(key, Section({}, {}))
            if not isinstance(below, Section):
                raise UserError(f"override `{assignment}`: `{key}` holds a value, not keys.")
            section = below
            key, rest = section.first_key(rest)
        new, present = _with_origin(value, origin), section.get(key)
        joins = isinstance(new, Section) and new and isinstance(present, Section)
        section[key], section.origins[key] = new.over(present) if joins else new, origin

    def first_key(self, path: str) -> tuple[str, str | None]:
        """The first key of a dotted path, and the rest (None: nothing).

        That is the longest key here that the path begins with, else its first part: the name of a model that is
        there may contain dots, as `qwen3-0.6b` does. A new key has none.
        """
        known = [key for key in self if isinstance(key, str) and (path == key or path.startswith(f"{key}."))]
        key = max(known, key=len, default=path.partition(".")[0])
        return key, path[len(key) + 1 :] if len(path) > len(key) else None

    def origin(self, location: Iterable[Any]) -> str:
        """What set the key at this location, or the innermost section around it that is known; empty if none is."""
        value: Any = self
        origin = ""
        for key in location:
            if not isinstance(value, Section) or key not in value:
                break
            origin, value = value.origins.get(key, ""), value[key]
        return origin

    def plain(self) -> dict[str, Any]:
        """The same keys and values in ordinary dictionaries."""
        plain: dict[str, Any] = _plain(self)
        return plain

    def commented(self) -> str:
        """YAML that loads back to these keys and values, one key per line, with its origin as the line's comment."""
        lines = list(_lines(self, ""))
        width = min(max((len(text) for text, _ in lines), default=0), 64)
        return "".join(f"{text:{width}}  # {origin}\n" if origin else f"{text}\n" for text, origin in lines)


def read_yaml(path: Path, seen: tuple[Path, ...] = ()) -> Section:
    """The mapping of a YAML file over those that it `extends`; raises `UserError` for anything unreadable.

    A file is extended by its path from the extending file's folder, or from a folder of `configs/` (`SEARCHED`).
    `seen`: resolved paths of the files whose `extends` led here.
    """
    if "\0" in str(path):
        raise UserError(f"{str(path)!r}: a file name with a null byte; correct `extends`, or the name.")
    if path.resolve() in seen:
        raise UserError(f"{path}: `extends` leads back to the file itself; remove the cycle.")
    raw, merged = _read(path), Section({}, {})
    for parent in _parents(path, raw):
        merged = read_yaml(parent, (*seen, path.resolve())).over(merged)
    return raw.without("extends").over(merged)


def extended_files(path: Path) -> list[Path]:
    """All files that a YAML file `extends`, through others too, for a file that `read_yaml` has read."""
    return [file for parent in _parents(path, _read(path)) for file in (parent, *extended_files(parent))]


def _parents(path: Path, raw: Section) -> list[Path]:
    """The files that `path` extends."""
    names = raw.get("extends", [])
    if not isinstance(names, str | list):
        raise UserError(f"{path}: key `extends`: name a file, or a list of files.")
    return [_parent(path, str(name)) for name in ([names] if isinstance(names, str) else names)]


def _parent(path: Path, name: str) -> Path:
    """The file that `path` extends: in its own folder, else in those of its `configs/` or the shipped one."""
    configs = next((folder for folder in path.absolute().parents if folder.name == CONFIGS.name), CONFIGS)
    roots = [configs if path.is_absolute() else Path(os.path.relpath(configs)), CONFIGS]
    local = path.parent / name
    candidates = [local, *(root / folder / name for root in roots for folder in SEARCHED)]
    return next((file for file in candidates if file.is_file()), local)


# Every job reads its suite; libyaml does it in a tenth of the time, where PyYAML has it.
_Dumper = yaml.CSafeDumper if yaml.__with_libyaml__ else yaml.SafeDumper


class _Loader(yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader):  # type: ignore[misc]
    """Loads mappings as sections; a mark's name is that of the opened file."""


def _section(loader: _Loader, node: yaml.MappingNode) -> Section:
    _require_unique_keys(node)
    # Also replaces each `<<` in `node.value` by its keys.
    values: dict[Any, Any] = loader.construct_mapping(node, deep=True)
    keys = {loader.construct_object(key, deep=True): key.start_mark for key, _ in node.value}
    return Section(values, {key: f"{os.path.normpath(mark.name)}:{mark.line + 1}" for key, mark in keys.items()})


def _integer(loader: _Loader, node: yaml.ScalarNode) -> Any:
    """Stays text where YAML 1.1 has another base than a reader expects: `0123` as octal, `24:00:00` as base 60."""
    return node.value if re.match(r"[-+]?0[0-7_]|.*:", node.value) else loader.construct_yaml_int(node)


_Loader.add_constructor("tag:yaml.org,2002:map", _section)
_Loader.add_constructor("tag:yaml.org,2002:int", _integer)


#: What a loader raises for text that is not YAML, or whose values are not those of their tags, such as `!!bool x`.
YAML_ERRORS = (yaml.YAMLError, ValueError, LookupError, TypeError, AttributeError, RecursionError)
#: libyaml composes nodes recursively; 30,000 levels overflow its stack and end the interpreter.
MAX_DEPTH = 100
_MERGE = "tag:yaml.org,2002:merge"


def load(text: str | TextIO) -> Any:
    """The value of a YAML text, mappings as sections; raises one of `YAML_ERRORS`."""
    starts, ends = yaml.CollectionStartEvent, yaml.CollectionEndEvent
    steps = (isinstance(event, starts) - isinstance(event, ends) for event in yaml.parse(text, _Loader))
    if any(depth > MAX_DEPTH for depth in itertools.accumulate(steps)):
        raise ValueError(f"nested more than {MAX_DEPTH} deep")
    if not isinstance(text, str):
        text.seek(0)
    return yaml.load(text, _Loader)


def _require_unique_keys(node: yaml.MappingNode) -> None:
    """Raises YAMLError for a key that occurs twice: yaml would keep the last value alone."""
    keys = set[tuple[str, str]]()
    for key, _ in node.value:
        if isinstance(key, yaml.ScalarNode) and key.tag != _MERGE:
            if (key.tag, key.value) in keys:
                raise yaml.MarkedYAMLError(problem=f"key `{key.value}` occurs twice", problem_mark=key.start_mark)
            keys.add((key.tag, key.value))


def _read(path: Path) -> Section:
    if path.exists() and not path.is_file():
        raise UserError(f"{path}: not readable (not a regular file); name another YAML file.")
    try:
        with path.open(encoding="utf-8") as file:
            raw = load(file)
    except FileNotFoundError:
        hint = suggestion(str(path), map(str, path.parent.glob("*.yaml")))
        raise UserError(f"{path}: no such file{hint or '; give a name or a path to a YAML file.'}") from None
    except OSError as error:
        raise UserError(f"{path}: not readable ({error.strerror}); correct that, or name another YAML file.") from None
    except YAML_ERRORS as error:
        raise UserError(f"{path}: not readable as YAML ({_joined(error)}).") from None
    if not isinstance(raw, Section):
        raise UserError(f"{path}: a config file holds a mapping of keys; this file does not.")
    return raw


def _joined(error: Exception) -> str:
    return "nested too deeply" if isinstance(error, RecursionError) else brief(error)


def _with_origin(value: Any, origin: str) -> Any:
    if not isinstance(value, dict):
        return value
    return Section({key: _with_origin(below, origin) for key, below in value.items()}, dict.fromkeys(value, origin))


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(below) for key, below in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list) else value


def _lines(section: Section, indent: str) -> Iterator[tuple[str, str]]:
    """The lines of a section's YAML, each with its origin."""
    for key, value in section.items():
        origin = section.origins.get(key, "")
        if isinstance(value, Section) and value:
            yield f"{indent}{_flow(key)}:", origin
            yield from _lines(value, f"{indent}  ")
        else:
            yield f"{indent}{_flow(key)}: {_flow(value)}", origin


def _flow(value: Any) -> str:
    """YAML of a value on one line."""
    options: dict[str, Any] = {"default_flow_style": True, "width": 1 << 30, "sort_keys": False}
    text: str = yaml.dump(_plain(value), Dumper=_Dumper, allow_unicode=True, **options)
    text = text.removesuffix("...\n").rstrip("\n")
    if "\n" in text:  # a string of several lines, which double quotes keep on one
        text = yaml.safe_dump(_plain(value), default_style='"', **options).rstrip("\n")
    return text
