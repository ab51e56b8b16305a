"""Environments of other tools, made from their lock files and the package index.

COEVOLVE_TEST_ENVIRONMENTS: a folder that keeps them, so that the next run of the tests does not install them again.
"""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest


class OtherPython:
    """The Python of an environment; a call runs it and returns what it prints."""

    def __init__(self, path):
        self.path = path

    def __call__(self, *arguments, **options):
        done = subprocess.run([self.path, *arguments], capture_output=True, text=True, check=False, **options)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


def make(locks, folder):
    """The environment of lock files in `folder`; skips the test if the package index does not give one of them."""
    digest = hashlib.sha256(b"".join(lock.read_bytes() for lock in locks)).hexdigest()[:12]
    folder = Path(os.environ.get("COEVOLVE_TEST_ENVIRONMENTS", folder)) / f"{locks[0].stem}-{digest}"
    if not (folder / "complete").exists():
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        for lock in locks:
            pip = [folder / "bin/python", "-m", "pip", "install", "--quiet", "--no-deps", "--requirement", lock]
            done = subprocess.run(pip, capture_output=True, text=True, check=False)
            if done.returncode:
                pytest.skip(f"{lock.name} cannot be installed from the package index: {done.stderr[-300:]}")
        (folder / "complete").touch()
    return OtherPython(folder / "bin/python")
