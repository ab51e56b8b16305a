"""The stages by name: every module of both papers' `stages` is one, and every line of `products.py`."""

import importlib
import pkgutil

from coevolve.agent_data import stages as second_paper
from coevolve.pipeline import stages
from coevolve.pipeline.products import ABLATION, PRODUCTS, TASK_GROWTH
from coevolve.pipeline.stage import Stage

STAGES: dict[str, Stage] = {
    name: importlib.import_module(f"{package.__name__}.{name}").STAGE
    for package in (stages, second_paper)
    for _, name, is_package in pkgutil.iter_modules(package.__path__)
    if not is_package
} | {each.name: each for each in (*PRODUCTS, ABLATION, TASK_GROWTH)}
#: The stages of what a full run ends with.
ENDS: list[str] = [*(each.name for each in PRODUCTS), "page"]
#: The stages of an iteration whose inputs alone decide their files, without a policy or an environment: `coevolve
#: reverify` makes them again.
REMADE = ("pairs", "select")
