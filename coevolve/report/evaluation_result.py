"""The result file of an evaluation: its numbers, and every setting that decides their comparability."""

from __future__ import annotations

import hashlib
import json
import operator
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator
from tabulate import tabulate

from coevolve import escaping
from coevolve.config.report import ReportConfig
from coevolve.errors import UserError, suggestion
from coevolve.records.base import Record
from coevolve.records.episodes import Reward, Sampling, Scalar, StopReason, Trajectory
from coevolve.records.evaluation import EpisodeNotes, EvalRecord, TurnFlaw
from coevolve.records.provenance import Provenance
from coevolve.report import estimation, flaws, stats
from coevolve.report.number_text import with_interval
from coevolve.rollout import EvaluationConfig
from coevolve.settings.protocol import Quirks
from coevolve.settings.section import UnitInterval
from coevolve.settings.validation import validated
from coevolve.settings.yaml_files import read_yaml
from coevolve.storage import files, jsonl, policy_dir, provenance

#: Settings that a file written by hand can state; a file of the kit has further ones, `envs.<environment>.<key>`.
SETTINGS = {
    "environment": "kind of the environment, such as webshop",
    "implementation": "name and version of the implementation",
    "products": "size of WebShop's catalogue",
    "protocol": "the protocol, such as eto (docs/environments/webshop_protocols.md)",
    "task_list": "digest of the task ids",
    "step_limit": "largest number of turns",
    "metric": "how an episode is scored",
    "prompt": "digest of the instruction before the task",
    "examples": "few-shot examples in the prompt",
    "samples": "episodes per task, of which the best counts",
    "seeds": "seeds, or their number",
}
#: Settings of the model's sampling, which belong to the result and are no obstacle to a comparison.
SAMPLING = ("temperature", "top_p", "max_new_tokens", "context")
#: Keys of an environment's section that select tasks or experts, or that only readers see.
_NOT_OF_EPISODES = ("kind", "label", "splits", "tasks", "experts", "expected")
NAME = "result.json"
_REPORT = ReportConfig(confidence=0.95, collapse=0.2)


class TaskResult(Record):
    """The outcome of one task: reward in [0, 1], whether it is a success, stop reason, turns and those with a flaw."""

    task_id: str
    reward: Reward
    success: bool
    stop: StopReason
    turns: int
    flaws: dict[TurnFlaw, int] = Field(default={}, exclude_if=operator.not_)


class SplitResult(Record):
    """The result on one split: `tasks` is their number, means are over tasks, intervals have 95 % confidence.

    Written by hand it has `tasks` and `mean_reward`, `success_rate` or both, in [0, 1]; `reward_deviation` is the
    standard deviation of the tasks' rewards.
    """

    tasks: int = Field(ge=1, le=10**9)
    mean_reward: Reward | None = None
    reward_interval: tuple[float, float] | None = None
    reward_deviation: UnitInterval | None = None
    success_rate: UnitInterval | None = None
    success_interval: tuple[float, float] | None = None
    settings: dict[str, Scalar] = Field(default_factory=dict)
    stops: dict[StopReason, int] = Field(default_factory=dict)
    values: tuple[TaskResult, ...] = ()

    @model_validator(mode="after")
    def _has_a_number(self) -> SplitResult:
        if self.mean_reward is None and self.success_rate is None:
            raise ValueError("give `mean_reward` or `success_rate`, as a share from 0 to 1")
        return self


class ModelIdentity(Record):
    """Name of a model, and the sha256 of its files (of an endpoint: over host and name)."""

    name: str
    sha256: str


class EvaluationResult(Record):
    """One model's evaluation. `settings` decide comparability; those of a split, such as its task list, are in it.

    `training` has the settings of the training that made the weights, if its provenance is at hand; it decides nothing.
    `spent` are an endpoint's tokens and their cost, `left_out` the number of tasks that have no result, since the
    environment failed. `versions`, `commit` and `code_digest` are those of the run.
    """

    format: Literal["coevolve-evaluation"] = "coevolve-evaluation"
    schema_version: Literal[1] = 1
    label: Annotated[str, AfterValidator(escaping.line)]
    model: ModelIdentity | None = None
    settings: dict[str, Scalar]
    splits: dict[str, SplitResult] = Field(min_length=1)
    training: dict[str, Scalar] = Field(default={}, exclude_if=operator.not_)
    spent: dict[str, Any] | None = None
    left_out: int | None = Field(default=None, ge=0)
    commit: str = ""
    code_digest: str = ""
    versions: dict[str, str] = Field(default_factory=dict)
    started: Annotated[str, BeforeValidator(str)] = ""  # YAML reads a date


