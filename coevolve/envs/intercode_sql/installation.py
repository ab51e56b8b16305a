"""Unpacks a database server where none is installed, before the first job of a run."""

import logging
import subprocess
from pathlib import Path

from coevolve.envs.intercode_sql.config import InterCodeSqlConfig
from coevolve.envs.intercode_sql.server_program import find_server_program
from coevolve.errors import UserError

log = logging.getLogger(__name__)
SCRIPT = Path("envs_setup/mysql.sh")


def install(config: InterCodeSqlConfig) -> None:
    """Runs `envs_setup/mysql.sh` unless a server is there; raises `UserError` if there is none afterwards.

    A server that the section names by `address` or `binary` is left to the jobs: it may be visible on their nodes only.
    """
    server = config.server
    if server.address or server.binary:
        return
    try:
        program = find_server_program(server)
    except UserError:
        if SCRIPT.is_file():
            subprocess.run([SCRIPT.absolute()], check=False)  # its last line on stderr is the reason of a failure
        program = find_server_program(server)
    if remark := config.other_version(program.identity):
        log.warning(remark)
