"""Pages of the documentation, and a copy of the kit in which they are done as they say."""

import re
import shlex
import shutil

import pytest
from checkout import Copy, copy_of


class Page:
    """A page and its blocks of code, in order."""

    def __init__(self, path):
        self.text = path.read_text()

    def blocks(self, language):
        return re.findall(rf"```{language}\n(.*?)```", self.text, re.DOTALL)

    @property
    def commands(self):
        return [line for block in self.blocks("console") for line in block.splitlines()]


@pytest.fixture(scope="module")
def kit(root, tmp_path_factory):
    """A copy of the kit with its bytecode, which its processes need not compile again."""
    folder = copy_of(root, tmp_path_factory.mktemp("kit"))
    for compiled in root.glob("coevolve/**/__pycache__"):
        unfinished = shutil.ignore_patterns("*.pyc.*")  # another process writes them
        shutil.copytree(compiled, folder / compiled.relative_to(root), ignore=unfinished)
    return Copy(folder)


@pytest.fixture
def console(coevolve, monkeypatch):
    """Runs a page's lines `export NAME=VALUE` and `coevolve ...` here: no process imports the kit for each of them.

    Returns what they print on stdout.
    """

    def run(lines):
        printed = []
        for program, *words in map(shlex.split, lines.splitlines()):
            if program == "export":
                monkeypatch.setenv(*words[0].split("=", 1))
                continue
            assert program == "coevolve"
            status, out, err = coevolve(*words)
            assert status == 0, err
            printed.append(out)
        return "".join(printed)

    return run


@pytest.fixture(scope="session")
def read(root):
    """The page of a name."""
    return lambda name: Page(next((root / "docs").rglob(f"{name}.md")))
