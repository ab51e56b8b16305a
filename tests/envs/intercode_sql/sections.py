"""InterCodeSQL's section of a suite, and the files it names, as tests make them."""

import json
from pathlib import Path

from coevolve.envs.intercode_sql.config import InterCodeSqlConfig
from coevolve.storage import files

ALL = {"kinds": None, "sft": None, "explore": None, "evaluate": None, "explore_sft": True}
SERVER = {"address": None, "binary": None, "statement_seconds": 10, "rows": 20_000}
SERVER |= {"memory_mb": 2048, "temporary_mb": 4096}


def section(dump: Path, questions: dict, **changes) -> InterCodeSqlConfig:
    """The section over all of some questions, with a scripted expert; `changes` are other keys."""
    plain = {
        "kind": "intercode_sql",
        "label": "InterCodeSQL",
        "splits": ["test"],
        "tasks": ALL,
        "items": questions,
        "experts": {"format": "scripted", "min_reward": 1.0},
        "dump": source(dump),
        "server": SERVER,
        "reward": "continuous",
        "observation_length": 350,
        "step_limit": 10,
        "workers": 2,
    }
    return InterCodeSqlConfig.model_validate(plain | changes)


def source(path: Path) -> dict:
    """A file as a config names it."""
    return {"path": str(path), "sha256": files.sha256(path)}


def write(path: Path, content) -> Path:
    """Write JSON data, or a text as it is."""
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return path
