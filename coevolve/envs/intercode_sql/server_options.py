"""Command-line options, account and limits of the servers that the kit starts."""

from pathlib import Path

from coevolve.envs.intercode_sql.config import SqlServerConfig
from coevolve.envs.intercode_sql.server_process import ServerDirectory
from coevolve.envs.intercode_sql.server_program import ServerProgram

#: The account of all sessions. It can only read, and has no password: only the kit can enter the socket's directory.
ACCOUNT = "coevolve"
#: Options of every server. Defaults that affect results are MySQL 8's of 2023, except table statistics, which must not
#: change between runs. The other options keep servers small and isolated, and avoid syncing data that is discarded.
OPTIONS = (
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
    # The kernel's limit on native asynchronous I/O requests allows only about 25 servers.
    "--innodb-use-native-aio=OFF",
    "--mysqlx=OFF",
    "--event-scheduler=OFF",
    "--secure-file-priv=NULL",
    "--innodb-redo-log-capacity=8M",
    "--innodb-flush-method=nosync",
    "--temptable-max-ram=64M",
    "--auto-generate-certs=OFF",
    "--caching-sha2-password-auto-generate-rsa-keys=OFF",
    # By default their names contain the machine's.
    "--general-log-file=general.log",
    "--slow-query-log-file=slow.log",
    "--relay-log=relay",
)
#: The server would draw its id. Content of the file `auto.cnf` in the data directory.
SERVER_ID = "[auto]\nserver-uuid=c0e701fe-0000-4000-8000-000000000001\n"
#: Executed after the dump, which creates an administrator account. Only the reading account remains usable.
#: MySQL's cost model distinguishes pages in memory from pages on disk, so that earlier statements would affect query
#: plans and with them the order of rows. Here both have the cost of a page in memory.
TEMPLATE_STATEMENTS = (
    "UPDATE mysql.engine_cost SET cost_value = 0.25 WHERE cost_name = 'io_block_read_cost'",
    "DROP USER IF EXISTS 'admin'@'%'",
    f"CREATE USER '{ACCOUNT}'@'localhost'",
    f"GRANT SELECT, SHOW VIEW ON *.* TO '{ACCOUNT}'@'localhost'",
    "ALTER USER 'root'@'localhost' ACCOUNT LOCK",
)


def server_command(program: ServerProgram, directory: ServerDirectory, data: Path, *options: str) -> list[str]:
    """The command that starts `program` on the data directory `data`."""
    paths = (
        f"--datadir={data}",
        f"--socket={directory.socket}",
        f"--tmpdir={directory.path / 'tmp'}",
        f"--pid-file={directory.path / 'pid'}",
    )
    return [*program.command, "--no-defaults", *program.options, *OPTIONS, *paths, *options]


def statement_limits(config: SqlServerConfig) -> dict[str, int]:
    """Values of the server variables that limit a statement's time (in milliseconds) and rows, by name."""
    return {"max_execution_time": round(config.statement_seconds * 1000), "sql_select_limit": config.rows}
