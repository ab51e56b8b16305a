"""Sections of environments and the switches of both protocols, as `configs` states them, and files for sections."""

import itertools
import json
from pathlib import Path

import yaml

from coevolve.envs.base import Setup
from coevolve.envs.registry import domain
from coevolve.envs.section import section_class
from coevolve.settings.protocol import Quirks
from coevolve.settings.yaml_files import read_yaml
from coevolve.storage import files

CONFIGS = Path(__file__).parents[2] / "configs"
#: By the protocol's name.
QUIRKS = {
    name: Quirks.model_validate(switches)
    for name, switches in yaml.safe_load((CONFIGS / "parts/protocols.yaml").read_text())["protocols"].items()
}


def section(kind, file=None, **changes):
    """The section of an environment in a file of `configs/envs`, its own by default, with other values.

    A mapping changes the keys that it has.
    """
    raw = read_yaml(CONFIGS / f"envs/{file or kind}.yaml").plain()["envs"][kind]
    for key, value in changes.items():
        raw[key] = raw[key] | value if isinstance(value, dict) and raw.get(key) else value
    return section_class(kind).model_validate(raw)


def setup_of(config, folder=None):
    """The setup of a section under protocol `fixed`; `folder` holds what its stage `prepare` wrote."""
    return Setup(config, f"envs.{config.kind}", "fixed", QUIRKS["fixed"], folder)


def prepared(config, folder):
    """The setup of a section, prepared in a folder."""
    setup = setup_of(config, folder)
    domain(config).prepare(setup, folder)
    return setup


def source(path):
    """A file as a config names it."""
    return {"path": str(path), "sha256": files.sha256(path)}


def eto_item(identity, *said, **more):
    """A trajectory in ETO's format, with what the human and the model say in turn."""
    conversations = [{"from": who, "value": value} for who, value in zip(itertools.cycle(("human", "gpt")), said)]
    return {"id": identity, "conversations": conversations, **more}


def write(path, content):
    """Write JSON data, or a text as it is."""
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return path
