"""What code a process has loaded, and in what state its checkout is."""

import shutil
import subprocess
import sys

import pytest

from coevolve.config.loading import load_suite
from coevolve.pipeline.plan import Plan
from coevolve.pipeline.stage import files_of
from coevolve.storage import jsonl

LOADING = """
import sys
from pathlib import Path
from coevolve.storage import code_digest

from coevolve.errors import UserError
from coevolve.pipeline import run_job
from coevolve.pipeline.job_file import JobFile

planned = JobFile.read(Path("job.json"))
path = Path(code_digest.PACKAGE, "report/figure3.py")
text = path.read_text()


def refused(edited):
    path.unlink() if edited is None else path.write_text(edited)
    try:
        return run_job._loaded(planned).__name__ != "write_figure3"
    except UserError as error:
        return "its code changed while the job started" in str(error)


assert not refused(text)
assert not refused(f"# a remark\\n{text}"), "a comment is no code"
assert refused(text.replace("def draw(", "def draw_(", 1)) and refused("def (") and refused(None)
import coevolve.report.figure3
assert hasattr(coevolve.report.figure3, "draw")
print("as loaded")
"""
#: Writes the file of a job.
PLANNING = """
from pathlib import Path
from coevolve.config.loading import load_suite
from coevolve.pipeline.job_file import JobFile
from coevolve.pipeline.plan import Plan

plan = Plan(load_suite("smoke"))
JobFile.of(plan, plan.products["figure3"], out=Path("out")).write(Path("job.json"))
"""


@pytest.fixture
def package(root, tmp_path):
    """A folder with a copy of the package."""
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(root / "coevolve", tmp_path / "copy/coevolve", ignore=ignored)
    shutil.copytree(root / "configs", tmp_path / "copy/configs")
    return tmp_path / "copy"


def python(package, *arguments, **environment):
    variables = {"PYTHONPATH": str(package), "PATH": "/usr/bin:/bin", "HOME": str(package), **environment}
    return subprocess.run(
        [sys.executable, *arguments], cwd=package, env=variables, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize(("file", "counts"), [("webshop/colours.txt", True), ("webshop/README.md", False)])
def test_data_that_decide_a_result_belong_to_its_code(package, root, file, counts):
    """The words for colours are in the reward of WebShop."""
    shutil.rmtree(package / "coevolve/shipped/data")
    shutil.copytree(root / "data/webshop", package / "coevolve/shipped/data/webshop")
    shutil.copytree(root / "data/sciworld", package / "coevolve/shipped/data/sciworld")
    code = "from coevolve.storage import code_digest as c; print(*(c.code_digest(f'coevolve.envs.{n}') for n in NAMES))"
    ask = ("-c", code.replace("NAMES", "('webshop.reward', 'sciworld.tasks')"))
    before = python(package, *ask).stdout.split()
    with (package / "coevolve/shipped/data" / file).open("a") as data:
        data.write("viridian\n")
    after = python(package, *ask).stdout.split()
    assert [x != y for x, y in zip(before, after, strict=True)] == [counts, False]


def test_loaded_code_is_compared_with_the_files_and_a_later_edit_does_not_reach_it(package):
    assert python(package, "-c", PLANNING).returncode == 0
    done = python(package, "-c", LOADING)
    assert done.stdout == "as loaded\n", done.stderr


def test_a_job_whose_code_changes_while_it_starts_is_refused(package):
    """As a switch of the branch does it: a module is imported after the code's digest was taken, and is another."""
    stage, other = package / "coevolve/pipeline/product_runs.py", package / "coevolve/report/figure3.py"
    edit = (
        "from pathlib import Path\nif Path('switched').exists():\n"
        f"    with Path({str(other)!r}).open('a') as file:\n        file.write('def draw(): ...\\n')\n"
    )
    stage.write_text(stage.read_text().replace("from pathlib import Path\n", edit, 1))
    assert python(package, "-c", PLANNING).returncode == 0
    (package / "switched").touch()
    for path in files_of(Plan(load_suite("smoke")).products["figure3"].inputs):
        jsonl.write(package / path, [])
    done = python(package, "-m", "coevolve", "job", "job.json")
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert "stage `figure3`: its code changed while the job started; run the same" in done.stderr
    assert not (package / "out").exists()


def git(package, *arguments):
    name = ("-c", "user.name=a test", "-c", "user.email=test@example.org")
    subprocess.run(["git", *name, *arguments], cwd=package, check=True, capture_output=True)


def state(package, **environment):
    script = "from coevolve.storage import origin; print(origin.repository())"
    done = python(package, "-c", script, GIT_CEILING_DIRECTORIES=str(package.parent), **environment)
    return eval(done.stdout)


def test_a_state_that_git_does_not_know_is_unknown_and_not_clean(package):
    assert state(package) == ("", None)
    git(package, "init")
    assert state(package) == ("", None), "no commit yet"
    git(package, "add", "coevolve")
    git(package, "commit", "-m", "all")
    commit, dirty = state(package)
    assert len(commit) == 40 and dirty is False
    assert state(package, GIT_TEST_ASSUME_DIFFERENT_OWNER="1") == ("", None), "git refuses the folder's owner"
    assert state(package, PATH="/nowhere") == ("", None), "git is not installed"
    (package / "coevolve/seeds.py").write_text("")
    assert state(package) == (commit, True)
    (package / ".git/index").write_text("damaged")
    assert state(package) == (commit, None)
