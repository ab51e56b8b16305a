"""Build images: `python containers/build.py IMAGE...`.

What is committed is built, and nothing else reaches the build. Each image becomes data/mirror/images/IMAGE-DIGEST.sif
and an entry of containers/images.lock, by which Snakemake's jobs find it.
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
#: A tenth of the default's time, for files a little larger.
COMPRESSION = "--mksquashfs-args=-comp zstd -Xcompression-level 3"


def main() -> None:
    """Build the images asked for; bad input ends in one sentence on stderr and exit status 2."""
    options = _parser().parse_args()
    os.chdir(ROOT)
    try:
        source = images.source()
        for name in options.images or source.images:
            image = build(name, source, options)
            sys.stderr.write(f"{name}: {image.file}\n")
    except UserError as error:
        sys.exit(f"build.py: {error}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("images", nargs="*", metavar="IMAGE", help="keys of images.yaml (default: all)")
    parser.add_argument("--with", dest="tool", choices=["apptainer", "podman", "docker"], default="apptainer")
    parser.add_argument("--base", help="another base image than images.yaml's; for Apptainer a SIF or a directory, too")
    parser.add_argument("--torch", help="a variant of the locked version, such as 2.13.0+cpu, that pip can find")
    parser.add_argument(
        "--bind", action="append", default=[], metavar="PATH[:INSIDE]", help="there while building, not after"
    )
    return parser


def build(name: str, source: images.Source, options: argparse.Namespace) -> images.Image:
    """Build one image of what HEAD holds; raises `UserError` where a tool is missing or a step fails."""
    if name not in source.images:
        raise UserError(f"{images.SOURCE}: no image `{name}`; it knows {', '.join(source.images)}.")
    for tool in {"apptainer", options.tool}:
        if shutil.which(tool) is None:
            raise UserError(f"{tool} is not on PATH; install it: jobs run Apptainer's images, whatever made them.")
    commit = _output("git", "rev-parse", "HEAD")
    chosen = {"COMMIT": commit, "BASE_IMAGE": options.base or source.base}
    if options.torch and "TORCH" in Path(f"containers/{name}/Dockerfile").read_text(encoding="utf-8"):
        chosen["TORCH"] = options.torch
    images.FOLDER.mkdir(parents=True, exist_ok=True)
    made = images.FOLDER / f".{name}.sif"
    with tempfile.TemporaryDirectory() as folder:
        context = Path(folder)
        _run("sh", "-c", f"git archive {commit} | tar -x -C '{context}'")
        if options.tool == "apptainer":
            _apptainer(name, context, made, chosen, options.bind)
        else:
            _docker(options.tool, name, context, made, chosen, options.bind)
    return images.add(name, made, commit, chosen["BASE_IMAGE"])


def _apptainer(name: str, context: Path, made: Path, chosen: Mapping[str, str], binds: Sequence[str]) -> None:
    local = {"BOOTSTRAP": "localimage"} if Path(chosen["BASE_IMAGE"]).exists() else {}
    command = ["apptainer", "build", "--force", COMPRESSION, *(() if os.geteuid() == 0 else ("--fakeroot",))]
    command += [f"--bind={path}" for path in binds]
    command += [f"--build-arg={key}={value}" for key, value in {**chosen, **local}.items()]
    _run(*command, str(made.absolute()), f"containers/{name}/apptainer.def", cwd=context)


def _docker(tool: str, name: str, context: Path, made: Path, chosen: Mapping[str, str], binds: Sequence[str]) -> None:
    tag = f"localhost/coevolve-{name}"
    command = [tool, "build", "--tag", tag, "--file", str(context / "containers" / name / "Dockerfile")]
    command += [f"--volume={path if ':' in path else f'{path}:{path}'}" for path in binds]
    command += [f"--build-arg={key}={value}" for key, value in chosen.items()]
    _run(*command, str(context))
    archive = context / "image.tar"
    _run(tool, "save", "--output", str(archive), tag)
    _run("apptainer", "build", "--force", COMPRESSION, str(made), f"docker-archive:{archive}")


def _output(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def _run(*command: str, cwd: Path | None = None) -> None:
    done = subprocess.run(command, cwd=cwd, check=False)
    if done.returncode:
        raise UserError(f"`{' '.join(command[:2])}` ended with status {done.returncode}; what it said is above.")


if __name__ == "__main__":
    main()
