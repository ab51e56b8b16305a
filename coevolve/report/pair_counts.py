"""What the pairing used and dropped, method by method: the reviewers' question, and the reader's first check."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tabulate import tabulate

from coevolve.config.sections import Recipe
from coevolve.storage import jsonl
from coevolve.types import Drop

#: Method, model, environment, seed, iteration and agent.
Key = tuple[str, str, str, int, int, str]


def read(paths: Mapping[Key, Path]) -> dict[Key, Any]:
    """The pairing summaries in files."""
    return {key: json.loads(path.read_bytes()) for key, path in paths.items()}


def methods_markdown(
    recipes: Iterable[Recipe], summaries: Mapping[Key, Mapping[str, Any]], drops: Mapping[str, Path]
) -> str:
    """The source of each recipe, and pairs and drops by iteration; `drops`: files by environment."""
    left_out = {env: len(jsonl.read(path, Drop)) for env, path in drops.items()}
    rows = [f"* {recipe.label}: {recipe.source}" for recipe in recipes]
    return "\n".join(["## Methods", "", *rows, "", markdown(summaries, left_out)])


def markdown(summaries: Mapping[Key, Mapping[str, Any]], overlap: Mapping[str, int]) -> str:
    """A table of pairs and drops by (method, model, env, seed, iteration, agent), then a sentence for each empty kind.

    `summaries` are those of `pairing.summary`; `overlap` counts, by environment, training tasks left out of a suite.
    """
    rows = [
        [method, env, seed, iteration, agent, kind, count["candidates"], count["pairs"], _reasons(count["drops"])]
        for (method, _, env, seed, iteration, agent), summary in sorted(summaries.items())
        for kind, count in summary["kinds"].items()
    ]
    head = ["method", "environment", "seed", "iteration", "agent", "pair kind", "candidates", "pairs", "dropped"]
    left_out = [f"{env}: {count} training tasks or experts left out before training." for env, count in overlap.items()]
    return (
        "\n".join(["## Pairs", "", tabulate(rows, head, tablefmt="github"), "", *left_out, *_empty(summaries)]) + "\n"
    )


def rows(summaries: Mapping[Key, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The same counts as data: a flat object for each method, environment, seed, iteration, agent and pair kind."""
    names = ("method", "model", "env", "seed", "iteration", "agent")
    return [
        {**dict(zip(names, key, strict=True)), "kind": kind, **count}
        for key, summary in sorted(summaries.items())
        for kind, count in summary["kinds"].items()
    ]


def _reasons(drops: Mapping[str, int]) -> str:
    return ", ".join(f"{reason} {count}" for reason, count in sorted(drops.items())) or "none"


def _empty(summaries: Mapping[Key, Mapping[str, Any]]) -> Sequence[str]:
    """Which pair kinds had no pair at all, in words."""
    return [
        f"{method}, {env}, seed {seed}, iteration {iteration}, {agent} agent: {sentence}"
        for (method, _, env, seed, iteration, agent), summary in sorted(summaries.items())
        for sentence in summary["empty"]
    ]
