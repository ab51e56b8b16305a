"""The database server on this machine: unpacked where there is none, looked for, and started."""

import logging
import subprocess
from pathlib import Path

from coevolve.assets.checks import Check, run_check
from coevolve.envs.base import EnvError
from coevolve.envs.intercode_sql.config import InterCodeSqlConfig
from coevolve.envs.intercode_sql.server_program import DEFAULT_CONFIG, find_server_program
from coevolve.errors import UserError

log = logging.getLogger(__name__)
SCRIPT = Path("envs_setup/mysql.sh")


def install(config: InterCodeSqlConfig) -> None:
    """Runs `envs_setup/mysql.sh` unless a server is there; raises `UserError` if there is none afterwards.

    A server that the section names by `binary` is left to the jobs: it may be visible on their nodes only.
    """
    if config.server.binary:
        return
    try:
        program = find_server_program(config.server)
    except UserError:
        if SCRIPT.is_file():
            subprocess.run([SCRIPT.absolute()], check=False)  # its last line on stderr is the reason of a failure
        program = find_server_program(config.server)
    if remark := config.other_version(program.identity):
        log.warning(remark)


def check(config: InterCodeSqlConfig | None) -> Check:
    """Looks for the server that the section configures, without a section for any; it is not started."""
    server = config.server if config else DEFAULT_CONFIG
    return run_check("database server", lambda: find_server_program(server).identity)


def started(config: InterCodeSqlConfig | None) -> Check:
    """Starts the server on the section's dump; without one that is here, it is looked for."""
    if config is None or not Path(config.dump.path).exists():
        return check(config)
    return run_check("database server", lambda: _identity(config))


def _identity(config: InterCodeSqlConfig) -> str:
    from coevolve.envs.intercode_sql.server import DatabaseServer  # needs the client

    try:
        with DatabaseServer(config.server, Path(config.dump.path)) as server:
            return f"{server.identity} started"
    except EnvError as error:
        raise UserError(f"{' '.join(str(error).split())}; see `server` in docs/run/cluster.md.") from None
