"""The database server program to run: the configured one, one on PATH, or one that `envs_setup/mysql.sh` unpacked."""

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from coevolve.envs.intercode_sql.config import SqlServerConfig
from coevolve.errors import UserError

#: Configuration for use outside a suite: any server of this machine. With 300 sessions MySQL's resident memory is 360
#: MiB.
DEFAULT_CONFIG = SqlServerConfig(
    binary=None,
    statement_seconds=10.0,
    rows=20000,
    memory_mb=2048,
    temporary_mb=4096,
)


@dataclass(frozen=True)
class ServerProgram:
    """A server program: `command` starts it with `options`, which depend on where the program is unpacked."""

    identity: str
    command: tuple[str, ...]
    options: tuple[str, ...] = ()


def mysql_identity(text: str) -> str:
    """Name and version in a server's version text, such as "MySQL 9.7.4"; empty if it is another server."""
    match = re.search(r"\d+\.\d+\.\d+", text)
    return f"MySQL {match[0]}" if match and "mariadb" not in text.lower() else ""


def cache_directory() -> Path:
    """Folder of unpacked servers and data directories; `envs_setup/mysql.sh` follows the same rule."""
    configured = os.environ.get("COEVOLVE_CACHE")
    if configured:
        return Path(configured).absolute()
    # Started by root, the server runs as nobody, who cannot enter /root.
    return Path("/var/cache/coevolve") if os.geteuid() == 0 else Path.home() / ".cache" / "coevolve"


def unpacked_servers() -> Path:
    """Folder of unpacked servers: `COEVOLVE_SERVERS`, or in the cache; `envs_setup/mysql.sh` follows the same rule."""
    configured = os.environ.get("COEVOLVE_SERVERS")
    return Path(configured) if configured else cache_directory() / "servers"


def find_server_program(config: SqlServerConfig) -> ServerProgram:
    """The configured server, else one on PATH, else the unpacked one; raises `UserError` if there is none."""
    path = shutil.which(config.binary or "mysqld")
    # MariaDB's packages also install a program named mysqld.
    if path and (program := _inspect((path,))):
        return program
    if config.binary is not None:
        fault = "is not MySQL" if path else "is not an executable"
        raise UserError(f"`server.binary`: {config.binary} {fault}; correct it, or leave it empty.")
    if program := _unpacked_program():
        return program
    fix = "run `envs_setup/mysql.sh`, set `server.binary`, or leave the environment out (`without=[intercode_sql]`)"
    raise UserError(f"no MySQL on PATH or in {unpacked_servers()}; {fix}.")


def _unpacked_program() -> ServerProgram | None:
    """The unpacked package, started through the loader and with the libraries unpacked beside it."""
    home = unpacked_servers() / "mysql"
    path = home / "usr" / "sbin" / "mysqld"
    loaders = sorted(home.glob("usr/lib/*/ld-linux*.so*"))
    if not path.exists() or not loaders:
        return None
    share = home / "usr" / "share" / "mysql"
    options = (
        f"--basedir={home / 'usr'}",
        f"--lc-messages-dir={share}",
        f"--character-sets-dir={share / 'charsets'}",
        f"--plugin-dir={home / 'usr' / 'lib' / 'mysql' / 'plugin'}",
    )
    return _inspect((str(loaders[0]), "--library-path", str(loaders[0].parent), str(path)), options)


def _inspect(command: tuple[str, ...], options: tuple[str, ...] = ()) -> ServerProgram | None:
    """The program that `command` starts, with the version that it prints; None if it is not MySQL."""
    try:
        done = subprocess.run([*command, "--no-defaults", "--version"], capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UserError(f"{command[-1]} does not run ({error}); correct `server.binary` or delete the file.") from None
    # The program's path, printed before " Ver ", may hold digits or the name of another server.
    identity = mysql_identity(done.stdout.partition(" Ver ")[2] or done.stdout + done.stderr)
    return ServerProgram(identity, command, options) if identity else None
