"""InterCodeSQL's section of a suite, as tests make it."""

from pathlib import Path

from envs import setups

from coevolve.envs.intercode_sql.config import InterCodeSqlConfig

ALL = {"kinds": None, "sft": None, "explore": None, "evaluate": None, "explore_sft": True}


def section(dump: Path, questions: dict, **changes) -> InterCodeSqlConfig:
    """The small section over all of some questions; `changes` are other keys, as a whole."""
    small = setups.section("intercode_sql", "intercode_sql-small").model_dump()
    plain = small | {"tasks": ALL, "items": questions, "dump": setups.source(dump), "workers": 2}
    return InterCodeSqlConfig.model_validate(plain | changes)
