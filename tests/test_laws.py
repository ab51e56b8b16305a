"""The house rules that a machine can check."""

import ast
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from mutants.run import load as load_mutants
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
MUTANTS = load_mutants()
MODULES = sorted((ROOT / "coevolve").rglob("*.py"))


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_global_randomness_and_no_print_outside_the_command_line(path):
    text = path.read_text()
    assert not re.search(r"np\.random\.(seed|rand|randint|choice|shuffle)\b|\brandom\.(seed|random|shuffle)\b", text)
    if path.parent.name != "cli":
        assert not any(
            isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
            for node in ast.walk(ast.parse(text))
        )


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_possessive_quantifiers(path):
    """Python 3.11.2, which is Debian 12's, matches them wrongly and says nothing."""
    strings = [node.value for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Constant)]
    patterns = [text for text in strings if isinstance(text, str) and re.search(r"[\])}\w.][*+?}]\+|\(\?>", text)]
    assert patterns == []


def test_torch_stays_in_its_rooms():
    """Also what keeps a dry run of hundreds of jobs interactive: the Snakefile imports no torch."""
    rooms = (
        "coevolve/train/",
        "coevolve/policies/",
        "coevolve/chat/chat_template.py",
        "coevolve/pipeline/stages/",
        "coevolve/pipeline/launch.py",
        "coevolve/pipeline/stages/parts/playing.py",
        "coevolve/pipeline/stages/parts/training.py",
    )
    outside = [
        str(path.relative_to(ROOT))
        for path in MODULES
        if re.search(r"^\s*(import|from) torch\b", path.read_text(), re.MULTILINE)
        and not str(path.relative_to(ROOT)).startswith(rooms)
    ]
    assert outside == []
    code = "import sys, coevolve.pipeline.plan, coevolve.cli; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


#: Objects whose keys are data: a job's names, config and seeds, files by name, a regular expression's groups.
KEYED = ("wildcards", "config", "config['dpo']", "seeds", "files", "match", "Literal")


@pytest.mark.parametrize("path", sorted((ROOT / "coevolve/report").rglob("*.py")), ids=lambda path: path.name)
def test_reports_read_named_fields(path):
    """What a stage notes, counts or judges is a type: a key that is misspelt is an error, not an empty value."""
    read = set()
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.Subscript(value=of, slice=ast.Constant(value=str())):
                read.add(ast.unparse(of))
            case ast.Call(func=ast.Attribute(value=of, attr="get"), args=[ast.Constant(value=str()), *_]):
                read.add(ast.unparse(of))
    assert {name for name in read if name.rpartition(".")[2] not in KEYED} == set()


def test_ci_runs_the_commands_of_the_readme():
    readme, ci = (ROOT / "README.md").read_text(), (ROOT / ".ci/run").read_text()
    (block,) = re.findall(r"^```\n(make smoke\n.*?)^```", readme, re.MULTILINE | re.DOTALL)
    assert block.splitlines() == ["make smoke", "make test"]
    assert re.findall(r"^part (make .*)$", ci, re.MULTILINE) == [*block.splitlines(), "make lint"]
    assert "set -euo pipefail" in ci


def test_make_lint_runs_every_static_check():
    done = subprocess.run(["make", "--dry-run", "lint"], cwd=ROOT, capture_output=True, text=True, check=True)
    for check in ("ruff check", "ruff format --check", "mypy", "lint-imports"):
        assert re.search(rf"(^|&& ){check}( &&|$)", done.stdout, re.MULTILINE), check


def test_every_locked_version_is_in_its_range():
    """`pyproject.toml` has ranges, whose lower bound was tested; `requirements.lock` pins."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    requirements = [
        Requirement(text) for text in project["dependencies"] + [one for extra in extras.values() for one in extra]
    ]
    for lock in ("requirements.lock", "containers/sample/requirements.lock"):
        lines = [line.split("==") for line in (ROOT / lock).read_text().split()]
        locked = {canonicalize_name(name): version for name, version in lines}
        outside = {
            str(requirement): version
            for requirement in requirements
            if (version := locked.get(canonicalize_name(requirement.name))) and version not in requirement.specifier
        }
        assert outside == {}, lock
    for requirement in map(Requirement, project["dependencies"]):
        assert not [clause for clause in requirement.specifier if clause.operator == "=="], requirement


def readme_commands(start: str) -> list[str]:
    return re.findall(rf"^{start}.*$", (ROOT / "README.md").read_text(), re.MULTILINE)


def test_make_targets_in_the_readme_exist():
    makefile = (ROOT / "Makefile").read_text()
    for command in readme_commands("make "):
        assert re.search(rf"^{command.split()[1]}:", makefile, re.MULTILINE), command


def readme_questions() -> list[str]:
    """The commands of the README's table of questions that need no results and no checkpoint."""
    commands = re.findall(r"^\| .*\? \| `(coevolve [^`]+)`", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert len(commands) >= 10
    return [
        command + " --limit 20" * ("replay" in command)
        for command in commands
        if "smoke" not in command and "CHECKPOINT" not in command
    ]


@pytest.mark.parametrize("command", readme_questions())
def test_questions_in_the_readme_are_answered(command):
    done = run_here("-m", "coevolve", *shlex.split(command)[1:])
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


@pytest.mark.parametrize("command", readme_commands("snakemake "))
def test_snakemake_commands_in_the_readme_are_planned(command):
    arguments = shlex.split(command)[1:]
    done = run_here("-m", "snakemake", "--dry-run", *arguments)
    assert done.returncode == 0, done.stderr
    assert "Job stats" in done.stdout + done.stderr or "Nothing to be done" in done.stdout + done.stderr


def run_here(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True, check=False)


def test_no_test_imports_a_test_or_a_conftest():
    """What two tests share is in a helper module: an imported test is collected twice, and a `conftest` by any name."""
    imports = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in (ROOT / "tests").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in (getattr(node, "module", None) or "", *(alias.name for alias in node.names))
        if re.search(r"(^|\.)conftest$", name) or re.search(r"\.test_\w+$", f".{getattr(node, 'module', '')}")
    ]
    assert imports == []


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: f"{mutant.file}: {mutant.what}")
def test_the_old_text_of_a_mutant_is_found_once_and_its_tests_exist(root, mutant):
    """After an edit of that line change its entry in tests/mutants/mutants.yaml: the same wrong edit of the new one."""
    assert mutant.occurrences(root) == 1 and mutant.new != mutant.old
    for test in mutant.tests:
        file, _, name = test.partition("::")
        assert f"def {name}(" in (root / file).read_text() if name else (root / file).is_file(), test
