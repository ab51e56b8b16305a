"""What a suite needs from outside: where jobs read it, where it comes from, and whether it is there."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ValidationError

from coevolve.assets import hub, images
from coevolve.assets.checks import Check, run_check
from coevolve.config.sections import ModelConfig, Source, SourceFile
from coevolve.config.suite import Suite
from coevolve.storage import files
from coevolve.types import Provenance
from coevolve.workflow.layout import MIRROR

#: What is hashed even by a quick look.
SMALL_BYTES = 1 << 26
_BY_HAND = "where its config file says"


@dataclass(frozen=True)
class Need:
    """A file or a model. `path`: where jobs read it; `places`: where it may lie in a mirror folder.

    `sha256` is that of a file; those of a model's files stand in its manifest. `key`: the setting that names it.
    `fetched`: a stage brings it where there is a network.
    """

    key: str
    path: str
    places: tuple[str, ...]
    origin: str
    sha256: str = ""
    licence: str = ""
    fetched: bool = True

    @property
    def way(self) -> str:
        """What to do where it is not there."""
        by_hand = f"put it there from {self.origin}"
        command = "snakemake --profile smoke --config suite=... --until download snapshot"
        return f"run `{command}` where there is a network, or {by_hand}" if self.fetched else by_hand

    def __str__(self) -> str:
        known = {"from": self.origin, "sha256": self.sha256, "licence": self.licence, "named by": self.key}
        return "\n".join([self.path, *(f"    {name:9} {value}" for name, value in known.items() if value)])


def needs(suite: Suite) -> list[Need]:
    """Everything the suite reads and no stage makes, files first."""
    files = {
        file.path: _file(suite, f"envs.{name}.{key}", file)
        for name, env in suite.envs.items()
        for key, file in _files(env)
    }
    return [*files.values(), *(_model(name, model) for name, model in suite.models.items() if model.tiny is None)]


def verify(suite: Suite, root: Path = Path(MIRROR), *, thorough: bool = True) -> Iterator[Check]:
    """A check of everything the suite needs, as it lies in the folder `root`, which is laid out like `data/mirror`.

    Without `thorough`, a large file counts as unchanged while it is older than the provenance that names its hash, and
    of a model only sizes are compared; images are left out.
    """
    for need in needs(suite):
        inside = need.places if root != Path(MIRROR) else ()
        where = [root / place for place in inside] or [Path(need.path)]
        path = next((path for path in where if path.exists()), None)
        if path is None:
            yield Check(need.key, "missing", f"{where[0]} is not there; {need.way}.")
        else:
            yield run_check(need.key, functools.partial(_look, need, path, thorough))
    if thorough and images.LOCK.exists():
        yield from image_checks()


def image_checks() -> list[Check]:
    """A check of each image that was built for this checkout, byte by byte."""
    problems = [Check("image", "wrong", problem) for problem in images.problems()]
    return problems or [Check("images", "ok", f"as {images.LOCK} names them")]


def _files(section: BaseModel, prefix: str = "") -> Iterator[tuple[str, SourceFile]]:
    """All files that a section names, with the key of each."""
    for name, value in section:
        if isinstance(value, SourceFile):
            yield f"{prefix}{name}", value
        elif isinstance(value, BaseModel):
            yield from _files(value, f"{prefix}{name}.")


def _file(suite: Suite, key: str, file: SourceFile) -> Need:
    for name, source in suite.sources.items():
        if file.path == f"{MIRROR}/{name}/{source.file}":
            places = (f"{name}/{source.file}", source.file)
            return Need(key, file.path, places, _origin(source), file.sha256, source.licence)
    inside = file.path.removeprefix(f"{MIRROR}/")
    return Need(key, file.path, (inside,) if inside != file.path else (), _BY_HAND, file.sha256, fetched=False)


def _origin(source: Source) -> str:
    return source.url or f"`{source.member}` of pip's {str(source.pypi).split()[0]}"


def _model(name: str, model: ModelConfig) -> Need:
    if model.hub is None:
        return Need(f"models.{name}.path", str(model.path), (), _BY_HAND, fetched=False)
    own = f"models/{name}/{hub.MANIFEST}"
    page = f"{hub.PUBLIC_ENDPOINT}/{model.hub}"
    places = (own, hub.mirror_path(model.hub, model.revision))
    return Need(f"models.{name}", f"{MIRROR}/{own}", places, f"{page}/tree/{model.revision}", licence=f"see {page}")


def _look(need: Need, path: Path, thorough: bool) -> str:
    return _file_as_pinned(need, path, thorough) if need.sha256 else _model_as_listed(path, thorough)


def _file_as_pinned(need: Need, path: Path, thorough: bool) -> str:
    size = path.stat().st_size
    if not thorough and size > SMALL_BYTES and _known(path) == need.sha256:
        return f"{path}, {size:,} bytes, not touched since it was hashed"
    files.verified(path, need.sha256, need.key)
    return f"{path}, {size:,} bytes"


def _known(path: Path) -> str:
    """The hash that the provenance beside a file gives it, unless the file is younger; else nothing."""
    record = path.with_name("provenance.json")
    try:
        if path.stat().st_mtime > record.stat().st_mtime:
            return ""
        return Provenance.from_json(record.read_bytes()).outputs.get(path.name, "")
    except (FileNotFoundError, ValidationError):
        return ""


def _model_as_listed(path: Path, thorough: bool) -> str:
    """`path`: a manifest, or a folder that may hold one."""
    folder = path if path.is_dir() else path.parent
    if not (folder / hub.MANIFEST).exists():
        return f"{len(hub.policy_files(folder))} files in {folder}, hashed when a job first takes them"
    found = hub.verify(folder / hub.MANIFEST, thorough=thorough)
    size = sum(file.bytes for file in found.files)
    return f"{found.hub} at {found.revision[:12]} in {folder}, {size:,} bytes"
