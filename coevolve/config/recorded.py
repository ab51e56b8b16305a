"""The settings in a record as a reader on another machine takes them.

A record determines what was computed. What is about a machine comes from who reads it, and sizes are bounded.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import PurePath
from typing import Any, get_args, get_origin

from pydantic import BaseModel

from coevolve.config.suite import Suite
from coevolve.envs.section import known_kinds, section_class
from coevolve.errors import UserError, suggestion
from coevolve.methods.recipes import RENAMED
from coevolve.settings.yaml_files import Section

#: The keys that are about a machine (`envs.KIND.KEY`), and the values that readers of records have for them. A record's
#: own values are never used.
MACHINE_KEYS: dict[str, Any] = {
    "envs.*.workers": 1,
    "envs.*.processes": 0,
    "envs.*.step_seconds": 600.0,
    "envs.intercode_sql.server.binary": None,
    "envs.intercode_sql.server.statement_seconds": 10.0,
    "envs.intercode_sql.server.memory_mb": 2048,
    "envs.intercode_sql.server.temporary_mb": 4096,
    "envs.sciworld.memory_mb": 256,
    "envs.sciworld.read_timeout": 60.0,
    "models.*.endpoint.concurrency": 1,
    "models.*.endpoint.timeout_seconds": 1.0,
    "models.*.endpoint.retries": 0,
    "models.*.endpoint.price_in": 0.0,
    "models.*.endpoint.price_out": 0.0,
}
#: Keys whose names look like those of a machine, and why a record's value does no harm (`*`: also several names).
HARMLESS = {
    "envs.*.path": "a regular file below the folder of the command, read only with the sha256 beside it",
    "envs.*.expected.turn_seconds": "an estimate of `coevolve plan`, which reads no record",
    "models.*path": "no reader of records loads a model that a record names",
    "sources.*.file": "files are downloaded for a suite alone",
    "sources.*.url": "files are downloaded for a suite alone",
    "protocols.*.webshop_timeout": "one of two names of what a shop does",
    "task_evolution.endpoint.timeout_seconds": "no reader of records sends requests to an endpoint",
}
#: Parts of a key's last name by which it looks like one of a machine.
MACHINE_WORDS = {
    "path", "paths", "file", "files", "folder", "folders", "dir", "directory", "address", "host", "hostname", "port",
    "url", "uri", "socket", "binary", "command", "program", "executable", "script", "workers", "processes", "memory",
    "mb", "gb", "device", "devices", "gpu", "gpus", "timeout", "seconds",
}  # fmt: skip
#: The largest number that a record may have at a key, by the first pattern that fits.
SIZES: dict[str, float] = {
    "envs.*.seed": math.inf,
    "envs.*.shuffle": math.inf,
    "seeds.*": math.inf,
    "models.*": math.inf,
    "envs.*.catalogue.generated": 100_000,
    "envs.*.tasks.generated.*": 2_000,
    "envs.*.per_kind": 1_000,
    "iterations.*": 100,
    "recipes.*.iterations": 100,
    "rollout.k": 1_000,
    "evaluation.samples": 1_000,
    "*": 1_000_000,
}
#: The largest number of entries of a list or a section in a record.
MOST_ENTRIES = 1_000
_NONE: Mapping[str, Any] = {}


def settings_here(config: Mapping[str, Any], given: Mapping[str, Any] = _NONE) -> dict[str, Any]:
    """The sections of a record with `MACHINE_KEYS` for what is about a machine.

    `given`: this machine's own values by dotted key, such as `envs.intercode_sql.server.binary`. Raises `UserError`
    for a number beyond `SIZES`, a file outside of this folder, and a key of another package that looks like a
    machine's, unless `given` has the key.
    """
    here: dict[str, Any] = dict(config)
    for group in ("envs", "models"):
        for name, section in here.get(group, {}).items():
            here[group] = here[group] | {name: _section_here(f"{group}.{name}", section, given)}
    for name, recipe in here.get("recipes", {}).items():  # what older versions wrote, which no job read
        here["recipes"] = here["recipes"] | {name: {key: recipe[key] for key in recipe.keys() - RENAMED.keys()}}
    for key, value in given.items():
        here = _with(here, key.split("."), value)
    for key, value in _leaves("", here):
        if key not in given:
            _require_bounded(key, value)
    return here


def _section_here(key: str, section: dict[str, Any], given: Mapping[str, Any]) -> Any:
    """An environment's or a model's section; raises as `settings_here`."""
    group, kind = key.partition(".")[0], section.get("kind", "*")
    if group == "envs":
        unknown = undeclared(section_keys(section_class(kind), f"envs.{kind}"))
        for name in (f"{key}.{each.removeprefix(f'envs.{kind}.')}" for each in unknown):
            if name not in given:
                raise UserError(f"`{name}` is about a machine, so a record's is not used; {_fix(name)}.")
        for name, value in _leaves(key, section):
            if name.endswith(".path") and name not in given and not _is_below(str(value)):
                raise UserError(f"`{name}`: {value} is not below the folder of this command; {_fix(name)}.")
    for pattern, value in MACHINE_KEYS.items():
        for prefix in {f"{group}.*.", f"{group}.{kind}."}:
            if pattern.startswith(prefix):
                key_here = pattern.removeprefix(prefix)
                section = _with(section, key_here.split("."), given.get(f"{key}.{key_here}", value))
    return section


def _with(section: Any, keys: Sequence[str], value: Any) -> Any:
    """The section with another value of a key, if it has the section around the key."""
    if not isinstance(section, dict) or (len(keys) > 1 and keys[0] not in section):
        return section
    first, *rest = keys
    return section | {first: _with(section[first], rest, value) if rest else value}


def _leaves(key: str, value: Any) -> Iterator[tuple[str, Any]]:
    """The values in sections and lists by dotted key; raises `UserError` for more than `MOST_ENTRIES` in one."""
    if not isinstance(value, dict | list):
        yield key, value
        return
    if len(value) > MOST_ENTRIES:
        raise UserError(f"`{key}` has {len(value):,} entries, more than the {MOST_ENTRIES:,} that a record may have.")
    for name, each in value.items() if isinstance(value, dict) else enumerate(value):
        yield from _leaves(f"{key}.{name}".removeprefix("."), each)


def _require_bounded(key: str, value: Any) -> None:
    pattern, most = next((pattern, most) for pattern, most in SIZES.items() if fnmatchcase(key, pattern))
    is_text = isinstance(value, str) and pattern != "*"  # a text that pydantic could read as a number
    if (is_text and most < math.inf) or (isinstance(value, int | float) and value > most):
        raise UserError(f"`{key}` is {value}, more than the {most:,} that a record may have; {_fix(key)}.")


def _is_below(path: str) -> bool:
    return not PurePath(path).is_absolute() and ".." not in PurePath(path).parts


def _fix(key: str) -> str:
    return f"give yours with `--set {key}=VALUE`"


def section_keys(section: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """The dotted keys of a section and of those in it; `*` stands for a name that a suite gives."""
    for name, field in section.model_fields.items():
        key = f"{prefix}.{name}".removeprefix(".")
        inner = list(_sections(key, field.annotation))
        yield from [key] if not inner else ()
        for inner_key, each in inner:
            yield from section_keys(each, inner_key)


def _sections(key: str, annotation: Any) -> Iterator[tuple[str, type[BaseModel]]]:
    """The section classes inside an annotation such as `dict[str, X]` or `X | None`, with the key of each."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield key, annotation
    for each in get_args(annotation):
        yield from _sections(f"{key}.*" if get_origin(annotation) in (dict, list) else key, each)


def undeclared(keys: Iterable[str]) -> list[str]:
    """The keys that look like those of a machine and are neither in `MACHINE_KEYS` nor in `HARMLESS`."""
    looking = [key for key in keys if MACHINE_WORDS & {*key.rpartition(".")[2].split("_")}]
    any_kind = {key: ".".join(["envs", "*", *key.split(".")[2:]]) for key in looking}
    listed = [key for key in looking if {key, any_kind[key]} & MACHINE_KEYS.keys()]
    return [key for key in looking if key not in listed and not any(fnmatchcase(key, each) for each in HARMLESS)]


def given_values(assignments: Sequence[str]) -> dict[str, Any]:
    """The values of the option `--set`, by dotted key; raises `UserError` for a key that no section has."""
    given = Section({}, {})
    for assignment in assignments:
        given.override(assignment)
    sections: list[type[BaseModel]] = [Suite, *map(section_class, known_kinds())]
    names = {key.rpartition(".")[2] for section in sections for key in section_keys(section)}
    values = dict(_leaves("", given.plain()))
    for key in values:
        if (name := key.rpartition(".")[2]) not in names:
            raise UserError(f"--set {key}: no section has a key `{name}`{suggestion(name, names) or '; correct it.'}")
    return values
