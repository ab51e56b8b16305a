"""Small wrong edits of Python code, each as a replaced range of its text."""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise, permutations

PAIRS = ("< <=", "> >=", "== !=", "+ -", "* /", "and or", "| &")
SWAPPED = {first: second for pair in PAIRS for first, second in permutations(pair.split())}
SWAPPED |= {"is": "is not", "is not": "is", "in": "not in", "not in": "in", "//": "/", "%": "*"}
#: Arguments that are assertions, like `assert`, or texts for a person.
UNTOUCHED = ("strict", "frozen", "help", "metavar", "description")
OPERATOR = re.compile(r"not\s+in\b|is\s+not\b|\b(?:is|in|and|or)\b|//|[<>=!]=|[<>+\-*/%|&]")


@dataclass(frozen=True)
class Edit:
    """`text` in place of the characters from `start` to `end`; `line` counts from 1."""

    line: int
    start: int
    end: int
    text: str
    operator: str

    def apply(self, source: str) -> str:
        return source[: self.start] + self.text + source[self.end :]


def edits(source: str) -> list[Edit]:
    """All edits of a module's code; docstrings, annotations, imports and texts other than keys are left alone."""
    return list(_Finder(source).edits())


class _Finder:
    def __init__(self, source: str) -> None:
        self.source = source
        self.lines = [0]
        for line in source.splitlines(keepends=True):
            self.lines.append(self.lines[-1] + len(line.encode()))

    def edits(self) -> Iterator[Edit]:
        yield from self._below(ast.parse(self.source))

    def _below(self, node: ast.AST) -> Iterator[Edit]:
        if isinstance(node, ast.Import | ast.ImportFrom | ast.Raise | ast.Assert | ast.JoinedStr):
            return
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            return
        if isinstance(node, ast.keyword) and node.arg in UNTOUCHED:
            return
        if finder := getattr(self, f"_{type(node).__name__.lower()}", None):
            yield from finder(node)
        for name, value in ast.iter_fields(node):
            if name not in ("annotation", "returns", "type_params", "format_spec"):
                for child in value if isinstance(value, list) else [value]:
                    if isinstance(child, ast.AST):
                        yield from self._below(child)

    def _offset(self, line: int, column: int) -> int:
        before = self.lines[line - 1] + column
        return before if self.source.isascii() else len(self.source.encode()[:before].decode())

    def _range(self, node: ast.AST) -> tuple[int, int]:
        return self._offset(node.lineno, node.col_offset), self._offset(node.end_lineno, node.end_col_offset)

    def _edit(self, node: ast.AST, start: int, end: int, text: str, operator: str) -> Edit:
        return Edit(node.lineno, start, end, text, operator)

    def _text(self, node: ast.AST) -> str:
        start, end = self._range(node)
        return self.source[start:end]

    def _between(self, left: ast.AST, right: ast.AST, operator: str) -> Iterator[Edit]:
        """The operator between two operands, swapped."""
        start, end = self._range(left)[1], self._range(right)[0]
        if found := OPERATOR.search(self.source, start, end):
            swapped = SWAPPED[" ".join(found[0].split())]
            yield self._edit(left, found.start(), found.end(), swapped, operator)

    def _compare(self, node: ast.Compare) -> Iterator[Edit]:
        for left, right in pairwise([node.left, *node.comparators]):
            yield from self._between(left, right, "comparison")

    def _binop(self, node: ast.BinOp) -> Iterator[Edit]:
        yield from self._between(node.left, node.right, "arithmetic")

    def _boolop(self, node: ast.BoolOp) -> Iterator[Edit]:
        yield from self._between(node.values[0], node.values[1], "and, or")

    def _constant(self, node: ast.Constant) -> Iterator[Edit]:
        if isinstance(node.value, bool):
            yield self._edit(node, *self._range(node), str(not node.value), "constant")
        elif isinstance(node.value, int | float):
            yield self._edit(node, *self._range(node), f"({self._text(node)} + 1)", "constant")

    def _condition(self, node: ast.If | ast.While | ast.IfExp) -> Iterator[Edit]:
        test = node.test
        yield self._edit(test, *self._range(test), f"(not ({self._text(test)}))", "condition negated")
        if not isinstance(node, ast.While):
            for value in ("True", "False"):
                yield self._edit(test, *self._range(test), value, f"condition {value}")

    _if = _while = _ifexp = _condition

    def _comprehension(self, node: ast.comprehension) -> Iterator[Edit]:
        for test in node.ifs:
            yield self._edit(test, *self._range(test), "True", "condition True")

    def _call(self, node: ast.Call) -> Iterator[Edit]:
        if len(node.args) > 1 and not any(isinstance(each, ast.Starred) for each in node.args[:2]):
            first, second = node.args[:2]
            (start, middle), (resumed, end) = self._range(first), self._range(second)
            text = self._text(second) + self.source[middle:resumed] + self._text(first)
            yield self._edit(node.args[0], start, end, text, "arguments swapped")
        for keyword in (each for each in node.keywords if each.arg not in UNTOUCHED):
            start, end = self._range(keyword)
            comma = re.compile(r"\s*,\s*").match(self.source, end)
            yield self._edit(keyword, start, comma.end() if comma else end, "", "argument dropped")

    def _key(self, key: ast.AST | None) -> Iterator[Edit]:
        if isinstance(key, ast.Constant) and isinstance(key.value, str):
            yield self._edit(key, *self._range(key), repr(key.value + "_"), "key")

    def _dict(self, node: ast.Dict) -> Iterator[Edit]:
        for key in node.keys:
            yield from self._key(key)

    def _subscript(self, node: ast.Subscript) -> Iterator[Edit]:
        yield from self._key(node.slice)

    def _deleted(self, node: ast.stmt) -> Iterator[Edit]:
        yield self._edit(node, *self._range(node), "pass", "statement deleted")

    _augassign = _delete = _continue = _break = _deleted

    def _expr(self, node: ast.Expr) -> Iterator[Edit]:
        if not isinstance(node.value, ast.Constant):
            yield from self._deleted(node)

    def _assign(self, node: ast.Assign) -> Iterator[Edit]:
        if isinstance(node.targets[0], ast.Attribute | ast.Subscript):
            yield from self._deleted(node)

    def _return(self, node: ast.Return) -> Iterator[Edit]:
        if node.value is not None and ast.unparse(node.value) != "None":
            yield self._edit(node, *self._range(node), "return None", "returns None")

    def _functiondef(self, node: ast.FunctionDef) -> Iterator[Edit]:
        body = node.body[1:] if ast.get_docstring(node) else node.body
        if len(body) > 1 and not isinstance(body[0], ast.Return):
            start, _ = self._range(body[0])
            yield self._edit(body[0], start, start, "return None\n" + " " * body[0].col_offset, "early return")
