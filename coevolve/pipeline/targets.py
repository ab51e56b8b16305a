"""The named targets of a suite: every environment, method, table, figure and ablation."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from coevolve.config.derived.methods import supports
from coevolve.pipeline.plan import Plan
from coevolve.pipeline.registry import STAGES
from coevolve.pipeline.rules.page import exported


@dataclass(frozen=True)
class Target:
    """A name for some files, what they are in one line, and the group of targets that it belongs to."""

    group: str
    name: str
    text: str
    files: tuple[str, ...]


#: The groups, in their order. Those of the last are listed by environment alone.
TABLES, ABLATIONS, ENVIRONMENTS, METHODS = "Tables and figures", "Ablations", "Environments", "Methods"
ALONE = "One method on one environment"


def targets(plan: Plan) -> Iterator[Target]:
    """All named parts of a suite; a product has the name of its stage, an environment or method alone has a prefix."""
    suite = plan.suite
    methods = [method for method in suite.recipes if supports(suite, method)]
    for name in exported(suite):
        yield Target(TABLES, name, STAGES[name].help, tuple(plan.files(name, {})))
    for env, section in suite.envs.items():
        yield Target(
            ENVIRONMENTS, f"env_{env}", f"all methods on {section.label}", _evaluated(plan, suite.methods, [env])
        )
    for method in methods:
        text = f"{suite.recipes[method].label} on all environments"
        yield Target(METHODS, f"method_{method}", text, _evaluated(plan, [method], list(suite.envs)))
    for env, method in product(suite.envs, methods):
        text = f"{suite.recipes[method].label} on {suite.envs[env].label}"
        yield Target(ALONE, f"{env}_{method}", text, _evaluated(plan, [method], [env]))
    for name, ablation in suite.ablations.items():
        if all(supports(suite, method) for method in ablation.methods):
            text = f"{ablation.label} ({ablation.source})"
            yield Target(ABLATIONS, f"ablation_{name}", text, tuple(plan.tables(name)))


def _evaluated(plan: Plan, methods: list[str], envs: list[str]) -> tuple[str, ...]:
    """The evaluation records of the methods on the environments."""
    return tuple(sorted({path for m in methods for (_, env, _, _), path in plan.evaluations(m).items() if env in envs}))
