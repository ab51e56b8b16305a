"""Episodes as sessions that the trace viewer of Hugging Face's hub shows: its Session Trace Simple Format.

Source: the hub's documentation, page `session-traces-format`. A file is a session: a line with its header, then one
line a message; further keys of the header are ignored by the viewer.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from coevolve.errors import UserError
from coevolve.export import cards
from coevolve.export.result_folder import ResultFolder
from coevolve.records.episodes import Trajectory, turn_messages
from coevolve.storage import files
from coevolve.storage.folders import named_directory

HARNESS = "coevolve"


def write(paths: Sequence[Path], out: Path) -> int:
    """Write `sessions/ID.jsonl` for every episode, and the card; returns the number of sessions.

    `paths` are folders of the stages that play episodes; an episode in two of them is one session. Raises `UserError`
    if all of them are empty.
    """
    folders = ResultFolder.open_all(paths, "episodes.jsonl")
    sessions = {episode.digest(): _lines(folder, episode) for folder in folders for episode in folder.episodes}
    if not sessions:
        raise UserError(f"{paths[0]}: no episode in these folders; name others.")
    with named_directory(out, ["README.md", "sessions"]) as folder:
        (folder / "sessions").mkdir()
        for name, lines in sessions.items():
            # ASCII: a reader that splits at every line break of Unicode must not split a message.
            text = "".join(json.dumps(line) + "\n" for line in lines)
            files.write_bytes(folder / f"sessions/{name}.jsonl", text.encode())
        files.write_bytes(folder / "README.md", _card(folders).encode())
    return len(sessions)


def _lines(folder: ResultFolder, episode: Trajectory) -> Iterator[dict[str, Any]]:
    """The header, and the messages of prompt and turns.

    A message that the policy sampled names it. `datasets` 5.2 takes a file for a session only if keys differ so.
    """
    policy = episode.policy.name if episode.policy else ""
    sampled = {"model": policy} if policy else {}
    header = {
        "type": "session",
        "harness": HARNESS,
        "id": episode.digest(),
        "name": episode.task.task_id,
        **folder.origin,
        "split": episode.task.split,
        "sample": episode.sample,
        "reward": episode.reward,
        "stop": episode.stop.value,
        "policy": policy,
        "policy_sha256": episode.policy.sha256 if episode.policy else "",
    }
    yield header
    for message in episode.prompt:
        yield {"type": "message", "message": message.model_dump()}
    for message in turn_messages(episode.turns):
        yield {"type": "message", "message": message.model_dump() | (sampled if message.role == "assistant" else {})}


def _card(folders: Sequence[ResultFolder]) -> str:
    identifiers, limits = cards.licences(folders)
    front = {
        "pretty_name": "Episodes of language model agents",
        "license": identifiers,
        "tags": ["agents", "trajectories", "coevolve"],
        "configs": [{"config_name": "default", "data_files": [{"split": "train", "path": "sessions/*.jsonl"}]}],
    }
    sections = {
        "Origin": cards.origin(folders),
        "What is in a file": (
            f"An episode as a session: a header with the task, `reward` in {cards.rewards(folders)} and the stop "
            "reason `stop`, then one line a message. The policy sampled the messages with `model`; each is followed by "
            "the environment's observation, of role `user`. The messages before them are the prompt."
        ),
        "Licences and limits": limits,
    }
    return cards.card(front, "Episodes as sessions", sections)
