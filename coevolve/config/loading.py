"""Reading of suites and machines from their YAML files, by name or path.

A suite inherits by `extends:` and is overridden by dotted keys. An unknown key is an error that suggests the nearest
known key.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from coevolve.config.machine import Machine
from coevolve.config.suite import Suite
from coevolve.errors import UserError, suggestion
from coevolve.settings.validation import ended, validated
from coevolve.settings.yaml_files import Section, read_yaml
from coevolve.shipped import FOLDER, shipped_file

#: The machine that `make cluster` describes. Git ignores it.
SITE = Path("site.yaml")
#: Folders below `configs/` that hold suites; the last is for a user's own.
SUITES = ("suites", "suites/studies", ".")


def load_suite(name: str | Path, overrides: Sequence[str] = ()) -> Suite:
    """The suite of a name or path, with its `extends:` merged and `a.b.c=value` overrides applied.

    Raises `UserError` naming file and key for anything unreadable, unknown or out of range.
    """
    path = suite_file(name)
    raw = read_yaml(path)
    stated = raw.get("seeds")
    keys = completed(path, raw, overrides)
    if isinstance(stated, list) and isinstance(keys["seeds"], list):
        keys.setdefault("looks", [max(len(stated), len(keys["seeds"]))])
    return validated(Suite, path, keys)


def merged(name: str | Path, overrides: Sequence[str] = ()) -> Section:
    """The keys of a suite before validation: `extends:` of files and of recipes merged, overrides applied."""
    path = suite_file(name)
    return completed(path, read_yaml(path), overrides)


def completed(path: Path, raw: Section, overrides: Sequence[str]) -> Section:
    """The keys of a suite with overrides applied and the `extends:` of recipes merged; `path` is named in errors."""
    for override in overrides:
        raw.override(override)
    if isinstance(raw.get("recipes"), Section):
        raw["recipes"] = _inherited(path, raw["recipes"])
    _leave_out(path, raw)
    first = {key: raw[key] for key in Suite.model_fields if key in raw}
    return Section({**first, **raw}, raw.origins)


def _leave_out(path: Path, raw: Section) -> None:
    """Removes the environments that the key `without` names."""
    names, envs = raw.get("without"), raw.get("envs")
    if not isinstance(names, list) or not isinstance(envs, Section):
        return
    for name in names:
        if name not in envs:
            hint = suggestion(str(name), envs) or f"; it has {', '.join(envs)}."
            raise UserError(f"{path}: key `without`: this suite has no environment `{name}`{hint}")
    if len(names) >= len(envs):
        raise UserError(f"{path}: key `without`: no other environment is left; the suite needs {', '.join(names)}.")
    iterations = raw.get("iterations")
    for name in names:
        del envs[name]
        if isinstance(iterations, Section):
            iterations.pop(name, None)


def suite_file(name: str | Path) -> Path:
    """Path of a suite given by name (`smoke` is `configs/suites/smoke.yaml`) or by path; raises as `named_file`."""
    return named_file("suite", name, *(Path("configs", folder) for folder in SUITES))


def given_name(config: Mapping[str, Any], key: str, default: str) -> str:
    """The name that Snakemake's `--config` gives for a key, or the default.

    Raises `UserError` for an empty name, and for one that Snakemake reads as a number: `2024_01` is 202401 then.
    """
    name = config.get(key, default)
    if name in (None, ""):
        raise UserError(f"--config {key}=: it is empty; name one, or leave it out.")
    if not isinstance(name, str):
        raise UserError(f"--config {key}: Snakemake reads this name as {name}; give its file, {key}=FOLDER/NAME.yaml.")
    return name


def named_file(kind: str, name: str | Path, *folders: Path) -> Path:
    """The YAML file of that name in the first of `folders` that has it, or in a shipped one outside of a checkout.

    A name with a folder or the suffix `.yaml` is taken as a path. Raises `UserError`, which suggests the nearest name,
    if no folder has such a file.
    """
    path = Path(name)
    if path.suffix in (".yaml", ".yml") or len(path.parts) > 1:
        return path
    files = [shipped_file(folder / f"{name}.yaml") for folder in folders]
    if first := next((file for file in files if file.is_file()), None):
        return first
    known = {file.stem for folder in folders for each in (folder, FOLDER / folder) for file in each.glob("*.yaml")}
    hint = suggestion(str(name), sorted(known)) or "; give a name or a path to a YAML file."
    raise UserError(f"{kind} `{name}`: {files[0]} does not exist{hint}")


def as_overrides(settings: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Nested settings as a list of overrides: `['dpo.nll="sum"']` for `{"dpo": {"nll": "sum"}}`.

    Snakemake reads the values of its `--config` as text: `null` and `~` are null here.
    """
    overrides: list[str] = []
    for key, value in settings.items():
        if isinstance(value, Mapping) and value:
            overrides += as_overrides(value, f"{prefix}{key}.")
        else:
            overrides.append(f"{prefix}{key}={json.dumps(None if value in ('null', '~') else value)}")
    return overrides


def _inherited(path: Path, recipes: Section) -> Section:
    """The recipes, each merged over the recipe that it extends."""

    def whole(name: str, seen: tuple[str, ...]) -> Section:
        if name not in recipes or name in seen:
            problem = "leads back to itself" if name in seen else f"`{name}` is not a recipe{suggestion(name, recipes)}"
            raise UserError(ended(f"{path}: key `recipes.{seen[-1]}.extends`: {problem}"))
        row = recipes[name]
        if not isinstance(row, Section):
            raise UserError(f"{path}: key `recipes.{name}`: a row holds keys such as `label`.")
        parent = row.get("extends")
        if not isinstance(parent, str | None):
            raise UserError(f"{path}: key `recipes.{name}.extends`: name a recipe (got {str(parent)[:300]}).")
        return row.without("extends").over(whole(parent, (*seen, name))) if parent else row.without("extends")

    return Section({name: whole(name, ()) for name in recipes}, recipes.origins)


def read_machine(name: str | Path) -> Machine:
    """The machine of a name or path; raises `UserError` naming file and key."""
    path = machine_file(name)
    if path == SITE and not path.exists():
        raise UserError(f"{SITE}: no such file; run `make cluster`, or name a machine: `--config machine=h100`.")
    return validated(Machine, path, read_yaml(path))


def machine_file(name: str | Path) -> Path:
    """Path of a machine given by name (`h100` is `configs/machines/h100.yaml`) or by path; raises as `named_file`."""
    return named_file("machine", name, Path("configs/machines"))
