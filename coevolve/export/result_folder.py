"""A folder of results as it is exported: its records, and what its provenance says of their origin."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from coevolve.envs.section import EnvSection, known_kinds, section_class
from coevolve.errors import UserError
from coevolve.pipeline.branch import agent_of
from coevolve.records.episodes import Trajectory
from coevolve.records.evaluation import EvalRecord
from coevolve.records.pairs import Drop, PreferencePair
from coevolve.records.provenance import Provenance
from coevolve.results.tables import of_job
from coevolve.storage import jsonl, provenance


@dataclass(frozen=True)
class ResultFolder:
    """A folder that a stage wrote, with its provenance."""

    path: Path
    record: Provenance

    @classmethod
    def open(cls, path: Path, *names: str) -> ResultFolder:
        """The folder at `path`; raises `UserError` unless it has a provenance and one of the files `names`."""
        if not (path / provenance.NAME).is_file() or not any((path / name).is_file() for name in names):
            problem = f"no result with {' or '.join(names)} and {provenance.NAME}"
            raise UserError(f"{path}: {problem}; name a folder below the suite's results.")
        return cls(path, provenance.read(path / provenance.NAME))

    @classmethod
    def open_all(cls, paths: Iterable[Path], *names: str) -> list[ResultFolder]:
        """The folders at `paths`, one that is named twice once; raises as `open`."""
        return [cls.open(path, *names) for path in {path.resolve(): path for path in paths}.values()]

    @property
    def origin(self) -> dict[str, Any]:
        """The names of a row of data: model, environment, method, seed, iteration, agent, protocol."""
        of = of_job(self.record)._replace(agent=agent_of(self.record.wildcards))
        names = ("model", "env", "method", "seed", "iteration", "agent")
        return {name: getattr(of, name) for name in names} | {"protocol": self.record.protocol}

    @property
    def subject(self) -> tuple[object, ...]:
        """Model, environment, method, seed and iteration."""
        return tuple(self.origin[name] for name in ("model", "env", "method", "seed", "iteration"))

    @cached_property
    def episodes(self) -> list[Trajectory]:
        """The episodes; empty for a folder of pairs."""
        return self._read("episodes.jsonl", Trajectory)

    @cached_property
    def records(self) -> list[EvalRecord]:
        """The evaluated episodes; empty for a folder of another stage."""
        return self._read("records.jsonl", EvalRecord)

    @cached_property
    def pairs(self) -> list[PreferencePair]:
        """The pairs; empty for a folder of episodes."""
        return self._read("pairs.jsonl", PreferencePair)

    @cached_property
    def drops(self) -> list[Drop]:
        """The candidates and trajectories that are in no pair."""
        return self._read("drops.jsonl", Drop)

    @property
    def kind(self) -> str:
        """The environment's kind: that of the episodes; of a folder of pairs, the environment's name in the suite."""
        return self.episodes[0].task.env if self.episodes else str(self.origin["env"])

    @property
    def environment(self) -> type[EnvSection] | None:
        """The section class of the environment's kind; None if its package is not here."""
        return section_class(self.kind) if self.kind in known_kinds() else None

    def _read(self, name: str, kind: type[Any]) -> list[Any]:
        path = self.path / name
        return jsonl.read(provenance.checked(path), kind) if path.is_file() else []
