"""What is not in the code digest: declarations of the configuration, whose values are in the config digest."""

import ast

import pytest

from coevolve.pipeline.registry import STAGES
from coevolve.storage import code_digest

#: Modules that read and check configurations, or say what a job may read: their values reach jobs through digests.
READING = {"yaml_files", "validation", "loading", "kinds", "restriction", "recorded"}
DECLARATIONS = ("names", "sections", "suite", "machine", "environments", "baselines")
#: The section that stands with the code that it configures.
SECTION = "coevolve.agent_data.config"


def test_the_modules_of_the_config_are_of_three_kinds(root):
    modules = {path.stem for path in (root / "coevolve/config").glob("*.py")} - {"__init__"}
    assert modules == READING | {*DECLARATIONS}


def is_validator(function: ast.FunctionDef) -> bool:
    return any("validator" in ast.unparse(decorator) for decorator in function.decorator_list)


def is_constant(function: ast.FunctionDef) -> bool:
    """Whether a function only returns a literal: the default of a property that environments override."""
    statements = [node for node in function.body if not isinstance(node, ast.Expr)]
    match statements:
        case [ast.Return(value=ast.Constant() | ast.Dict(keys=[]))]:
            return True
    return False


def test_no_stage_reaches_the_section_of_the_second_paper():
    assert not [name for name, stage in STAGES.items() if SECTION in code_digest.reachable(stage.module)]


@pytest.mark.parametrize("module", [*(f"coevolve.config.{name}" for name in DECLARATIONS), SECTION])
def test_a_declaration_has_no_behaviour(root, module):
    """A function is a validator, or a private one that only validators call."""
    tree = ast.parse((root / f"{module.replace('.', '/')}.py").read_text())
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    validators = [function for function in functions if is_validator(function)]
    called = {
        node.attr if isinstance(node, ast.Attribute) else node.id
        for validator in validators
        for node in ast.walk(validator)
        if isinstance(node, ast.Attribute | ast.Name)
    }
    behaviour = {
        function.name
        for function in functions
        if function not in validators
        and not is_constant(function)
        and not (function.name.startswith("_") and function.name in called)
    }
    assert behaviour == set()
    outside = {
        node.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Name) and node.id.startswith("_") and isinstance(node.ctx, ast.Load)
    }
    assert outside <= called | {name for name in outside if name.isupper() or name[1:].isupper()}
