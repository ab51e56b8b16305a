"""Container images: the recipe of each (`containers/images.yaml`) and the images that are here (`images.lock`)."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import yaml
from pydantic import Field, model_validator

from coevolve.config.sections import Strict
from coevolve.config.validation import validated
from coevolve.config.yaml_files import read_yaml
from coevolve.errors import UserError
from coevolve.storage import files

RECIPES = Path("containers/images.yaml")
LOCK = Path("containers/images.lock")
FOLDER = Path("data/mirror/images")
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class ImageRecipe(Strict):
    """What an image has beyond the common parts; images.yaml explains the keys."""

    about: str
    extras: list[str]
    debian: tuple[str, ...] = ()
    mysql: bool = False
    tests: list[str]
    serves: str | None = None


class ImageRecipes(Strict):
    """images.yaml: the base of all images, by digest, and the recipe of each."""

    base: Annotated[str, Field(pattern=r"@sha256:[0-9a-f]{64}$")]
    debian: list[str]
    tools: list[str]
    images: dict[str, ImageRecipe]


class BuiltImage(Strict):
    """A built image: its file, the commit that it was built from, and its base image."""

    file: Path
    sha256: Sha256
    commit: str
    base: str

    @model_validator(mode="after")
    def _named_by_digest(self) -> BuiltImage:
        if not self.file.stem.endswith(f"-{self.sha256[:12]}"):
            raise ValueError(f"file: the name {self.file.name} does not end with the sha256's {self.sha256[:12]}")
        return self


class ImageLock(Strict):
    """images.lock: the built images by name."""

    images: dict[str, BuiltImage]


def engine() -> str | None:
    """The program that runs images here, Apptainer or Singularity; None without one."""
    return shutil.which("apptainer") or shutil.which("singularity")


def packages_lock(image: str, root: Path = Path()) -> Path:
    """The lock file, below `root`, of an image's Python packages: its own if they conflict with those of the others."""
    paths = (Path(f"containers/{image}/requirements.lock"), Path(f"envs_setup/{image}.lock"))
    return next((path for path in paths if (root / path).exists()), Path("requirements.lock"))


def environment(image: str) -> Path:
    """The environment that `make cluster` makes in an image's place where its packages conflict with the others'."""
    return Path(f".venv_{image}").absolute()


def load_recipes(path: Path = RECIPES) -> ImageRecipes:
    """The recipes of all images; raises `UserError` with file and key."""
    return validated(ImageRecipes, path, read_yaml(path))


def named(names: Iterable[str], path: Path = LOCK) -> dict[str, BuiltImage]:
    """The images called `names`; raises `UserError` if an image is not built or its file is missing.

    Every job calls this, so it hashes no image; `problems` does.
    """
    lock = _read(path)
    for name in names:
        if name not in lock.images:
            raise UserError(f"{path}: the image `{name}` is not in it; run `make images`.")
        if sentence := _problem(path, name, lock.images[name], thorough=False):
            raise UserError(sentence)
    return {name: lock.images[name] for name in names}


def problems(path: Path = LOCK) -> list[str]:
    """What is wrong with the lock's images, a sentence each; hashes all of them."""
    try:
        images = _read(path).images
    except UserError as error:
        return [str(error)]
    return [sentence for name, image in images.items() if (sentence := _problem(path, name, image))]


def add(name: str, file: Path, commit: str, base: str, path: Path = LOCK) -> BuiltImage:
    """Rename a new image, within `file`'s folder, to end with its digest, and put it into the lock.

    The file of the image that it replaces stays, because jobs may be running in it.
    """
    sha256 = files.sha256(file)
    image = BuiltImage(file=file.with_name(f"{name}-{sha256[:12]}.sif"), sha256=sha256, commit=commit, base=base)
    file.replace(image.file)
    lock = _read(path) if path.exists() else ImageLock(images={})
    entries = ImageLock(images={**lock.images, name: image}).model_dump(mode="json")
    files.write_bytes(path, yaml.safe_dump(entries, sort_keys=True).encode())
    return image


def _read(path: Path) -> ImageLock:
    if not path.exists():
        raise UserError(f"{path}: no images were built here; run `make images`, or omit `--sdm apptainer`.")
    return validated(ImageLock, path, read_yaml(path))


def _problem(path: Path, name: str, image: BuiltImage, thorough: bool = True) -> str:
    """What is wrong with the file of an image in the lock `path`, a sentence; empty if nothing is."""
    if not image.file.is_file():
        return f"{path}: {image.file} of the image `{name}` is missing; copy it there or run `make images`."
    if thorough and (sha256 := files.sha256(image.file)) != image.sha256:
        return f"{path}: {image.file} has sha256 {sha256}, not {image.sha256}; copy it again or run `make images`."
    return ""
