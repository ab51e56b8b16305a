"""Names are the field's: words of a private dialect do not come back as identifiers."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MODULES = sorted(path.relative_to(ROOT) for path in (ROOT / "coevolve").rglob("*.py"))
#: Each as a whole part of a name: `found` retires `found`, `_found` and `found_pairs`, not `Foundation`.
RETIRED = {
    "aside", "asked", "asking", "beside", "desk", "found", "golds", "guides", "habits", "invented", "kinship", "mine",
    "nowhere", "oddities", "one", "own", "patient", "patiently", "place", "placed", "places", "reckon", "reckoned",
    "refit", "said", "says", "seats", "shelf", "shopper", "somebody", "spoil", "tell", "tells", "theirs", "told",
    "turnstile", "watcher", "worlds", "worth", "worths",
}  # fmt: skip
ALLOWED = {"not_found"}
#: Keys of files keep their names: `configs/claims.yaml`, `verdicts.json`, and the output of `coevolve why --json`.
FILE_KEYS = {
    "report/claims.py": {"place"},
    "report/verdicts.py": {"place", "says"},
    "report/why.py": {"place", "said"},
}


def names_in(tree: ast.Module) -> set[str]:
    """Every name that the module gives: of classes, functions, arguments, variables and attributes."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.arg):
            names.add(node.arg)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            names.add(node.attr)
        elif isinstance(node, ast.alias) and node.asname:
            names.add(node.asname)
    return names


def retired(name: str) -> bool:
    parts = {part.lower() for part in re.findall(r"[A-Z]?[a-z0-9]+|[A-Z]+", name)}
    return name not in ALLOWED and bool(parts & RETIRED)


@pytest.mark.parametrize("path", MODULES, ids=str)
def test_retired_words_are_in_no_name(path):
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    keys = FILE_KEYS.get(path.relative_to("coevolve").as_posix(), set())
    assert sorted(name for name in names_in(tree) - keys if retired(name)) == []
    assert not retired(path.stem)


def test_public_class_names_are_unique():
    classes: dict[str, list[str]] = {}
    for path in MODULES:
        for node in ast.parse((ROOT / path).read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                classes.setdefault(node.name, []).append(str(path))
    assert {name: paths for name, paths in classes.items() if len(paths) > 1} == {}
