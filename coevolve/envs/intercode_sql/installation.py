"""Unpacks a database server where none is installed, before the first job of a run."""

from __future__ import annotations

import subprocess
from pathlib import Path

from coevolve.envs.intercode_sql.config import InterCodeSqlConfig, SqlServerConfig
from coevolve.envs.intercode_sql.server_program import find_server_program, unpacked_servers
from coevolve.errors import UserError

SCRIPT = Path("envs_setup/mysql.sh")


def install(config: InterCodeSqlConfig) -> None:
    """Runs `envs_setup/mysql.sh` unless a server is there; raises `UserError` if there is none afterwards.

    A server that the section names by `address` or `binary` is left to the jobs: it may be visible on their nodes only.
    """
    server = config.server
    if server.address or server.binary:
        return
    if not _is_installed(server) and SCRIPT.is_file():
        subprocess.run([SCRIPT.absolute()], check=False)  # its last line on stderr is the reason of a failure
    find_server_program(server)


def _is_installed(server: SqlServerConfig) -> bool:
    """Whether there is a server; without MySQL, MariaDB counts only once the script has unpacked it as the fallback."""
    try:
        program = find_server_program(server)
    except UserError:
        return False
    return program.flavour == server.engine[0] or (unpacked_servers() / program.flavour).is_dir()
