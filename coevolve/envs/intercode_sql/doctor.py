"""Checks that a database server is installed here."""

from coevolve.assets.checks import Check, run_check
from coevolve.envs.intercode_sql.config import InterCodeSqlConfig
from coevolve.envs.intercode_sql.server_program import DEFAULT_CONFIG, find_server_program


def check(config: InterCodeSqlConfig | None) -> Check:
    """Looks for the server that the section configures, without a section for any; it is not started."""
    server = config.server if config else DEFAULT_CONFIG
    if server.address:
        return Check("database server", "ok", f"{server.address}, asked when a job first connects")
    return run_check("database server", lambda: find_server_program(server).identity)
