"""The named targets of a suite: every environment, method, table, figure and ablation."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product

from coevolve.config.suite import supports
from coevolve.pipeline.plan import Plan


@dataclass(frozen=True)
class Target:
    """A name for some files, what they are in one line, and the group of targets that it belongs to."""

    group: str
    name: str
    text: str
    files: Callable[[], Sequence[str]]


#: The groups, in their order. Those of the last are listed by environment alone.
TABLES, ABLATIONS, ENVIRONMENTS, METHODS = "Tables and figures", "Ablations", "Environments", "Methods"
ALONE = "One method on one environment"


def targets(plan: Plan) -> Iterator[Target]:
    """All named parts of a suite; a product has the name of its stage, an environment or method alone has a prefix."""
    suite = plan.suite
    methods = [method for method in suite.recipes if supports(suite, method)]
    for name, job in plan.products.items():
        yield Target(TABLES, name, job.stage.help, partial(list, job.files))
    for env, section in suite.envs.items():
        of_env = partial(_evaluated, plan, suite.methods, [env])
        yield Target(ENVIRONMENTS, f"env_{env}", f"all methods on {section.label}", of_env)
    for method in methods:
        text = f"{suite.recipes[method].label} on all environments"
        yield Target(METHODS, f"method_{method}", text, partial(_evaluated, plan, [method], list(suite.envs)))
    for env, method in product(suite.envs, methods):
        text = f"{suite.recipes[method].label} on {suite.envs[env].label}"
        yield Target(ALONE, f"{env}_{method}", text, partial(_evaluated, plan, [method], [env]))
    for name, ablation in suite.ablations.items():
        if all(supports(suite, method) for method in ablation.methods):
            text = f"{ablation.label} ({ablation.source})"
            yield Target(ABLATIONS, f"ablation_{name}", text, partial(_table, plan, name))


def _table(plan: Plan, ablation: str) -> list[str]:
    return plan.ablation(ablation).files


def _evaluated(plan: Plan, methods: list[str], envs: list[str]) -> list[str]:
    """The evaluation records of the methods on the environments, with all models."""
    return sorted({file.path for file in plan.records(methods, every_model=True) if file.env in envs})
