"""Write the site: a short index that is loaded at once, and the episodes in chunks that are loaded on demand.

A browser that opens a page from a folder may load scripts only, so all data are scripts that pass their content to
`receive` (site/view.js).
"""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from coevolve.errors import UserError
from coevolve.report.view.origin import FileOrigin, record_files
from coevolve.storage import files, jsonl
from coevolve.types import Message, PreferencePair, Trajectory

SITE = Path(__file__).parent / "site"
#: A chunk ends with the episode that exceeds this size; small enough to parse without a noticeable delay.
CHUNK_BYTES = 250_000
#: Characters of a task's text in the index.
ABOUT = 200
SHARED = {"base": "SFT, shared", "experts": "Experts"}


@dataclass(frozen=True)
class SiteSize:
    """Numbers of episodes and pairs of a site."""

    episodes: int
    pairs: int


def build(home: Path, out: Path, title: str, labels: Mapping[str, str]) -> SiteSize:
    """Write the site of the results under `home` to the folder `out`, replacing it; `labels` name the methods.

    Episodes are read and written one by one. Raises `UserError` if there are no episodes, if a file is damaged, and if
    `out` is not a site.
    """
    episodes, pairs = record_files(home)
    if not episodes:
        raise UserError(f"{home}: no episodes.jsonl under it; run the suite (or a rollout of it) first.")
    if out.exists() and not (out / "data" / "index.js").exists():
        raise UserError(f"{out}: exists and is not a view; give another --out or remove it.")
    with files.directory(out) as folder:
        shutil.copytree(SITE, folder, dirs_exist_ok=True)
        (folder / "data" / "episodes").mkdir(parents=True)
        with (folder / "data" / "index.js").open("w", encoding="ascii") as index:
            _send(index, "start", {"title": title, "labels": {**SHARED, **labels}})
            size = SiteSize(_write_episodes(episodes, folder, index), _write_pairs(pairs, index))
    return size


def first_difference(pair: PreferencePair) -> int:
    """Number, from 1, of the first turn in which action or observation differs; 0 if none does."""
    messages = itertools.zip_longest(pair.chosen, pair.rejected)
    return next((index // 2 + 1 for index, (left, right) in enumerate(messages) if left != right), 0)


def _write_episodes(paths: list[Path], folder: Path, index: TextIO) -> int:
    """Send each file's origin, then one row per episode: the chunk with its text, and the fields to filter by."""
    chunks, tasks = _Chunks(folder / "data" / "episodes"), _Numbers()
    count = 0
    for path in paths:
        _send(index, "source", FileOrigin.of(path).model_dump())
        for trajectory in jsonl.stream(path, Trajectory):
            task = trajectory.task
            number, new = tasks.number((task.task_id, task.split))
            if new:
                _send(index, "task", [task.task_id, task.split, task.kind, _about(trajectory.prompt)])
            where = chunks.add(trajectory)
            turns, stop = len(trajectory.turns), trajectory.stop.value
            _send(index, "row", [trajectory.digest(), number, trajectory.agent, trajectory.reward, stop, turns, *where])
            count += 1
    chunks.close()
    return count


def _write_pairs(paths: list[Path], index: TextIO) -> int:
    count = 0
    for path in paths:
        _send(index, "source", FileOrigin.of(path).model_dump())
        for pair in jsonl.stream(path, PreferencePair):
            sides = [pair.chosen_id, pair.rejected_id, pair.chosen_reward, pair.rejected_reward]
            turns = [(len(side) + 1) // 2 for side in (pair.chosen, pair.rejected)]
            weights = [pair.lambda_dpo, pair.lambda_sft]
            _send(index, "pair", [*sides, pair.task_id, pair.kind.value, *weights, first_difference(pair), *turns])
            count += 1
    return count


class _Chunks:
    """Episodes in numbered files; a file is written when it is full."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.number = 0
        self._episodes: list[str] = []
        self._bytes = 0

    def add(self, trajectory: Trajectory) -> tuple[int, int]:
        """The number of the episode's file, and its index in it."""
        if self._bytes > CHUNK_BYTES:
            self.close()
            self.number += 1
        episode = _script_json(trajectory.model_dump(mode="json", exclude={"turns": {"__all__": {"token_ids"}}}))
        self._episodes.append(episode)
        self._bytes += len(episode)
        return self.number, len(self._episodes) - 1

    def close(self) -> None:
        """Write the current file."""
        episodes = ",\n".join(self._episodes)
        script = f"receive.episodes({self.number}, [\n{episodes}\n]);\n"
        (self.folder / f"{self.number}.js").write_text(script, encoding="ascii")
        self._episodes, self._bytes = [], 0


@dataclass
class _Numbers:
    """Numbers keys from 0, in order of first occurrence."""

    known: dict[tuple[str, ...], int] = field(default_factory=dict)

    def number(self, key: tuple[str, ...]) -> tuple[int, bool]:
        """The number of a key, and whether it is new."""
        new = key not in self.known
        return self.known.setdefault(key, len(self.known)), new


def _about(prompt: tuple[Message, ...]) -> str:
    """The beginning of the last message of the prompt, on one line."""
    return " ".join(prompt[-1].content.split())[:ABOUT] if prompt else ""


def _send(file: TextIO, name: str, value: Any) -> None:
    file.write(f"receive.{name}({_script_json(value)});\n")


def _script_json(value: Any) -> str:
    """JSON in ASCII, which is a valid script in every encoding."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=True)
