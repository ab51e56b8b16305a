"""The page about WebShop is true: its Python runs, its hashes are the kit's."""

import re
from pathlib import Path

import pytest
import yaml

from coevolve.envs.webshop.prepared_shop import PUBLISHED_CATALOGUE


@pytest.fixture(scope="module")
def page(root):
    return (root / "docs/environments/webshop.md").read_text()


def test_the_python_on_the_page_runs(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert len(blocks) == 2
    for block in blocks:
        exec(compile(block, "docs/environments/webshop.md", "exec"), {})


def test_hashes_are_the_same_everywhere(page, root):
    section = yaml.safe_load((root / "configs/envs/webshop.yaml").read_text())["envs"]["webshop"]
    files = {Path(file["path"]).name: file["sha256"] for file in section["catalogue"].values()}
    assert files == PUBLISHED_CATALOGUE
    for name, digest in PUBLISHED_CATALOGUE.items():
        assert re.search(rf"`{name}` \| [\d,]+ \| `{digest}`", page)
