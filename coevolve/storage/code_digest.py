"""The digest of the code that a job can reach: definitions of the package, by the names that they mention.

A definition is a function, class or assignment of a module. One that a module imports is known by its name there; a
module that is mentioned without one of its names is reached as a whole. Left out is what changes no result: comments,
docstrings, texts of a `UserError` and of the log, and fields and validators of a configuration section, whose values
are in the config digest.
"""

import ast
import contextlib
import functools
import hashlib
import importlib.util
import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from coevolve import shipped
from coevolve.storage import files

PACKAGE = Path(__file__).parents[1]
#: The base of configuration sections, what the fields and validators of a class `C` are called (`C (values)`), and what
#: a module does beside defining names, which whatever is reached in it reaches.
SECTION, VALUES, BODY = "coevolve.settings.section.Strict", " (values)", "(body)"


class Definition(NamedTuple):
    """Its hash ("" of an import), the full names that it mentions, its bases, and the shipped data that it names."""

    hash: str
    names: list[str]
    bases: list[str]
    data: list[str]


@functools.cache
def code_digest(*starts: str) -> str:
    """First 16 hex digits of the sha256 over the definitions that `starts` reach, and the shipped data they name.

    README.md and LICENSE of the data (`shipped.DATA / NAME`) are left out.
    """
    reached = reachable(*starts)
    lines = [f"{name}={reached[name].hash}" for name in sorted(reached)]
    folders = sorted({folder for each in reached.values() for folder in each.data})
    lines += [f"{each}={files.sha256(shipped.DATA / each, without=('README.md', 'LICENSE'))}" for each in folders]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


def reachable(*starts: str) -> dict[str, Definition]:
    """The definitions that modules or definitions reach, with themselves, by full name.

    Of an environment in another package, they are those of that package and of this one.
    """
    packages = {PACKAGE.name, *(start.partition(".")[0] for start in starts)}
    reached: dict[str, Definition] = {}
    queue, seen = [*starts], set[str]()
    while queue:
        if (name := queue.pop()) in seen or name.partition(".")[0] not in packages:
            continue
        seen.add(name)
        module, wanted = split(name)
        known = _definitions(module) if module else {}
        for each in [wanted, BODY] if wanted else [each for each in known if known[each].hash]:
            if each in known and not (each.endswith(VALUES) and is_section(f"{module}.{each.removesuffix(VALUES)}")):
                reached |= {f"{module}.{each}": known[each]} if known[each].hash else {}
                queue += [*known[each].names, *([f"{module}.{each}{VALUES}"] if known[each].bases else [])]
    return reached


def forget() -> None:
    """Read the source files anew when the next digest is asked for."""
    for known in (code_digest, split, sources, is_section, _definitions):
        known.cache_clear()


@functools.cache
def split(name: str) -> tuple[str, str]:
    """The module that a full name begins with, and the first name behind it; "" for none."""
    parts = name.split(".")
    known = sources(parts[0])
    end = next((end for end in range(len(parts), 0, -1) if ".".join(parts[:end]) in known), 0)
    return ".".join(parts[:end]), "".join(parts[end : end + 1])


@functools.cache
def sources(package: str) -> dict[str, Path]:
    """The source files of a package's modules by full name, of a namespace package in several folders.

    Nothing is imported.
    """
    folders: Iterable[str] = [str(PACKAGE)]
    if package != PACKAGE.name:
        spec = importlib.util.find_spec(package)
        folders = (spec and spec.submodule_search_locations) or []
    listed: dict[str, Path] = {}
    for root, folder, names in ((each, folder, names) for each in folders for folder, _, names in os.walk(each)):
        parts = Path(folder).relative_to(root).parts
        for name in names:
            if name.endswith(".py"):
                module = ".".join([package, *parts, name.removesuffix(".py")]).removesuffix(".__init__")
                listed.setdefault(module, Path(folder, name))
    return listed


@functools.cache
def is_section(name: str) -> bool:
    """Whether a class is a section of the configuration."""
    module, wanted = split(name)
    known = _definitions(module).get(wanted) if module and name != SECTION else None
    bases = (known.bases if known.hash else known.names) if known else []
    packages = {PACKAGE.name, name.partition(".")[0]}
    return name == SECTION or any(is_section(base) for base in bases if base.partition(".")[0] in packages)


@functools.cache
def _definitions(module: str) -> dict[str, Definition]:
    """The definitions and imports of a module, from the file beside its bytecode if that is of the same source.

    To parse all modules takes seconds, more than many jobs need for their work.
    """
    path = sources(module.partition(".")[0])[module]
    code = path.read_bytes()
    kept = Path(importlib.util.cache_from_source(str(path))).with_suffix(".digest")
    key = hashlib.sha256(code + Path(__file__).read_bytes() + sys.version.encode()).hexdigest()
    with contextlib.suppress(OSError, ValueError):
        written, facts = json.loads(kept.read_bytes())
        if written == key:
            return {name: Definition(*each) for name, each in facts.items()}
    named = definitions(module, code, is_package=path.name == "__init__.py")
    if not sys.dont_write_bytecode:
        with contextlib.suppress(OSError):  # of a folder that is only read
            kept.parent.mkdir(exist_ok=True)
            temporary = files.temporary_name(kept)
            temporary.write_text(json.dumps([key, named]))
            temporary.replace(kept)
    return named


