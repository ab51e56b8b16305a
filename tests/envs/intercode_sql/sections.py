"""InterCodeSQL's section of a suite, as tests make it."""

from pathlib import Path

from envs.setups import source

from coevolve.envs.intercode_sql.config import InterCodeSqlConfig

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
