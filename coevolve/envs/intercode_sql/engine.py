"""Which database server runs: one the user names, one on PATH, or one that `envs_setup/mysql.sh` unpacked."""

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
NAMES: dict[Flavour, str] = {"mysql": "MySQL", "mariadb": "MariaDB"}
#: Whatever server is here: what is asked of one outside a suite.
ANY = SqlServerConfig(address=None, binary=None, engine=[*PROGRAMS], statement_seconds=10.0, rows=20000)


@dataclass(frozen=True)
class Engine:
    """A server program: `command` starts it, `options` are those that its place on the disk makes necessary."""

    flavour: Flavour
    version: str
    command: tuple[str, ...]
    options: tuple[str, ...] = ()

    def identity(self) -> str:
        """Name and version as results carry them: "MySQL 9.7.4", or "MariaDB 10.11.18, non-comparable"."""
        return identity(self.flavour, self.version)


def identity(flavour: Flavour, version: str) -> str:
    """Name and version of a server, marked where its results cannot stand beside those of MySQL."""
    return f"{NAMES[flavour]} {version}" + ("" if flavour == "mysql" else ", non-comparable")


def parse_version(text: str) -> tuple[Flavour, str]:
    """Flavour and bare version out of what a server calls its version, e.g. "10.11.18-MariaDB-0+deb12u1"."""
    found = re.search(r"\d+\.\d+\.\d+", text)
    if found is None:
        raise UserError(f"`{text.strip()[:200]}` is no version of MySQL or MariaDB; correct `server.binary`.")
    return ("mariadb" if "mariadb" in text.lower() else "mysql"), found[0]


def cache() -> Path:
    """Where the kit keeps servers and initialised data directories; `envs_setup/mysql.sh` knows the same rule."""
    given = os.environ.get("COEVOLVE_CACHE")
    if given:
        return Path(given).absolute()
    # A root's server runs as nobody, who cannot enter /root.
    return Path("/var/cache/coevolve") if os.geteuid() == 0 else Path.home() / ".cache" / "coevolve"


def servers() -> Path:
    """Where unpacked servers are: in an image that is a place of their own, beside which nothing can be kept."""
    given = os.environ.get("COEVOLVE_SERVERS")
    return Path(given) if given else cache() / "servers"


def find(config: SqlServerConfig) -> Engine:
    """The first server there is in the order of `config.engine`; raises `UserError` where there is none."""
    if config.binary is not None:
        return _named(config.binary, config.engine)
    for flavour in config.engine:
        engine = _on_path(flavour) or _unpacked(flavour)
        if engine is not None:
            return engine
    wanted = " or ".join(NAMES[flavour] for flavour in config.engine)
    raise UserError(f"no {wanted} on PATH or in {cache()}; run `envs_setup/mysql.sh` or set `server.address`.")


def _named(binary: str, flavours: list[Flavour]) -> Engine:
    program = shutil.which(binary)
    if program is None:
        raise UserError(f"`server.binary`: {binary} is no program; correct it, or leave it empty to have one found.")
    engine = _engine((program,))
    if engine.flavour not in flavours:
        raise UserError(f"`server.binary`: {binary} is {engine.identity()}, which `server.engine` does not list.")
    return engine


def _on_path(flavour: Flavour) -> Engine | None:
    program = shutil.which(PROGRAMS[flavour])
    engine = _engine((program,)) if program else None
    # MariaDB's packages call their server mysqld, too.
    return engine if engine and engine.flavour == flavour else None


def _unpacked(flavour: Flavour) -> Engine | None:
    """The package in the cache, which runs through the loader and libraries unpacked with it."""
    home = servers() / flavour
    program = home / "usr" / "sbin" / PROGRAMS[flavour]
    loaders = sorted(home.glob("usr/lib/*/ld-linux*.so*"))
    if not program.exists() or not loaders:
        return None
    share = home / "usr" / "share" / "mysql"
    options = (
        f"--basedir={home / 'usr'}",
        f"--lc-messages-dir={share}",
        f"--character-sets-dir={share / 'charsets'}",
        f"--plugin-dir={home / 'usr' / 'lib' / 'mysql' / 'plugin'}",
    )
    return _engine((str(loaders[0]), "--library-path", str(loaders[0].parent), str(program)), options)


def _engine(command: tuple[str, ...], options: tuple[str, ...] = ()) -> Engine:
    try:
        said = subprocess.run([*command, "--no-defaults", "--version"], capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UserError(f"{command[-1]} does not run ({error}); correct `server.binary` or delete the file.") from None
    # The program's own name may hold digits or the other server's name.
    flavour, version = parse_version(said.stdout.partition(" Ver ")[2] or said.stdout + said.stderr)
    return Engine(flavour, version, command, options)
