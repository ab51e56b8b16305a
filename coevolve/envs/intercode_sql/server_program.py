"""The database server program to run: the configured one, one on PATH, or one that `envs_setup/mysql.sh` unpacked."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from coevolve.envs.intercode_sql.config import Flavour, SqlServerConfig
from coevolve.errors import UserError

PROGRAMS: dict[Flavour, str] = {"mysql": "mysqld", "mariadb": "mariadbd"}
DISPLAY_NAMES: dict[Flavour, str] = {"mysql": "MySQL", "mariadb": "MariaDB"}
#: Configuration for use outside a suite: any server of this machine. With 300 sessions MySQL's resident memory is 360
#: MiB.
DEFAULT_CONFIG = SqlServerConfig(
    address=None,
    binary=None,
    engine=[*PROGRAMS],
    statement_seconds=10.0,
    rows=20000,
    memory_mb=2048,
    temporary_mb=4096,
)


@dataclass(frozen=True)
class ServerProgram:
    """A server program: `command` starts it with `options`, which depend on where the program is unpacked."""

    flavour: Flavour
    version: str
    command: tuple[str, ...]
    options: tuple[str, ...] = ()

    def identity(self) -> str:
        """Name and version as recorded with results: "MySQL 9.7.4", or "MariaDB 10.11.18, non-comparable"."""
        return server_identity(self.flavour, self.version)


def server_identity(flavour: Flavour, version: str) -> str:
    """Name and version of a server, marked as non-comparable unless it is MySQL."""
    return f"{DISPLAY_NAMES[flavour]} {version}" + ("" if flavour == "mysql" else ", non-comparable")


def parse_version(text: str) -> tuple[Flavour, str]:
    """Flavour and version number from a server's version text, e.g. "10.11.18-MariaDB-0+deb12u1"."""
    match = re.search(r"\d+\.\d+\.\d+", text)
    if match is None:
        raise UserError(f"`{text.strip()[:200]}` is not a version of MySQL or MariaDB; correct `server.binary`.")
    return ("mariadb" if "mariadb" in text.lower() else "mysql"), match[0]


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
    """The first installed server in the order of `config.engine`; raises `UserError` if none is installed."""
    if config.binary is not None:
        return _configured_program(config.binary, config.engine)
    for flavour in config.engine:
        program = _program_on_path(flavour) or _unpacked_program(flavour)
        if program is not None:
            return program
    wanted = " or ".join(DISPLAY_NAMES[flavour] for flavour in config.engine)
    raise UserError(
        f"no {wanted} on PATH or in {unpacked_servers()}; run `envs_setup/mysql.sh` or set `server.address`."
    )


def _configured_program(binary: str, flavours: list[Flavour]) -> ServerProgram:
    path = shutil.which(binary)
    if path is None:
        raise UserError(f"`server.binary`: {binary} is not an executable; correct it, or leave it empty.")
    program = _inspect((path,))
    if program.flavour not in flavours:
        raise UserError(f"`server.binary`: {binary} is {program.identity()}, which `server.engine` does not list.")
    return program


def _program_on_path(flavour: Flavour) -> ServerProgram | None:
    path = shutil.which(PROGRAMS[flavour])
    program = _inspect((path,)) if path else None
    # MariaDB's packages also install a program named mysqld.
    return program if program and program.flavour == flavour else None


def _unpacked_program(flavour: Flavour) -> ServerProgram | None:
    """The unpacked package of a flavour, started through the loader and with the libraries unpacked beside it."""
    home = unpacked_servers() / flavour
    path = home / "usr" / "sbin" / PROGRAMS[flavour]
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


def _inspect(command: tuple[str, ...], options: tuple[str, ...] = ()) -> ServerProgram:
    """The program that `command` starts, with the flavour and version that it prints."""
    try:
        done = subprocess.run([*command, "--no-defaults", "--version"], capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UserError(f"{command[-1]} does not run ({error}); correct `server.binary` or delete the file.") from None
    # The program's path, printed before " Ver ", may hold digits or the other flavour's name.
    flavour, version = parse_version(done.stdout.partition(" Ver ")[2] or done.stdout + done.stderr)
    return ServerProgram(flavour, version, command, options)
