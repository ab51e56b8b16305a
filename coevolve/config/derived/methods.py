"""A suite's settings for one method, agent or model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from coevolve.config.derived.recipes import has_pool
from coevolve.config.kinds import has_module
from coevolve.config.validation import explain
from coevolve.errors import UserError

if TYPE_CHECKING:
    from coevolve.config.suite import Suite


def for_method(suite: Suite, method: str, agent: str | None = None) -> Suite:
    """The suite with a recipe's `settings`, then those of one of its agents; raises `ValueError` if one is wrong."""
    recipe = suite.recipes[method]
    changed = _applied(suite, recipe.settings, f"recipes.{method}.settings")
    if agent in recipe.agents:
        changed = _applied(changed, recipe.agents[agent].settings, f"recipes.{method}.agents.{agent}.settings")
    return changed


def _applied(suite: Suite, settings: Mapping[Any, dict[str, Any]], key: str) -> Suite:
    changed: dict[str, Any] = {}
    for name, values in settings.items():
        if (section := getattr(suite, name, None)) is None:
            continue
        try:
            changed[name] = type(section).model_validate({**dict(section), **values})
        except ValidationError as error:
            raise ValueError(f"{key}.{name}: {explain(error, type(section), {})}") from None
    return suite.model_copy(update=changed)


def iterations_of(suite: Suite, env: str, method: str) -> int:
    """Iterations of a method in an environment: the recipe's, else the environment's."""
    iterations = suite.recipes[method].iterations
    return suite.iterations[env] if iterations is None else iterations


def failure_trainings(suite: Suite, env: str, method: str) -> int:
    """Iterations in which a failure agent is trained, if it learns: all but the last, after which it does not explore.

    All, if it is trained before the target.
    """
    return iterations_of(suite, env, method) - (suite.recipes[method].learns != "failure_agent_first")


def supports(suite: Suite, method: str) -> bool:
    """Whether the suite has the method's model and all that it takes from other environments, and can make its tasks.

    Tiny models have a tokenizer per environment, so a policy of one environment cannot start in another.
    """
    recipe = suite.recipes[method]
    if recipe.model and recipe.model not in suite.models:
        return False
    if has_pool(recipe) and not all(has_module(env.kind, "synthesis") for env in suite.envs.values()):
        return False
    agents = recipe.agents.values()
    foreign = {other for agent in agents for env, other in agent.foreign.items() if env in suite.envs}
    tiny = any(model.tiny for model in suite.models.values())
    return not foreign or (not tiny and foreign <= suite.envs.keys() and "coevolve" in suite.recipes)


def models_of(suite: Suite, method: str | None = None) -> list[str]:
    """The keys of the models that a method is run with: its own, or the suite's, which no row has for itself."""
    of_rows = {recipe.model for recipe in suite.recipes.values()}
    if method is not None and (model := suite.recipes[method].model):
        return [model] if model in suite.models else []
    return [name for name in suite.models if name not in of_rows]


def with_model(suite: Suite, model: str | None = None) -> Suite:
    """The suite with one of its models, by default the first, beside those that rows have for themselves.

    Raises `UserError` for an unknown model.
    """
    names = models_of(suite)
    name = names[0] if model is None else model
    if name not in names:
        raise UserError(f"suite `{suite.suite}` has no model `{name}`; name one of {', '.join(names)}.")
    kept = {key: value for key, value in suite.models.items() if key == name or key not in names}
    return suite.model_copy(update={"models": kept})


def labels(suite: Suite) -> dict[str, str]:
    """The label of every method by its key."""
    return {method: recipe.label for method, recipe in suite.recipes.items()}