def definitions(module: str, code: bytes, *, is_package: bool = False) -> dict[str, Definition]:
    """The definitions and imports of a module's source by name; raises `SyntaxError`."""
    tree = ast.parse(code)
    imports = dict(_imports(tree, module if is_package else module.rpartition(".")[0]))
    groups: dict[str, list[ast.AST]] = {}
    for node in tree.body:
        for name in _bound(node):
            groups.setdefault(name, []).append(node)
    imports = {name: target for name, target in imports.items() if name not in groups}
    known = imports | {name: f"{module}.{name}" for name in groups}
    named = {name: Definition("", [target], [], []) for name, target in imports.items()}
    for name, nodes in groups.items():
        classes = [node for node in nodes if isinstance(node, ast.ClassDef)]
        bases = [*_mentioned((base for node in classes for base in node.bases), known)]
        values: list[ast.AST] = []
        for node in classes if bases else ():
            values += filter(is_value, node.body)
            node.body = [each for each in node.body if not is_value(each)]
        named[name] = _definition(nodes, known, bases)
        named |= {name + VALUES: _definition(values, known, [])} if values else {}
    return named


def _definition(nodes: list[ast.AST], known: Mapping[str, str], bases: list[str]) -> Definition:
    inside = [each for node in nodes for each in ast.walk(node)]
    names = sorted({name for name in _mentioned(nodes, known) if name.partition(".")[0] not in sys.stdlib_module_names})
    data = [
        str(node.right.value)
        for node in inside
        if isinstance(node, ast.BinOp)
        and isinstance(node.right, ast.Constant)
        and _chain(node.left) == ["shipped", "DATA"]
    ]
    trees = "".join(ast.dump(_Reduced().visit(node)) for node in nodes)
    return Definition(hashlib.sha256(trees.encode()).hexdigest(), names, bases, data)


class _Reduced(ast.NodeTransformer):
    """Takes out of a syntax tree what changes no result."""

    def visit_Expr(self, node: ast.Expr) -> ast.AST | None:
        """Without docstrings."""
        return None if isinstance(node.value, ast.Constant) else self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> ast.AST | None:
        """Without `problem = f"..."`, a part of an error's text."""
        is_text = isinstance(node.value, ast.JoinedStr) and _chain(node.targets[0]) == ["problem"]
        return None if is_text else self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        """Without the text of an error for users, and of a line in the log."""
        chain = _chain(node.func)
        if chain == ["UserError"] or (len(chain) == 2 and chain[0] == "log"):
            node.args, node.keywords = [], []
        return self.generic_visit(node)


def is_value(node: ast.AST) -> bool:
    """Whether a statement of a class is a field, or checks fields."""
    decorators = " ".join(map(ast.unparse, getattr(node, "decorator_list", [])))
    return isinstance(node, ast.AnnAssign) or "_validator(" in decorators


def _bound(node: ast.stmt) -> list[str]:
    """The names that a statement of a module defines; `BODY` for none. An import or a text has no code."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return [node.name]
    if isinstance(node, ast.Assign | ast.AnnAssign):
        names = [each for each in ast.walk(node) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)]
        return [each.id for each in names] or [BODY]
    is_typing = isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    return [] if is_typing or is_text or isinstance(node, ast.Import | ast.ImportFrom) else [BODY]


def _imports(tree: ast.Module, package: str) -> Iterator[tuple[str, str]]:
    """The names that imports bind, also inside functions, and what they stand for."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            origin = importlib.util.resolve_name("." * node.level + (node.module or ""), package)
            yield from ((alias.asname or alias.name, f"{origin}.{alias.name}") for alias in node.names)
        for alias in node.names if isinstance(node, ast.Import) else ():
            top = alias.name.partition(".")[0]
            yield (alias.asname, alias.name) if alias.asname else (top, top)


def _mentioned(nodes: Iterable[ast.AST], known: Mapping[str, str]) -> Iterator[str]:
    """The full names that syntax trees mention, with the attributes behind them."""
    for node in nodes:
        if (chain := _chain(node)) and chain[0] in known:
            yield ".".join([known[chain[0]], *chain[1:]])
        elif not chain:
            yield from _mentioned(ast.iter_child_nodes(node), known)


def _chain(node: ast.AST) -> list[str]:
    """The parts of `a.b.c`; none of any other expression."""
    if isinstance(node, ast.Attribute):
        return [*inner, node.attr] if (inner := _chain(node.value)) else []
    return [node.id] if isinstance(node, ast.Name) else []
