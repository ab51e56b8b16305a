"""What tests of InterCodeSQL share: the section of a suite, a question, and where a server runs."""

from pathlib import Path

import psutil
from builders import task
from envs import setups

from coevolve.envs.intercode_sql.config import InterCodeSqlConfig

#: A program of `endings`: it starts a server on the dump in its argument.
START_SERVER = """
from pathlib import Path
from coevolve.envs.intercode_sql.server import DatabaseServer
from coevolve.envs.intercode_sql.server_program import DEFAULT_CONFIG

started = DatabaseServer(DEFAULT_CONFIG, Path(arguments[0]))
started.connect()
"""
ALL = {"kinds": None, "sft": None, "explore": None, "evaluate": None, "explore_sft": True}


def section(dump, questions, **changes):
    """The small section over all of some questions; `changes` are other keys, as a whole."""
    small = setups.section("intercode_sql", "intercode_sql-small").model_dump()
    plain = small | {"tasks": ALL, "items": questions, "dump": setups.source(dump), "workers": 2}
    return InterCodeSqlConfig.model_validate(plain | changes)


def question(gold, database="world_1", text="?"):
    data = {"database": database, "gold": gold, "question": text}
    return task("intercode_sql/test/0", env="intercode_sql", split="test", data=data)


def folder(server):
    """The private directory of a running server, which runs in its data directory."""
    return Path(psutil.Process(server.pid).cwd()).parent