def from_folder(folder: Path, label: str = "") -> EvaluationResult:
    """The result of an evaluation's folder (`records.jsonl`, `episodes.jsonl`, `provenance.json`)."""
    names = ("records.jsonl", "episodes.jsonl", provenance.NAME)
    missing = [name for name in names if not (folder / name).is_file()]
    if missing:
        others = "a suite's evidence has no episodes of evaluations, so name the folder where the evaluation ran"
        hint = others if missing == ["episodes.jsonl"] else "name the folder of an evaluation"
        raise UserError(f"{folder}: no {' and no '.join(missing)}; {hint}.")
    record = provenance.read(folder / provenance.NAME)
    episodes = jsonl.read(provenance.checked(folder / "episodes.jsonl"), Trajectory)
    records = jsonl.read(provenance.checked(folder / "records.jsonl"), EvalRecord)
    if not records:
        raise UserError(f"{folder}: every episode ended by an error of the environment; repair it and evaluate again.")
    policy = episodes[0].policy
    notes = record.notes if isinstance(record.notes, EpisodeNotes) else None
    spent = notes.spent if notes else None
    return EvaluationResult(
        label=label or (policy.name if policy else folder.as_posix()),
        model=ModelIdentity(name=policy.name, sha256=policy.sha256) if policy else None,
        settings=dict(_settings(record, folder, episodes, records[0].seed)),
        splits={
            split: _split([r for r in records if r.split == split])
            for split in dict.fromkeys(record.split for record in records)
        },
        training=_training(record, folder),
        spent={key: value for key, value in spent.items() if key != "episodes"} if spent else None,
        left_out=(notes and notes.left_out) or None,
        commit=record.commit,
        code_digest=record.code_digest,
        versions=record.versions,
        started=record.started,
    )


def read(path: Path) -> EvaluationResult:
    """The result in a JSON or YAML file, or of an evaluation's folder; raises `UserError` for one that is not valid."""
    if path.is_dir():
        return from_folder(path)
    if not path.exists():
        raise UserError(f"{path}: does not exist; write it with `coevolve evaluate-model --out {path}`.")
    result = validated(EvaluationResult, path, read_yaml(provenance.checked(path)))
    if not result.code_digest:  # written by hand
        known = (*SETTINGS, *SAMPLING)
        for name in (*result.settings, *(name for split in result.splits.values() for name in split.settings)):
            if name not in known:
                raise UserError(f"{path}: unknown setting `{name}`{suggestion(name, known) or f'; known: {known}.'}")
    return result


def read_all(paths: Sequence[Path]) -> list[EvaluationResult]:
    """The results in several files; where two have one label, each gets what is its own in its path added."""
    results = [read(path) for path in paths]
    count = Counter(result.label for result in results)
    common = set.intersection(*({*enumerate(path.parts)} for path in paths))
    named = ["/".join(part for n, part in enumerate(path.parts) if (n, part) not in common) or path for path in paths]
    return [
        result.model_copy(update={"label": f"{result.label} ({name})"}) if count[result.label] > 1 else result
        for result, name in zip(results, named, strict=True)
    ]


def table(results: Sequence[EvaluationResult]) -> str:
    """Results by label and split with their intervals, in per cent, as a table in Markdown, with its remarks."""
    head = ["model", "split", "tasks", "average reward x 100", "success rate, %"]
    rows = [
        [
            result.label,
            name,
            split.tasks,
            _percent(split.mean_reward, split.reward_interval),
            _percent(split.success_rate, split.success_interval),
        ]
        for result in results
        for name, split in result.splits.items()
    ]
    grid = tabulate(rows, headers=head, tablefmt="github", disable_numparse=True)
    named = [(f"{result.label}, {name}", split.values) for result in results for name, split in result.splits.items()]
    left_out = [f"{result.label} {result.left_out}" for result in results if result.left_out]
    lost = f"Tasks left out, since the environment failed: {', '.join(left_out)}." if left_out else ""
    return "\n\n".join(filter(None, [grid, flaws.remark(named), flaws.unrewarded(named), lost]))


