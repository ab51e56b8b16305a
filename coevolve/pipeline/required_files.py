"""The external files and models of a suite: their paths and origins, and checks that they exist."""

import functools
import os
import shlex
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ValidationError

from coevolve.assets import hub, images
from coevolve.assets.checks import Check, run_check
from coevolve.config.models import ModelConfig
from coevolve.config.suite import Suite
from coevolve.pipeline.stage import MIRROR
from coevolve.records.provenance import Provenance
from coevolve.settings.section import SourceFile
from coevolve.storage import files, provenance

#: Files up to this size are hashed by quick checks too.
SMALL_BYTES = 1 << 26
_NAMED_ORIGIN = "the origin that its config file names"


@dataclass(frozen=True)
class RequiredFile:
    """A file or a model. `path`: where jobs read it; `mirror_paths`: its possible paths in a mirror folder.

    `key`: the config key that names it. `sha256`: of a file; a model's manifest has those of its files. `fetched`: a
    stage downloads it on a machine with a network.
    """

    key: str
    path: str
    mirror_paths: tuple[str, ...]
    origin: str
    sha256: str = ""
    licence: str = ""
    fetched: bool = True

    def remedy(self, suite: str) -> str:
        """How to obtain the file if it is missing; `suite` is the suite's name or path."""
        by_hand = f"copy it there from {self.origin}"
        program = os.path.relpath(Path(sys.executable).with_name("snakemake"))
        snakemake = "snakemake" if shutil.which("snakemake") else shlex.quote(program)
        command = f"{snakemake} --profile smoke --config {shlex.quote(f'suite={suite}')} --until download snapshot"
        return f"run `{command}` on a machine with a network, or {by_hand}" if self.fetched else by_hand

    def __str__(self) -> str:
        lines = {"from": self.origin, "sha256": self.sha256, "licence": self.licence, "named by": self.key}
        return "\n".join([self.path, *(f"    {name:9} {value}" for name, value in lines.items() if value)])


def required_files(suite: Suite) -> list[RequiredFile]:
    """All external files and models that the suite reads, files first."""
    data = {
        file.path: _file(suite, f"envs.{name}.{key}", file)
        for name, env in suite.envs.items()
        for key, file in _files(env)
    }
    models = {name: model for name, model in suite.models.items() if model.tiny is None and model.endpoint is None}
    return [*data.values(), *(_model(suite, name, model) for name, model in models.items())]


def verify(suite: Suite, name: str, root: Path = Path(MIRROR), *, thorough: bool = True) -> Iterator[Check]:
    """A check of each required file in the folder `root`, which has the layout of `data/mirror`, and of the images.

    `name`: the suite's name or path, for the commands that a check suggests. Without `thorough`, images are not
    checked, a large file older than its provenance is not hashed again, and of a model only file sizes are compared.
    """
    for file in required_files(suite):
        in_mirror = file.mirror_paths if root != Path(MIRROR) else ()
        candidates = [root / path for path in in_mirror] or [Path(file.path)]
        path = next((path for path in candidates if path.exists()), None)
        if path is None:
            yield Check(file.key, "missing", f"{candidates[0]} does not exist; {file.remedy(name)}.")
        else:
            pinned = functools.partial(_check_file, file, path, thorough)
            listed = functools.partial(_check_model, path, thorough)
            yield run_check(file.key, pinned if file.sha256 else listed)
    if thorough and images.LOCK.exists():
        yield from image_checks()


def image_checks() -> list[Check]:
    """A check of all bytes of each image that was built for this checkout."""
    problems = [Check("image", "wrong", problem) for problem in images.problems()]
    return problems or [Check("images", "ok", f"as {images.LOCK} names them")]


def _files(section: BaseModel, prefix: str = "") -> Iterator[tuple[str, SourceFile]]:
    """(key, file) of every file that a section names."""
    for name, value in section:
        if isinstance(value, SourceFile):
            yield f"{prefix}{name}", value
        elif isinstance(value, BaseModel):
            yield from _files(value, f"{prefix}{name}.")


def _file(suite: Suite, key: str, file: SourceFile) -> RequiredFile:
    for name, source in suite.sources.items():
        if file.path == f"{MIRROR}/{name}/{source.file}":
            origin = source.url or f"`{source.member}` of pip's {str(source.pypi).split()[0]}"
            mirror_paths = (f"{name}/{source.file}", source.file)
            return RequiredFile(key, file.path, mirror_paths, origin, file.sha256, source.licence)
    relative = file.path.removeprefix(f"{MIRROR}/")
    in_mirror = (relative,) if relative != file.path else ()
    return RequiredFile(key, file.path, in_mirror, _NAMED_ORIGIN, file.sha256, fetched=False)


def _model(suite: Suite, name: str, model: ModelConfig) -> RequiredFile:
    if model.gguf:
        return _file(suite, f"models.{name}.gguf", model.gguf)
    if model.hub is None:
        return RequiredFile(f"models.{name}.path", str(model.path), (), _NAMED_ORIGIN, fetched=False)
    manifest = f"models/{name}/{hub.MANIFEST}"
    page = f"{hub.PUBLIC_ENDPOINT}/{model.hub}"
    mirror_paths = (manifest, hub.mirror_path(model.hub, model.revision))
    origin = f"{page}/tree/{model.revision}"
    return RequiredFile(f"models.{name}", f"{MIRROR}/{manifest}", mirror_paths, origin, licence=f"see {page}")


def _check_file(file: RequiredFile, path: Path, thorough: bool) -> str:
    size = path.stat().st_size
    if not thorough and size > SMALL_BYTES and recorded_sha256(path) == file.sha256:
        return f"{path}, {size:,} bytes, unchanged since it was hashed"
    files.verified(path, file.sha256, file.key)
    return f"{path}, {size:,} bytes"


def recorded_sha256(path: Path) -> str:
    """The hash of a file in the `provenance.json` of its folder; empty if there is none or the file is newer."""
    record = path.with_name(provenance.NAME)
    try:
        if path.stat().st_mtime > record.stat().st_mtime:
            return ""
        return Provenance.from_json(record.read_bytes()).outputs.get(path.name, "")
    except (FileNotFoundError, ValidationError):
        return ""


def _check_model(path: Path, thorough: bool) -> str:
    """`path`: a manifest, or a folder that may hold one."""
    folder = path if path.is_dir() else path.parent
    if not (folder / hub.MANIFEST).exists():
        return f"{len(hub.policy_files(folder))} files in {folder}, hashed when a job first reads them"
    manifest = hub.verify(folder / hub.MANIFEST, thorough=thorough)
    size = sum(entry.bytes for entry in manifest.files)
    return f"{manifest.hub} at {manifest.revision[:12]} in {folder}, {size:,} bytes"
