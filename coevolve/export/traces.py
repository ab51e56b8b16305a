"""Episodes as sessions that the trace viewer of Hugging Face's hub shows: its Session Trace Simple Format.

Source: the hub's documentation, page `session-traces-format`. A file is a session: a line with its header, then one
line a message; further keys of the header are ignored by the viewer.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from coevolve.export import cards
from coevolve.export.result_folder import ResultFolder
from coevolve.records.episodes import Trajectory, turn_messages

HARNESS = "coevolve"


def write(paths: Sequence[Path], out: Path) -> int:
    """Write `sessions/SPLIT/ID.jsonl` for every episode, and the card; returns the number of sessions.

    `paths` are folders of the stages that play episodes; an episode in two of them is one session. Raises `UserError`
    if all of them are empty.
    """
    folders = ResultFolder.open_all(paths, "episodes.jsonl")
    sessions = {
        f"sessions/{episode.task.split}/{episode.digest()}.jsonl": list(_lines(folder, episode))
        for folder in folders
        for episode in folder.episodes
    }
    sections = {
        "Origin": cards.origin(folders),
        "What is in a file": (
            f"An episode as a session: a header with the task, `reward` in {cards.rewards(folders)} and the stop "
            "reason `stop`, then one line a message. The policy sampled the messages with `model`; each is followed by "
            "the environment's observation, of role `user`. The messages before them are the prompt."
        ),
    }
    cards.write_data_set(
        out,
        folders,
        sessions,
        ["sessions"],
        "Episodes as sessions",
        sections,
        stated=False,
        pretty_name="Episodes of language model agents",
        tags=["agents", "trajectories", "coevolve"],
    )
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