def _settings(
    record: Provenance, folder: Path, episodes: Sequence[Trajectory], seed: int
) -> Iterator[tuple[str, Scalar]]:
    """Every setting of an evaluation by name, from its provenance and its episodes."""
    config = record.config
    # An episode whose environment never started has no prompt.
    first = next((episode for episode in episodes if episode.prompt), episodes[0])
    (section,) = config["envs"].values()
    quirks = Quirks.model_validate(config["protocols"][record.protocol])
    yield "environment", first.task.env
    yield "implementation", "; ".join(sorted({episode.environment for episode in episodes}))
    yield from ((name, value) for name, value in _prepared_meta(record, folder).items() if isinstance(value, int))
    yield "protocol", record.protocol
    of_episodes = {key: value for key, value in section.items() if key not in _NOT_OF_EPISODES}
    for name, value in _flat(of_episodes):
        yield name if name in SETTINGS else f"envs.{first.task.env}.{name}", value
    success = "reward 1" if quirks.success == "reward_one" else "any ending by the environment"
    errors = "count as 0" if quirks.env_error == "zero" else "are left out"
    yield "metric", f"mean reward at the end of an episode; success: {success}; environment errors {errors}"
    opening = first.prompt[0].content if len(first.prompt) > 1 else ""
    yield "prompt", _digest([opening])
    yield "examples", int(len(first.prompt) > 3)
    yield "samples", EvaluationConfig.model_validate(config["evaluation"]).samples
    yield "seeds", str(seed)
    yield from (first.sampling or Sampling(temperature=0.0)).model_dump().items()
    yield from (
        (name, value) for model in config["models"].values() for name, value in model.items() if name in SAMPLING
    )


def _training(record: Provenance, folder: Path) -> dict[str, Scalar]:
    """What the policy's provenance has of its training, for any current folder; empty if it is not there."""
    read = provenance.input_files(record, policy_dir.REF_NAME, folder)
    made = next(filter(None, map(provenance.of_file, read)), None)
    if made is None:
        return {}
    return {"stage": made.stage, **made.wildcards} | dict(_flat({"seed": made.seeds.get("suite"), **made.config}))


def _split(records: Sequence[EvalRecord]) -> SplitResult:
    rewards, n = [record.reward for record in records], len(records)
    reward = estimation.of_records(records, report=_REPORT)
    successes = sum(record.success for record in records)
    return SplitResult(
        tasks=n,
        mean_reward=fmean(rewards),
        reward_interval=(reward.low, reward.high),
        reward_deviation=stdev(rewards) if n > 1 else None,
        success_rate=successes / n,
        success_interval=stats.wilson(successes, n, _REPORT.confidence),
        settings={"task_list": _digest(sorted(record.task_id for record in records))},
        stops=Counter(record.stop for record in records),
        values=tuple(TaskResult.model_validate(record, from_attributes=True) for record in records),
    )


def _prepared_meta(record: Provenance, folder: Path) -> dict[str, Any]:
    """The metadata of the environment from the stage `prepare`, for any current folder; empty if it is not there."""
    read = provenance.input_files(record, "meta.json", folder)
    meta: dict[str, Any] = next(map(files.read_json, read), {})
    return meta


def _flat(section: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Scalar]]:
    """The values of nested sections by dotted key, without paths: a file is named by its sha256."""
    for key, value in section.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        elif key != "path":
            yield f"{prefix}{key}", value if isinstance(value, Scalar) else json.dumps(value)


def _digest(texts: Sequence[str]) -> str:
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()[:12]


def _percent(share: float | None, interval: tuple[float, float] | None) -> str:
    if share is None:
        return "not stated"
    if interval is None:
        return f"{100 * share:.1f}"
    return with_interval(100 * share, 100 * interval[0], 100 * interval[1])
