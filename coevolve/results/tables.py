"""A suite's results as tidy tables; docs/read/tables.md has the columns.

Rows are in the order of the suite's methods. What methods share, such as the evaluation of SFT, has rows for each of
them, with the same `file`.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coevolve.records.episodes import Trajectory
from coevolve.records.evaluation import EvalRecord, ResultFile, TurnFlaw, turn_flaws
from coevolve.records.pairs import DropReason, PairingSummary, PairKind, PreferencePair
from coevolve.records.provenance import Provenance
from coevolve.records.training import TrainReport
from coevolve.storage import files, jsonl

if TYPE_CHECKING:
    import pandas as pd

#: The tables, and the names of their files without `.parquet`.
NAMES = ("episodes", "pairs", "pairings", "trainings", "jobs")
#: What a row is of: the first columns of every table.
KEY = ("method", "model", "env", "seed", "iteration", "agent")
Row = dict[str, Any]


def episodes(
    evaluations: Iterable[ResultFile], explorations: Iterable[ResultFile], needs_actions: Mapping[str, bool]
) -> pd.DataFrame:
    """An evaluated or explored episode a row; `needs_actions`: environments in which a turn without one has a flaw.

    An evaluation's `seed` is its policy's: one policy of all seeds has seed 0, and its rows once.
    """
    by_file = {(file.method, file.model, file.iteration, file.path): file for file in evaluations}
    of_targets = (
        [evaluated(file, each) for each in jsonl.stream(Path(file.path), EvalRecord)] for file in by_file.values()
    )
    of_agents = ([*_explored(file, needs_actions[file.env])] for file in explorations)
    shown = ("phase", "split", "task_id", "sample", "reward", "success", "stop", "turns")
    return _joined(itertools.chain(of_targets, of_agents), *shown)


def pairs(training_pairs: Iterable[ResultFile]) -> pd.DataFrame:
    """A preference pair a row, with the rewards of its sides and its weights in eq. 9."""
    shown = ("task_id", "chosen_reward", "rejected_reward", "lambda_dpo", "lambda_sft", "chosen_id", "rejected_id")
    of_trainings = (
        [
            _key(file) | {"kind": pair.kind.value} | {name: getattr(pair, name) for name in shown} | {"file": file.path}
            for pair in jsonl.stream(Path(file.path), PreferencePair)
        ]
        for file in training_pairs
    )
    return _joined(of_trainings, "kind", *shown)


def pairings(summaries: Iterable[ResultFile]) -> pd.DataFrame:
    """A pair kind of a pairing a row: candidates, pairs, and candidates dropped by reason (`drops/REASON`)."""
    rows = [
        _key(file)
        | {"kind": kind.value}
        | count.model_dump(exclude={"drops"})
        | {f"drops/{reason.value}": count.drops.get(reason, 0) for reason in DropReason}
        | {"file": file.path}
        for file in summaries
        for kind, count in PairingSummary.from_json(files.read_bytes(Path(file.path))).kinds.items()
    ]
    return frame(rows, "kind", "candidates", "pairs")


def trainings(history: Iterable[tuple[ResultFile, Provenance]]) -> pd.DataFrame:
    """An optimiser step a row, with the metrics of the step; of pairs also their means over kinds, by TRL's names."""
    rows = [
        _key(of)
        | {"stage": made.stage, "result": made.result}
        | {name: step_metric(step, name) for name in _METRICS}
        | step
        for of, made in history
        if isinstance(made.notes, TrainReport)
        for step in made.notes.history
    ]
    return frame(rows, "stage", "result", "step", *_METRICS)


def jobs(history: Iterable[tuple[ResultFile, Provenance]]) -> pd.DataFrame:
    """A job a row: what it cost, and which code and settings made it, where."""
    made_by = ("hardware", "container", "commit", "dirty", "code_digest", "config_digest", "protocol", "slurm_job")
    shown = ("stage", "result", "seconds", "cpu_seconds", "started", "reused_from", *made_by)
    rows = [
        _key(of)
        | {name: getattr(made, name) for name in shown}
        | {name: getattr(made.notes, name, None) for name in ("trained_tokens", "sampled_tokens")}
        for of, made in history
    ]
    return frame(rows, *shown)


#: Metrics of a step that are means over the step's pairs of all kinds.
_METRICS = ("loss", "rewards/margins", "logps/chosen", "logps/rejected", "reward")


def step_metric(step: Mapping[str, float], metric: str) -> float | None:
    """A metric of a step, or its mean over the step's pairs of all kinds; None for a step without it."""
    if metric in step:
        return step[metric]
    kinds = [kind for kind in PairKind if f"{kind}/{metric}" in step]
    pairs = sum(step[f"{kind}/pairs"] for kind in kinds)
    return sum(step[f"{kind}/{metric}"] * step[f"{kind}/pairs"] for kind in kinds) / pairs if pairs else None


def of_job(made: Provenance) -> ResultFile:
    """What a job is about, and the folder of its result; what methods share has its branch for a method."""
    names = made.wildcards
    branch = names.get("branch", "")
    numbered = re.fullmatch(r"(\w+)/seed(\d+)(?:/iter(\d+))?", branch)
    method, seed, iteration = numbered.groups() if numbered else (branch, 0, 0)
    agent = names.get("agent", "")
    return ResultFile(
        made.result, names.get("env", ""), method, names.get("model", ""), int(seed), int(iteration or 0), agent
    )


def evaluated(file: ResultFile, record: EvalRecord) -> Row:
    """The row of an evaluation's record."""
    shown = ("split", "task_id", "reward", "success", "turns", "environment", "trajectory_id")
    of = _key(file) | {"seed": record.seed, "phase": "evaluation", "sample": 0, "stop": record.stop.value}
    return of | {name: getattr(record, name) for name in shown} | _flaws(record.flaws) | {"file": file.path}


def _explored(file: ResultFile, needs_actions: bool) -> Iterator[Row]:
    for episode in jsonl.stream(Path(file.path), Trajectory):
        yield {
            **_key(file),
            "phase": "exploration",
            "split": episode.task.split,
            "task_id": episode.task.task_id,
            "sample": episode.sample,
            "reward": episode.reward,
            "success": not episode.is_failure,
            "stop": episode.stop.value,
            "turns": len(episode.turns),
            "environment": episode.environment,
            "trajectory_id": episode.digest(),
            **_flaws(turn_flaws(episode.turns, needs_actions)),
            "file": file.path,
        }


def _flaws(counts: Mapping[TurnFlaw, int]) -> dict[str, int]:
    """Turns by their flaw."""
    return {f"flaws/{flaw.value}": counts.get(flaw, 0) for flaw in TurnFlaw}


def _key(file: ResultFile) -> Row:
    return {name: getattr(file, name) for name in KEY}


def _joined(of_files: Iterable[list[Row]], *first: str) -> pd.DataFrame:
    """The rows of all files; those of one file at a time are held as Python's objects."""
    import pandas as pd

    frames = [frame(rows, *first) for rows in of_files if rows]
    return pd.concat(frames, ignore_index=True) if frames else frame([], *first)


def frame(rows: list[Row], *first: str) -> pd.DataFrame:
    """The rows with these columns after those of `KEY`, and then the others."""
    import pandas as pd

    columns = dict.fromkeys([*KEY, *first, *(name for row in rows for name in row)])
    return pd.DataFrame(rows, columns=[*columns])
