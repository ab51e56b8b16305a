"""The digest of the code that a job can reach: its modules and all package modules that they import.

Declarations of the configuration (`coevolve.config`) are not followed: their values are in the config digest. Behaviour
that follows from the values (`coevolve.config.derived`) is followed. What only the plan reads is left out: the inputs,
the cost and the declaration in a stage's module, and the modules that these need.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import hashlib
import importlib
import importlib.util
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from coevolve import shipped
from coevolve.storage import files
from coevolve.storage.origin import git

PACKAGE = Path(__file__).parents[1]
#: The package whose values are in the config digest, and in it that of the behaviour that follows from them.
DECLARATIONS, DERIVED = "coevolve.config", "coevolve.config.derived"
#: The packages of the stages, what only the plan reads in their modules, and the modules that only the plan needs.
STAGES, PLANNING = ("coevolve.pipeline.stages.", "coevolve.agent_data.stages."), ("inputs", "cost", "STAGE")
PLANNED = {f"coevolve.pipeline.{name}" for name in ("stage", "work")}
#: Nodes of a syntax tree that may begin with a docstring.
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


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
        if name not in visited | PLANNED and not _is_declaration(name):
            visited.add(name)
            queue += [*_module(name).imports, *_parents(name)]
    return visited


def _is_declaration(name: str) -> bool:
    """Whether a module declares the configuration, or reads and checks it."""
    return name.startswith(f"{DECLARATIONS}.") and not f"{name}.".startswith(f"{DERIVED}.")


def is_current(*modules: str) -> bool:
    """Whether the source files still hold the code that `code_digest` of the modules read."""
    return all(map(_is_unchanged, reachable(*modules)))


@functools.cache
def edited_since(commit: str) -> frozenset[str]:
    """Names of the package modules whose code, by its digest, is not a commit's; empty where git does not know it."""
    listed = (git("diff", "--name-only", "--relative", commit, "--", ".") if commit else None) or ""
    changed = (path for path in listed.splitlines() if path.endswith(".py") and (PACKAGE / path).exists())
    return frozenset(_name(path) for path in changed if not _is_as_in(commit, path))


def _is_as_in(commit: str, path: str) -> bool:
    """Whether the code of a file in the package is that of a commit."""
    before = git("show", f"{commit}:./{path}")
    return before is not None and _hash(_parse(_name(path), before.encode())) == _module(_name(path)).hash


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


@functools.cache
def _source(name: str) -> bytes:
    return _path(name).read_bytes()


def _parse(name: str, source: bytes) -> ast.Module:
    """Syntax tree of a module's source without its docstrings, and without what only the plan reads."""
    tree = ast.parse(source)
    if name.startswith(STAGES):
        tree.body = [node for node in tree.body if not {*_defined(node)} & {*PLANNING}]
    for node in ast.walk(tree):
        if isinstance(node, _DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            node.body = node.body[1:]
    return tree


def _defined(node: ast.stmt) -> Iterator[str]:
    """The names that a statement of a module defines."""
    if isinstance(node, ast.FunctionDef):
        yield node.name
    if isinstance(node, ast.Assign):
        yield from (target.id for target in node.targets if isinstance(target, ast.Name))


def _hash(tree: ast.Module) -> str:
    return hashlib.sha256(ast.dump(tree).encode()).hexdigest()


class _Module(NamedTuple):
    """Hash of a module's syntax tree, the package modules that it may import, the shipped data that it names."""

    hash: str
    imports: list[str]
    data: list[str]


@functools.cache
def _module(name: str) -> _Module:
    """What a module's source says, from the file beside its bytecode if that is of the same source.

    To parse all modules takes four seconds, more than many jobs need for their work.
    """
    kept = Path(importlib.util.cache_from_source(str(_path(name)))).with_suffix(".digest")
    key = hashlib.sha256(_source(name) + _reader()).hexdigest()
    with contextlib.suppress(OSError, ValueError):
        written, *facts = json.loads(kept.read_bytes())
        if written == key:
            return _existing(_Module(*facts))
    module = _parsed(name)
    if not sys.dont_write_bytecode:
        with contextlib.suppress(OSError):  # of a folder that is only read
            kept.parent.mkdir(exist_ok=True)
            temporary = files.temporary_name(kept)
            temporary.write_text(json.dumps([key, *module]))
            temporary.replace(kept)
    return _existing(module)


def _parsed(name: str) -> _Module:
    tree = _parse(name, _source(name))
    imports = dict.fromkeys(target for node in _executed(tree) for target in _targets(node, name))
    return _Module(_hash(tree), [*imports], [folder for node in ast.walk(tree) if (folder := _data_folder(node))])


def _existing(module: _Module) -> _Module:
    """The module with the imports that have a file: of `from a import b`, `a.b` may be none."""
    return module._replace(imports=[target for target in module.imports if _path(target).exists()])


@functools.cache
def _reader() -> bytes:
    """What the kept facts depend on beside a module's source: how this module reads it, and Python's syntax trees."""
    return Path(__file__).read_bytes() + sys.version.encode()


def _executed(tree: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a syntax tree without what only a type checker reads (`if TYPE_CHECKING:`)."""
    for node in ast.iter_child_nodes(tree):
        if not (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"):
            yield node
            yield from _executed(node)


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
        return now == _source(name) or _hash(_parse(name, now)) == _module(name).hash
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
    package = importer if _path(importer).name == "__init__.py" else importer.rpartition(".")[0]
    return importlib.util.resolve_name(f"{'.' * node.level}{node.module or ''}", package)


def _top(name: str) -> str:
    return name.partition(".")[0]


@functools.cache
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
