"""The stages by name: every module of `coevolve.pipeline.stages` is one."""

import importlib
import pkgutil

from coevolve.pipeline import stages
from coevolve.pipeline.products import PRODUCTS
from coevolve.pipeline.stage import Stage

STAGES: dict[str, Stage] = {
    name: importlib.import_module(f"{stages.__name__}.{name}").STAGE
    for _, name, is_package in pkgutil.iter_modules(stages.__path__)
    if not is_package
}
#: The stages of what a full run ends with.
ENDS: list[str] = [*(module.STAGE.name for module in PRODUCTS), "page"]
#: The stages of an iteration whose inputs alone decide their files, without a policy or an environment: `coevolve
#: reverify` makes them again.
REMADE = ("pairs", "select")
