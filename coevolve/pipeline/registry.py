"""The stages by name: every module of `coevolve.pipeline.stages` and `coevolve.agent_data.stages` is one."""

import importlib
import pkgutil

from coevolve.agent_data import stages as second_paper
from coevolve.pipeline import stages
from coevolve.pipeline.products import PRODUCTS
from coevolve.pipeline.stage import Stage

STAGES: dict[str, Stage] = {
    name: importlib.import_module(f"{package.__name__}.{name}").STAGE
    for package in (stages, second_paper)
    for _, name, is_package in pkgutil.iter_modules(package.__path__)
    if not is_package
}
#: The stages of what a full run ends with.
ENDS: list[str] = [*(module.STAGE.name for module in PRODUCTS), "page"]
#: The stages whose inputs alone decide their files, without a policy or an environment: `coevolve reverify` makes them
#: again. The costs also have Slurm's accounting.
REMADE = ["pairs", "select", "ablation", *(name for name in ENDS if name != "costs")]
