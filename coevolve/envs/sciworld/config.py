"""ScienceWorld's section of a suite."""

from typing import ClassVar, Literal

from coevolve.envs.section import EnvSection, TaskSelection
from coevolve.settings.section import Positive, Rate, SourceFile, UnitInterval


class SciWorldSelection(TaskSelection):
    """`lists`: ETO's task lists, or the simulator's official splits.

    `shuffle`: the seed of a random order of each list; None keeps the list's order, in which thirty variations of
    `find-animal` after another have the same animals, and other boxes to move them to.
    """

    lists: Literal["eto", "official"]
    shuffle: int | None = None


class ExpertSource(SourceFile):
    """Where expert trajectories come from: `gold` (the kit's own trajectory file) or `eto` (ETO's published format)."""

    format: Literal["gold", "eto"]
    min_reward: UnitInterval


class SciWorldConfig(EnvSection):
    """ScienceWorld. `simplification`: the simulator's own string; sixteen of the `workers` share a JVM.

    `memory_mb` caps the heap of a JVM; one that is silent for `read_timeout` seconds has failed.
    """

    licence: ClassVar[str] = "ScienceWorld: Apache-2.0, code, tasks and texts."
    licence_id: ClassVar[str] = "apache-2.0"
    splits: list[Literal["seen", "unseen", "development"]]
    tasks: SciWorldSelection
    experts: ExpertSource
    simplification: str
    step_limit: Positive | None
    memory_mb: Positive
    read_timeout: Rate

    @staticmethod
    def is_refused(before: str, action: str | None, observation: str) -> bool:
        """Whether the simulator did not understand the action."""
        return observation.startswith("No known action")

    @property
    def data_files(self) -> dict[str, str]:
        """Files the task lists and experts are made from, by name."""
        return {"experts": self.experts.path}
