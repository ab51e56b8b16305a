"""Edits each function of derived behaviour in the copy of the kit in the current folder.

Prints the stages whose code digest changes, by function, as JSON.
"""

import ast
import json
import sys
from pathlib import Path

from coevolve.dag.rules import STAGES
from coevolve.storage import code_digest


def digests() -> dict[str, str]:
    for cached in (code_digest.code_digest, code_digest._module, code_digest._source):
        cached.cache_clear()
    return {name: code_digest.code_digest(stage.module) for name, stage in STAGES.items()}


before, reached = digests(), {}
for path in sorted(Path("coevolve/config/derived").glob("*.py")):
    text = path.read_text()
    for function in (node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)):
        lines, last = text.splitlines(keepends=True), function.body[-1]
        lines.insert(last.lineno - 1, " " * last.col_offset + "0\n")
        path.write_text("".join(lines))
        after = digests()
        reached[f"coevolve.config.derived.{path.stem}.{function.name}"] = [n for n in STAGES if after[n] != before[n]]
    path.write_text(text)
json.dump(reached, sys.stdout)
