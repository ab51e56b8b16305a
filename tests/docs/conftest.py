"""Pages of the documentation, and a copy of the kit in which they are done as they say."""

import re

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
    return Copy(copy_of(root, tmp_path_factory.mktemp("kit")))


@pytest.fixture(scope="session")
def read(root):
    """The page of a name."""
    return lambda name: Page(next((root / "docs").rglob(f"{name}.md")))
