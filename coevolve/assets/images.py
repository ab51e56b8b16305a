"""Container images: what each is made of (`containers/images.yaml`), and where those built here lie (`images.lock`)."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Annotated

import yaml
from pydantic import Field, model_validator

from coevolve.config.sections import Strict
from coevolve.config.suite import read_yaml, validated
from coevolve.errors import UserError
from coevolve.storage import files

SOURCE = Path("containers/images.yaml")
LOCK = Path("containers/images.lock")
FOLDER = Path("data/mirror/images")
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class Recipe(Strict):
    """What one image is made of, beside what all have, and the stages that run in it; images.yaml explains the keys."""

    about: str
    extras: list[str]
    debian: tuple[str, ...] = ()
    mysql: bool = False
    tests: list[str]
    stages: list[str]


class Source(Strict):
    """images.yaml: the base of all images, by digest, and the recipe of each."""

    base: Annotated[str, Field(pattern=r"@sha256:[0-9a-f]{64}$")]
    debian: list[str]
    tools: list[str]
    images: dict[str, Recipe]

    @model_validator(mode="after")
    def _one_image_a_stage(self) -> Source:
        counts = Counter(stage for recipe in self.images.values() for stage in recipe.stages)
        if twice := [stage for stage, count in counts.items() if count > 1]:
            raise ValueError(f"images: two of them list the stage `{twice[0]}`")
        return self


class Image(Strict):
    """A built image: its file, the commit whose lock and scripts it was made of, and the base under it."""

    file: Path
    sha256: Sha256
    commit: str
    base: str

    @model_validator(mode="after")
    def _named_by_digest(self) -> Image:
        if not self.file.stem.endswith(f"-{self.sha256[:12]}"):
            raise ValueError(f"file: {self.file.name} is not named by sha256 {self.sha256[:12]}")
        return self


class Lock(Strict):
    """images.lock: the built images by name."""

    images: dict[str, Image]


def source(path: Path = SOURCE) -> Source:
    """The recipes of all images; raises `UserError` naming file and key."""
    return validated(Source, path, read_yaml(path))


def locked(path: Path = LOCK, recipes: Path = SOURCE) -> dict[str, Image]:
    """The image of every stage that runs in one; raises `UserError` where one is not built or its file is not there.

    Reads no image: every job comes by here. `check` compares their bytes.
    """
    lock = _read(path)
    found: dict[str, Image] = {}
    for name, recipe in source(recipes).images.items():
        if recipe.stages:
            found |= dict.fromkeys(recipe.stages, _present(path, lock, name))
    return found


def check(path: Path = LOCK) -> list[str]:
    """What is wrong with the lock's images, a sentence each; reads every byte of them."""
    try:
        images = _read(path).images
    except UserError as error:
        return [str(error)]
    return [problem for name, image in images.items() if (problem := _problem(path, name, image))]


def add(name: str, file: Path, commit: str, base: str, path: Path = LOCK) -> Image:
    """Name a new image by its digest, in `file`'s folder, and put it into the lock.

    The image it replaces stays: jobs may be running in it.
    """
    lock = _read(path) if path.exists() else Lock(images={})
    sha256 = files.sha256(file)
    image = Image(file=file.with_name(f"{name}-{sha256[:12]}.sif"), sha256=sha256, commit=commit, base=base)
    file.replace(image.file)
    entries = Lock(images=lock.images | {name: image}).model_dump(mode="json")
    files.write_bytes(path, yaml.safe_dump(entries, sort_keys=True).encode())
    return image


def _read(path: Path) -> Lock:
    if not path.exists():
        raise UserError(f"{path}: no images were built here; run `make images`, or leave out `--sdm apptainer`.")
    return validated(Lock, path, read_yaml(path))


def _present(path: Path, lock: Lock, name: str) -> Image:
    image = lock.images.get(name)
    if image is None:
        raise UserError(f"{path}: the image `{name}` is not in it; run `make images`.")
    if not image.file.is_file():
        raise UserError(_absent(path, name, image))
    return image


def _problem(path: Path, name: str, image: Image) -> str:
    if not image.file.is_file():
        return _absent(path, name, image)
    found = files.sha256(image.file)
    if found != image.sha256:
        return f"{path}: {image.file} has sha256 {found}, not {image.sha256}; copy it again or run `make images`."
    return ""


def _absent(path: Path, name: str, image: Image) -> str:
    return f"{path}: {image.file} of the image `{name}` is not there; copy it there or run `make images`."
