"""What is kept of a module beside its bytecode is taken only if it is of the same source and the same reader."""

import json
import subprocess
import sys

import pytest
from checkout import copy_of, environment

DIGEST = "from coevolve.storage import code_digest; print(code_digest.code_digest('coevolve.train.losses'))"


@pytest.fixture(scope="module")
def repo(root, tmp_path_factory):
    return copy_of(root, tmp_path_factory.mktemp("digest"))


def digest(repo, **variables):
    own = environment(repo) | variables
    done = subprocess.run([sys.executable, "-c", DIGEST], cwd=repo, env=own, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def kept(repo):
    return {path.name: path for path in (repo / "coevolve/train/__pycache__").glob("*.digest")}


def test_the_kept_facts_give_the_digest_that_the_source_gives(repo):
    before = digest(repo, PYTHONDONTWRITEBYTECODE="1")
    assert not kept(repo), "nothing is kept where no bytecode is"
    assert digest(repo) == before
    (name,) = (name for name in kept(repo) if name.startswith("losses."))
    assert digest(repo) == before
    key, _, imports, data = json.loads(kept(repo)[name].read_text())
    kept(repo)[name].write_text(json.dumps([key, "of another tree", imports, data]))
    assert digest(repo) != before, "the kept facts are read"
    kept(repo)[name].write_text("{")
    assert digest(repo) == before, "a broken file is made again"


@pytest.mark.parametrize("name", ["coevolve/train/losses.py", "coevolve/storage/code_digest.py"])
def test_no_fact_is_taken_of_another_source_or_another_reader(repo, name):
    before = digest(repo)
    path = repo / name
    text = path.read_text()
    if name.endswith("losses.py"):
        path.write_text(text + "\nANOTHER = 1\n")
        assert digest(repo) != before
    else:  # a reader that takes no docstring out
        path.write_text(text.replace("node.body = node.body[1:]", "pass"))
        assert path.read_text() != text
        assert digest(repo) != before
    path.write_text(text)
    assert digest(repo) == before


def test_a_module_that_appears_is_found_though_its_importer_is_as_before(repo):
    """Of `from coevolve.train import losses_too` the file may come later."""
    before = digest(repo)
    source = repo / "coevolve/train/losses.py"
    text = source.read_text()
    source.write_text(f"{text}\ndef later() -> None:\n    from coevolve.train import losses_too  # noqa\n")
    without = digest(repo)
    (repo / "coevolve/train/losses_too.py").write_text("A = 1\n")
    with_it = digest(repo)
    (repo / "coevolve/train/losses_too.py").unlink()
    source.write_text(text)
    assert len({before, without, with_it}) == 3


def test_a_folder_that_is_only_read_is_no_error(repo, tmp_path):
    """As in an image: the facts are worked out again."""
    (repo / "coevolve/train/__pycache__").rename(tmp_path / "pycache")
    (repo / "coevolve/train/__pycache__").touch()  # no folder: whatever is written there fails, for root too
    assert digest(repo) == digest(repo, PYTHONDONTWRITEBYTECODE="1")
    (repo / "coevolve/train/__pycache__").unlink()
