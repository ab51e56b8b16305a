"""Parts of a suite that can be asked for by name: every environment, method, table, figure and ablation."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from coevolve.workflow.plan import Plan
from coevolve.workflow.stage_table import STAGES


@dataclass(frozen=True)
class Target:
    """A name for some files, and what they are in one line."""

    name: str
    text: str
    files: tuple[str, ...]


def targets(plan: Plan) -> Iterator[Target]:
    """All named parts of a suite; names of methods and environments alone carry a prefix, as stages have such names."""
    suite = plan.suite
    methods = [method for method in suite.recipes if suite.supports(method)]
    yield Target("table1", "Table 1 beside the paper's cells", _those(plan, "table1"))
    yield Target("figure2", "Figure 2: failures, and what shared failures earn", _those(plan, "figure2"))
    yield Target("figure3", "Figure 3: average reward per iteration", _those(plan, "figure3"))
    yield Target("analysis", "what agents did while they explored; compute", _those(plan, "analysis"))
    yield Target("verdicts", "the verdict on each claim of the paper", _those(plan, "verdicts"))
    yield Target("costs", "predicted and measured hours", _those(plan, "costs"))
    for env, section in suite.envs.items():
        yield Target(f"env_{env}", f"all methods on {section.label}", _evaluated(plan, suite.methods, [env]))
    for method in methods:
        text = f"{suite.recipes[method].label} on all environments"
        yield Target(f"method_{method}", text, _evaluated(plan, [method], list(suite.envs)))
    for env, method in product(suite.envs, methods):
        text = f"{suite.recipes[method].label} on {suite.envs[env].label}"
        yield Target(f"{env}_{method}", text, _evaluated(plan, [method], [env]))
    possible = {name: own for name, own in suite.ablations.items() if all(map(suite.supports, own.methods))}
    for name, ablation in possible.items():
        files = tuple(f"{plan.home}/ablations/{name}/{file}" for file in STAGES["ablation"].files)
        yield Target(f"ablation_{name}", f"{ablation.label} ({ablation.source})", files)


def _those(plan: Plan, stem: str) -> tuple[str, ...]:
    return tuple(path for path in plan.targets() if path.rpartition("/")[2].startswith(f"{stem}."))


def _evaluated(plan: Plan, methods: list[str], envs: list[str]) -> tuple[str, ...]:
    found = {path for m in methods for (_, env, _, _), path in plan.evaluations(m).items() if env in envs}
    return tuple(sorted(found))
