"""What is kept of a module beside its bytecode is taken only if it is of the same source and the same reader."""

import json
import subprocess
import sys

import pytest
from checkout import copy_of, environment

from coevolve.storage import code_digest

DIGEST = "from coevolve.storage import code_digest; print(code_digest.code_digest('coevolve.train.losses'))"
SOURCE = '''"""A text."""
import math
from typing import TYPE_CHECKING

from coevolve.settings.section import Strict
from coevolve.errors import UserError
from coevolve.train import losses
from coevolve.train.losses import ipo as another

if TYPE_CHECKING:
    from coevolve.config.suite import Suite

LIMIT = 3


class Size(Strict):
    width: int = 3

    @field_validator("width")
    def _check(cls, value):
        return helper(value)

    def area(self):
        return self.width * LIMIT


class Plain(Size.other):
    field: int = 4


def helper(value):
    """A text."""
    log.info("working")
    problem = f"wrong {value}"
    if value:
        raise UserError(f"{problem}; mend it.")
    return losses.simpo(value) + another(value)


def run(suite: Suite):
    from coevolve import seeds
    return seeds.derive(suite.seed)


LIMITS = {LIMIT: helper}
math.tau = 6
'''
#: Edits of that source, and the definitions whose hashes they change.
EDITS = [
    ('"""A text."""', '"""Another."""', set()),
    ("    return self", "    # a comment\n        return self", set()),
    ('log.info("working")', 'log.info("at work")', set()),
    ('f"wrong {value}"', 'f"bad {value}"', set()),
    ("mend it.", "correct it.", set()),
    ("width: int = 3", "width: int = 4", {"Size (values)"}),
    ("return helper(value)", "return value", {"Size (values)"}),
    ("self.width * LIMIT", "self.width + LIMIT", {"Size"}),
    ("field: int = 4", "field: int = 5", {"Plain (values)"}),
    ("+ another(value)", "- another(value)", {"helper"}),
    ("LIMIT = 3\n", "LIMIT = 4\n", {"LIMIT"}),
    ("math.tau = 6", "math.tau = 7", {"(body)"}),
]


@pytest.fixture(scope="module")
def repo(root, tmp_path_factory):
    return copy_of(root, tmp_path_factory.mktemp("digest"))


def digest(repo, **variables):
    own = environment(repo) | variables
    done = subprocess.run([sys.executable, "-c", DIGEST], cwd=repo, env=own, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def hashes(source):
    known = code_digest.definitions("coevolve.train.added", source.encode())
    return {name: each.hash for name, each in known.items() if each.hash}


@pytest.mark.parametrize(("old", "new", "changed"), EDITS)
def test_an_edit_changes_the_definition_that_it_is_in_unless_no_result_depends_on_it(old, new, changed):
    assert old in SOURCE
    before, after = hashes(SOURCE), hashes(SOURCE.replace(old, new))
    assert {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)} == changed


def test_a_function_called_log_is_not_the_log():
    source = "from math import log\n\n\ndef f(x):\n    return log(x, 2)\n"
    assert hashes(source) != hashes(source.replace("2", "10"))


def test_a_definition_reaches_what_it_mentions_by_its_name_where_that_is_defined():
    known = code_digest.definitions("coevolve.train.added", SOURCE.encode())
    assert known["another"] == ("", ["coevolve.train.losses.ipo"], [], [])
    assert {"coevolve.train.losses.simpo", "coevolve.train.losses.ipo"} <= {*known["helper"].names}
    assert {"coevolve.config.suite.Suite", "coevolve.seeds.derive"} <= {*known["run"].names}
    assert {"coevolve.train.added.LIMIT", "coevolve.train.added.helper"} < {*known["LIMITS"].names}
    assert known["Size"].bases == ["coevolve.settings.section.Strict"]
    assert "coevolve.train.added.helper" in known["Size (values)"].names
    assert "coevolve.train.added.helper" not in known["Size"].names


def test_values_of_sections_are_left_out_and_those_of_records_are_not():
    reached = code_digest.reachable("coevolve.train.settings.DpoConfig", "coevolve.records.episodes.Turn")
    assert "coevolve.records.episodes.Turn (values)" in reached and "coevolve.records.base.Record (values)" in reached
    sections = {name for name in reached if name.startswith(("coevolve.train", "coevolve.settings"))}
    assert "coevolve.train.settings.Optimiser" in sections and not any("values" in name for name in sections)


def kept(repo):
    return {path.name: path for path in (repo / "coevolve/train/__pycache__").glob("*.digest")}


def test_the_kept_facts_give_the_digest_that_the_source_gives(repo):
    before = digest(repo, PYTHONDONTWRITEBYTECODE="1")
    assert not kept(repo), "nothing is kept where no bytecode is"
    assert digest(repo) == before
    (name,) = (name for name in kept(repo) if name.startswith("losses."))
    assert digest(repo) == before
    key, facts = json.loads(kept(repo)[name].read_text())
    facts["dpo"][0] = "of another tree"
    kept(repo)[name].write_text(json.dumps([key, facts]))
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
    else:  # a reader that takes no docstring out
        path.write_text(text.replace("return None if isinstance(node.value, ast.Constant) else", "return"))
    assert path.read_text() != text and digest(repo) != before
    path.write_text(text)
    assert digest(repo) == before


def test_a_module_that_appears_is_found_though_its_importer_is_as_before(repo):
    """Of `from coevolve.train import losses_too` the file may come later."""
    before = digest(repo)
    source = repo / "coevolve/train/losses.py"
    text = source.read_text()
    source.write_text(f"{text}\ndef later():\n    from coevolve.train import losses_too\n    return losses_too.A\n")
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
