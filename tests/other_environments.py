"""Environments of other tools, made from their lock files and the package index."""

import subprocess
import sys

import pytest


class OtherPython:
    """The Python of an environment; a call runs it and returns what it prints."""

    def __init__(self, path):
        self.path = path

    def __call__(self, *arguments, **options):
        done = subprocess.run([self.path, *arguments], capture_output=True, text=True, check=False, **options)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


def make(lock, folder):
    """The environment of a lock file in `folder`; skips the test if the package index does not give it."""
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    pip = [folder / "bin/python", "-m", "pip", "install", "--quiet", "--no-deps", "--requirement", lock]
    done = subprocess.run(pip, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"{lock.name} cannot be installed from the package index: {done.stderr[-300:]}")
    return OtherPython(folder / "bin/python")
