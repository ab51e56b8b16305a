"""Checks that a database server is installed here, and that it starts."""

from pathlib import Path

from coevolve.assets.checks import Check, run_check
from coevolve.envs.base import EnvError
from coevolve.envs.intercode_sql.config import InterCodeSqlConfig
from coevolve.envs.intercode_sql.server import DatabaseServer
from coevolve.envs.intercode_sql.server_program import DEFAULT_CONFIG, find_server_program
from coevolve.errors import UserError


def check(config: InterCodeSqlConfig | None) -> Check:
    """Looks for the server that the section configures, without a section for any; it is not started."""
    server = config.server if config else DEFAULT_CONFIG
    if server.address:
        return Check("database server", "ok", f"{server.address}, asked when a job first connects")
    return run_check("database server", lambda: find_server_program(server).identity)


def started(config: InterCodeSqlConfig | None) -> Check:
    """Starts the server on the section's dump; without one that is here, it is looked for."""
    if config is None or not Path(config.dump.path).exists():
        return check(config)
    return run_check("database server", lambda: _identity(config))


def _identity(config: InterCodeSqlConfig) -> str:
    try:
        with DatabaseServer(config.server, Path(config.dump.path)) as server:
            return f"{server.identity} started"
    except EnvError as error:
        raise UserError(f"{' '.join(str(error).split())}; see `server` in docs/run/cluster.md.") from None
