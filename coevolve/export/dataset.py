"""Pairs and trajectories as a data set that `datasets.load_dataset(FOLDER, NAME)` reads."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from coevolve.export import cards
from coevolve.export.result_folder import ResultFolder
from coevolve.records.episodes import Trajectory


def write(paths: Sequence[Path], out: Path) -> list[str]:
    """Write `pairs.jsonl`, `drops.jsonl`, `trajectories/SPLIT.jsonl` and the card; returns the names of the parts.

    `paths` are folders of the stages that play episodes or build pairs. Raises `UserError` if all of them are empty.
    """
    folders = ResultFolder.open_all(paths, "pairs.jsonl", "episodes.jsonl")
    rows = {
        "pairs.jsonl": [folder.origin | pair.model_dump(mode="json") for folder in folders for pair in folder.pairs],
        **_by_split(folders),
        "drops.jsonl": [folder.origin | drop.model_dump(mode="json") for folder in folders for drop in folder.drops],
    }
    sections = {
        "Origin": cards.origin(folders),
        "What is in a row": (
            "`pairs`: `prompt`, `chosen`, `rejected` are messages; `*_token_ids` the sampled ids of each action; "
            "`lambda_dpo` and `lambda_sft` the weights of eq. 9. `trajectories`: `turns` with text, action and "
            f"observation, `reward` in {cards.rewards(folders)}, `stop`; `episode_seed` is that of its random numbers. "
            "`seed` is that of the training in all three. `drops`: every candidate that became no pair, and why."
        ),
        "Training on it": cards.WARNING,
        "Pairs and drops": cards.drops(folders),
    }
    names = cards.write_data_set(
        out,
        folders,
        rows,
        ["pairs.jsonl", "drops.jsonl", "trajectories"],
        "Trajectories and preference pairs",
        sections,
        pretty_name="Trajectories and preference pairs of language model agents",
        tags=["agents", "preference", "trajectories", "coevolve"],
    )
    return list(dict.fromkeys(name.partition("/")[0].removesuffix(".jsonl") for name in names))


def _by_split(folders: Sequence[ResultFolder]) -> dict[str, list[dict[str, Any]]]:
    """The rows of episodes by file; an episode's split is that of its task."""
    rows: dict[str, list[dict[str, Any]]] = {}
    for folder in folders:
        for episode in folder.episodes:
            name = f"trajectories/{episode.task.split}.jsonl"
            rows.setdefault(name, []).append(folder.origin | _flat(episode))
    return rows


def _flat(episode: Trajectory) -> dict[str, Any]:
    """An episode with the same columns and types in every environment, without the `seed` of its origin."""
    row = episode.model_dump(mode="json", exclude={"task", "policy", "sampling", "schema_version", "seed"})
    policy, sampling = episode.policy, episode.sampling
    return row | {
        "task_id": episode.task.task_id,
        "split": episode.task.split,
        "task_kind": episode.task.kind,
        "task_data": json.dumps(episode.task.data),
        "policy": policy.name if policy else "",
        "policy_sha256": policy.sha256 if policy else "",
        "policy_base": policy.base if policy else "",
        "policy_revision": policy.revision if policy else "",
        "temperature": sampling.temperature if sampling else None,
        "top_p": sampling.top_p if sampling else None,
        "max_new_tokens": sampling.max_new_tokens if sampling else None,
        "episode_seed": episode.seed,
        "trajectory_id": episode.digest(),
    }
