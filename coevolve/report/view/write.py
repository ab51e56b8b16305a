"""Write the site: a short index that is loaded at once, and the episodes in chunks that are loaded on demand.

A browser that opens a page from a folder may load scripts only, so all data are scripts that pass their content to
`receive` (site/view.js).
"""

import itertools
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO
from urllib.parse import quote

from coevolve import escaping
from coevolve.errors import UserError
from coevolve.records.episodes import Trajectory
from coevolve.records.pairs import PairKind, PreferencePair
from coevolve.report.labels import SHARED, STOPS, ReportLabels, kind_label
from coevolve.report.view.origin import FileOrigin, record_files
from coevolve.storage import folders, jsonl, provenance

SITE = Path(__file__).parent / "site"
#: A chunk ends with the episode that exceeds this size; small enough to parse without a noticeable delay.
CHUNK_BYTES = 250_000
#: Characters of a task's text in the index.
ABOUT = 200
#: What the parts of a suite's results are called.
PARTS = {"eval": "evaluation", "policy": "training"}


@dataclass(frozen=True)
class SiteDocument:
    """A product that the landing page links to: its title, a sentence about it, and its files."""

    title: str
    text: str
    paths: Sequence[Path]


def build(
    home: Path, out: Path, title: str, labels: ReportLabels, documents: Sequence[SiteDocument] = ()
) -> tuple[int, int]:
    """Write the site of the results under `home` to the folder `out`, replacing it; `index.html` is the landing page.

    Returns the numbers of episodes, which are read and written one by one, and of pairs. Raises `UserError` if there
    are no episodes, if a file is damaged, and if `out` is not a site.
    """
    episodes, pairs = record_files(home)
    if not episodes:
        raise UserError(f"{home}: no episodes.jsonl under it; run the suite (or a rollout of it) first.")
    if out.exists() and not (out / "data" / "index.js").exists():
        raise UserError(f"{out}: exists and is not a view; give another --out or remove it.")
    with folders.directory(out) as folder:
        shutil.copytree(SITE, folder, dirs_exist_ok=True)
        (folder / "data" / "episodes").mkdir(parents=True)
        with (folder / "data" / "index.js").open("w", encoding="ascii") as index:
            _send(index, "start", _start(title, labels, documents, out))
            lengths = dict[str, int]()
            counts = _write_episodes(episodes, folder, index, lengths), _write_pairs(pairs, index, lengths)
    return counts


def first_difference(pair: PreferencePair) -> int:
    """Number, from 1, of the first turn of the pair in which action or observation differs; 0 if none does."""
    messages = itertools.zip_longest(pair.chosen, pair.rejected)
    return next((index // 2 + 1 for index, (left, right) in enumerate(messages) if left != right), 0)


def _start(title: str, labels: ReportLabels, documents: Sequence[SiteDocument], out: Path) -> dict[str, Any]:
    """The title, the labels by field, and the products with the addresses of their files."""
    return {
        "title": title,
        "labels": {
            "method": {**SHARED, **labels.methods},
            "env": dict(labels.envs),
            "part": PARTS,
            "stop": {reason.value: text for reason, text in STOPS.items()},
            "pair": {kind.value: kind_label(kind) for kind in PairKind},
        },
        "documents": [
            {
                "title": each.title,
                "text": each.text,
                "files": [[path.name, quote(Path(os.path.relpath(path, out)).as_posix())] for path in each.paths],
            }
            for each in documents
        ],
    }


def _write_episodes(paths: list[Path], folder: Path, index: TextIO, lengths: dict[str, int]) -> int:
    """Send each file's origin, then a row for each episode; `lengths` gets the number of messages in its prompt."""
    chunks, tasks = _Chunks(folder / "data" / "episodes"), dict[tuple[str, str], int]()
    count = 0
    for path in paths:
        _send(index, "source", FileOrigin.of(path).model_dump())
        for trajectory in jsonl.stream(provenance.checked(path), Trajectory):
            task = trajectory.task
            known = len(tasks)
            number = tasks.setdefault((task.task_id, task.split), known)
            if number == known:
                text = " ".join(trajectory.prompt[-1].content.split()) if trajectory.prompt else ""
                _send(index, "task", [task.task_id, task.split, task.kind, text[:ABOUT]])
            where = chunks.add(trajectory)
            turns, stop = len(trajectory.turns), trajectory.stop.value
            digest = trajectory.digest()
            lengths[digest] = len(trajectory.prompt)
            _send(index, "row", [digest, number, trajectory.agent, trajectory.reward, stop, turns, *where])
            count += 1
    chunks.close()
    return count


def _write_pairs(paths: list[Path], index: TextIO, lengths: Mapping[str, int]) -> int:
    """Send each file's origin, then a row for each pair; turns are counted from the beginning of the episodes."""
    count = 0
    for path in paths:
        _send(index, "source", FileOrigin.of(path).model_dump())
        for pair in jsonl.stream(provenance.checked(path), PreferencePair):
            sides = [pair.chosen_id, pair.rejected_id, pair.chosen_reward, pair.rejected_reward]
            # Turns before the branch point of a pair of steps (IPR); negative where only the episode has an example.
            before = max(0, len(pair.prompt) - lengths.get(pair.chosen_id, len(pair.prompt))) // 2
            turns = [before + (len(side) + 1) // 2 for side in (pair.chosen, pair.rejected)]
            first = first_difference(pair)
            weights = [pair.lambda_dpo, pair.lambda_sft]
            _send(index, "pair", [*sides, pair.task_id, pair.kind.value, *weights, first and before + first, *turns])
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
        content = trajectory.model_dump(mode="json", exclude={"turns": {"__all__": {"token_ids"}}})
        episode = _script_json(content)
        self._episodes.append(episode)
        self._bytes += len(episode)
        return self.number, len(self._episodes) - 1

    def close(self) -> None:
        """Write the current file."""
        episodes = ",\n".join(self._episodes)
        script = f"receive.episodes({self.number}, [\n{episodes}\n]);\n"
        (self.folder / f"{self.number}.js").write_text(script, encoding="ascii")
        self._episodes, self._bytes = [], 0


def _send(file: TextIO, name: str, value: Any) -> None:
    file.write(f"receive.{name}({_script_json(value)});\n")


def _script_json(value: Any) -> str:
    """JSON in ASCII, which is a valid script in every encoding; texts are without control characters."""
    return json.dumps(_escaped(value), separators=(",", ":"), ensure_ascii=True)


def _escaped(value: Any) -> Any:
    if isinstance(value, str):
        return escaping.terminal(value)
    if isinstance(value, Mapping):
        return {key: _escaped(item) for key, item in value.items()}
    return [_escaped(item) for item in value] if isinstance(value, list | tuple) else value
