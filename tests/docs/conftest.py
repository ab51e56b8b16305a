"""Pages of the documentation, and copies of the kit in which they are done as they say."""

import os
import re
import subprocess

import pytest
from checkout import copy_of, environment


class Page:
    """A page and its blocks of code, in order."""

    def __init__(self, path):
        self.text = path.read_text()

    def blocks(self, language):
        return re.findall(rf"```{language}\n(.*?)```", self.text, re.DOTALL)

    @property
    def commands(self):
        return [line for block in self.blocks("console") for line in block.splitlines()]


class Copy:
    """A copy of the kit, and what runs in it; `packages` is a folder with packages that are installed for it."""

    def __init__(self, folder):
        self.folder, self.packages = folder, None

    def write(self, name, text):
        (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
        (self.folder / name).write_text(text)

    def edit(self, name, old, new):
        before = (self.folder / name).read_text()
        assert before.count(old) == 1, f"{name}: {old!r} stands there {before.count(old)} times"
        self.write(name, before.replace(old, new))

    def ask(self, *command):
        own = environment(self.folder)
        if self.packages:
            own["PYTHONPATH"] += f"{os.pathsep}{self.packages}"
        return subprocess.run(command, cwd=self.folder, env=own, capture_output=True, text=True, check=False)

    def run(self, *command):
        done = self.ask(*command)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def shell(self, line):
        return self.run("bash", "-ec", line)

    def python(self, code):
        return self.run("python", "-c", code)


@pytest.fixture(scope="module")
def kit(root, tmp_path_factory):
    return Copy(copy_of(root, tmp_path_factory.mktemp("kit")))


@pytest.fixture(scope="session")
def read(root):
    """The page of a name."""
    return lambda name: Page(next((root / "docs").rglob(f"{name}.md")))
