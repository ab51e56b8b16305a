"""Build images from the commit HEAD: `python containers/build.py IMAGE...`.

Uncommitted changes are not in them. Each image becomes data/mirror/images/IMAGE-DIGEST.sif and an entry of
containers/images.lock, which Snakemake's jobs read.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from coevolve.assets import images
from coevolve.errors import UserError

ROOT = Path(__file__).parents[1]
#: Takes a tenth of the default's time; the files are slightly larger.
COMPRESSION = "--mksquashfs-args=-comp zstd -Xcompression-level 3"


def main() -> None:
    """Build the given images; bad input ends with one sentence on stderr and a non-zero exit status."""
    options = _parser().parse_args()
    # Apptainer runs in another folder than the user.
    if options.tool == "apptainer" and options.base and Path(options.base).exists():
        options.base = str(Path(options.base).absolute())
    options.bind = [str(Path(path).absolute()) for path in options.bind]
    os.chdir(ROOT)
    try:
        recipes = images.load_recipes()
        for name in options.images or recipes.images:
            image = build(name, recipes, options)
            sys.stderr.write(f"{name}: {image.file}\n")
    except UserError as error:
        sys.exit(f"build.py: {error}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("images", nargs="*", metavar="IMAGE", help="keys of images.yaml (default: all)")
    parser.add_argument("--with", dest="tool", choices=["apptainer", "podman", "docker"], default="apptainer")
    parser.add_argument(
        "--base", help="instead of the base in images.yaml; for Apptainer also a SIF file or a directory"
    )
    parser.add_argument("--torch", help="a variant of the locked version, such as 2.13.0+cpu, that pip can find")
    parser.add_argument(
        "--without", action="append", default=[], metavar="EXTRA", help="an extra of the recipe to leave out, as vllm"
    )
    parser.add_argument(
        "--bind", action="append", default=[], metavar="PATH[:INSIDE]", help="visible during the build only"
    )
    return parser


def build(name: str, recipes: images.ImageRecipes, options: argparse.Namespace) -> images.BuiltImage:
    """Build an image from the commit HEAD; raises `UserError` if a tool or the commit is missing, or a step fails."""
    if name not in recipes.images:
        raise UserError(f"{images.RECIPES}: no image `{name}`; its images are {', '.join(recipes.images)}.")
    for extra in {*options.without} - {extra for recipe in recipes.images.values() for extra in recipe.extras}:
        raise UserError(f"--without {extra}: no image in {images.RECIPES} has this extra.")
    for tool in {"apptainer", options.tool}:
        if shutil.which(tool) is None:
            raise UserError(f"{tool} is not on PATH; install it: whichever tool builds an image, Apptainer runs it.")
    commit = _commit()
    arguments = {"COMMIT": commit, "BASE_IMAGE": options.base or recipes.base}
    if options.torch and "TORCH" in Path(f"containers/{name}/Dockerfile").read_text(encoding="utf-8"):
        arguments["TORCH"] = options.torch
    images.FOLDER.mkdir(parents=True, exist_ok=True)
    built = images.FOLDER / f".{name}.sif"
    with tempfile.TemporaryDirectory() as folder:
        context = Path(folder)
        _run("sh", "-c", f"git archive {commit} | tar -x -C '{context}'")
        if options.without:
            _leave_out(options.without, name, recipes, context)
        if options.tool == "apptainer":
            _apptainer(name, context, built, arguments, options.bind)
        else:
            _docker(options.tool, name, context, built, arguments, options.bind)
    return images.add(name, built, commit, arguments["BASE_IMAGE"])


def _leave_out(extras: Sequence[str], name: str, recipes: images.ImageRecipes, context: Path) -> None:
    """Write the files of an image again without the packages of some extras."""
    import generate

    recipe = recipes.images[name]
    kept = recipe.model_copy(update={"extras": [extra for extra in recipe.extras if extra not in extras]})
    reduced = recipes.model_copy(update={"images": {name: kept}})
    for path, text in generate.generated_files(reduced).items():
        (context / path).write_text(text, encoding="utf-8")


def _apptainer(name: str, context: Path, built: Path, arguments: Mapping[str, str], binds: Sequence[str]) -> None:
    local = {"BOOTSTRAP": "localimage"} if Path(arguments["BASE_IMAGE"]).exists() else {}
    command = ["apptainer", "build", "--force", COMPRESSION, *(() if os.geteuid() == 0 else ("--fakeroot",))]
    command += [f"--bind={path}" for path in binds]
    command += [f"--build-arg={key}={value}" for key, value in {**arguments, **local}.items()]
    _run(*command, str(built.absolute()), f"containers/{name}/apptainer.def", cwd=context)


def _docker(
    tool: str, name: str, context: Path, built: Path, arguments: Mapping[str, str], binds: Sequence[str]
) -> None:
    tag = f"localhost/coevolve-{name}"
    command = [tool, "build", "--tag", tag, "--file", str(context / "containers" / name / "Dockerfile")]
    command += [f"--volume={path if ':' in path else f'{path}:{path}'}" for path in binds]
    command += [f"--build-arg={key}={value}" for key, value in arguments.items()]
    _run(*command, str(context))
    archive = context / "image.tar"
    _run(tool, "save", "--output", str(archive), tag)
    _run("apptainer", "build", "--force", COMPRESSION, str(built), f"docker-archive:{archive}")


def _commit() -> str:
    """The commit HEAD; raises `UserError` where there is none."""
    try:
        done = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        raise UserError(f"{ROOT}: no git, or no clone; images are built from a commit: install git, clone.") from None
    return done.stdout.strip()


def _run(*command: str, cwd: Path | None = None) -> None:
    done = subprocess.run(command, cwd=cwd, check=False)
    if done.returncode:
        raise UserError(f"`{' '.join(command[:2])}` ended with status {done.returncode}; its output is above.")


if __name__ == "__main__":
    main()
