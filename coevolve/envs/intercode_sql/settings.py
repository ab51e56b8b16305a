"""How every server is set up: its options, its one account, its limits."""

from __future__ import annotations

from pathlib import Path

from coevolve.envs.intercode_sql.config import Flavour, SqlServerConfig
from coevolve.envs.intercode_sql.engine import Engine
from coevolve.envs.intercode_sql.process import Directory

#: The account sessions use; it may read, and needs no password in a directory only the kit can enter.
ACCOUNT = "coevolve"
#: Settings of every server. What MySQL answers by is left as MySQL 8 had it in 2023, but for table statistics, which
#: must not change between two runs; the rest keeps servers small and apart, and spares writing to the disk at once what
#: is thrown away in the end.
SETTINGS = (
    "--lower-case-table-names=1",
    "--innodb-stats-auto-recalc=OFF",
    "--skip-networking",
    "--skip-name-resolve",
    "--skip-log-bin",
    "--local-infile=OFF",
    "--performance-schema=OFF",
    "--max-connections=400",
    "--back-log=400",
    "--max-allowed-packet=1M",
    "--innodb-buffer-pool-size=32M",
    "--innodb-buffer-pool-dump-at-shutdown=OFF",
    "--innodb-buffer-pool-load-at-startup=OFF",
    "--innodb-flush-log-at-trx-commit=0",
    "--innodb-doublewrite=OFF",
    # The kernel's places for native asynchronous I/O suffice for some 25 servers only.
    "--innodb-use-native-aio=OFF",
)
FLAVOUR_SETTINGS: dict[Flavour, tuple[str, ...]] = {
    "mysql": (
        "--mysqlx=OFF",
        "--event-scheduler=OFF",
        "--secure-file-priv=NULL",
        "--innodb-redo-log-capacity=8M",
        "--innodb-flush-method=nosync",
        "--temptable-max-ram=64M",
        "--auto-generate-certs=OFF",
        "--caching-sha2-password-auto-generate-rsa-keys=OFF",
    ),
    # Without a configuration file MariaDB would take text for latin1.
    "mariadb": (
        "--character-set-server=utf8mb4",
        "--collation-server=utf8mb4_general_ci",
        "--innodb-log-file-size=8M",
        "--debug-no-sync",
    ),
}
READ_ONLY: dict[Flavour, str] = {"mysql": "--super-read-only=ON", "mariadb": "--read-only=ON"}
#: Run after the dump, which makes an administrator of its own: one account is left, and it can only read.
ACCOUNTS = (
    "DROP USER IF EXISTS 'admin'@'%'",
    f"CREATE USER '{ACCOUNT}'@'localhost'",
    f"GRANT SELECT, SHOW VIEW ON *.* TO '{ACCOUNT}'@'localhost'",
    "ALTER USER 'root'@'localhost' ACCOUNT LOCK",
)
#: MySQL weighs pages in memory against pages on disk, so that what was asked before decides which plan is taken, and
#: with it the order of rows. Here every page costs what one in memory costs.
COSTS: dict[Flavour, tuple[str, ...]] = {
    "mysql": ("UPDATE mysql.engine_cost SET cost_value = 0.25 WHERE cost_name = 'io_block_read_cost'",),
    "mariadb": (),
}


def fixed(flavour: Flavour) -> tuple[str, ...]:
    """The options of every server of a flavour."""
    return SETTINGS + FLAVOUR_SETTINGS[flavour]


def after_loading(flavour: Flavour) -> tuple[str, ...]:
    """The statements that finish a template."""
    return COSTS[flavour] + ACCOUNTS


def command(engine: Engine, directory: Directory, data: Path, *options: str) -> list[str]:
    """What starts `engine` on the data directory `data`."""
    places = (
        f"--datadir={data}",
        f"--socket={directory.socket}",
        f"--tmpdir={directory.path / 'tmp'}",
        f"--pid-file={directory.path / 'pid'}",
    )
    return [*engine.command, "--no-defaults", *engine.options, *fixed(engine.flavour), *places, *options]


def limits(flavour: Flavour, config: SqlServerConfig) -> dict[str, float]:
    """The variables that bound a statement's time and rows, and their values."""
    if flavour == "mysql":
        return {"max_execution_time": round(config.statement_seconds * 1000), "sql_select_limit": config.rows}
    return {"max_statement_time": config.statement_seconds, "sql_select_limit": config.rows}
