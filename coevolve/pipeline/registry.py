"""The stages by name: every module of `coevolve.pipeline.stages` is one, and every line of `products.py`."""

import importlib
import pkgutil

from coevolve.pipeline import stages
from coevolve.pipeline.products import ABLATION, PRODUCTS, TASK_GROWTH
from coevolve.pipeline.stage import Stage

STAGES: dict[str, Stage] = {
    name: importlib.import_module(f"{stages.__name__}.{name}").STAGE
    for _, name, is_package in pkgutil.iter_modules(stages.__path__)
    if not is_package
} | {each.name: each for each in (*PRODUCTS, ABLATION, TASK_GROWTH)}
#: The stages of what a full run ends with.
ENDS: list[str] = [*(each.name for each in PRODUCTS), "page"]
#: The stages whose inputs alone decide their files, without a policy or an environment: `coevolve reverify` makes them
#: again. The costs also have Slurm's accounting.
REMADE = ["pairs", "select", "ablation", *(name for name in ENDS if name != "costs")]
