"""InterCodeSQL's section of a suite."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import model_validator

from coevolve.envs.section import EnvSection, ScriptedOrFile, TaskSelection
from coevolve.settings.section import Positive, Rate, SourceFile, Strict

#: The server of the committed results. Another version may answer a few statements otherwise.
COMMITTED_SERVER = "MySQL 9.7.4"


class SqlItems(Strict):
    """Questions with their gold statements.

    `templates`: made from `databases` (None: all), `per_kind` of each kind, for tiny policies. `dev`: Spider's
    development items as InterCode ships them, training and evaluation divided by database. `ipr`: IPR's lists.
    """

    source: Literal["templates", "dev", "ipr"]
    dev: SourceFile | None = None
    train: SourceFile | None = None
    test: SourceFile | None = None
    per_kind: Positive | None = None
    databases: list[str] | None = None

    @model_validator(mode="after")
    def _source_has_what_it_reads(self) -> SqlItems:
        needed = {"templates": {"per_kind"}, "dev": {"dev"}, "ipr": {"train", "test"}}[self.source]
        read = needed | ({"databases"} if self.source == "templates" else set())
        given = {name for name, value in self if name != "source" and value is not None}
        for verb, names in (("needs", needed - given), ("takes no", given - read)):
            if names:
                raise ValueError(f"source `{self.source}` {verb} `{min(names)}`")
        return self


class SqlExperts(ScriptedOrFile):
    """Where expert trajectories come from.

    `scripted`: the kit looks at the tables, then asks. `recorded`: GPT-4's own runs of 2023 that earned 1.0, in
    InterCode's format. `eto`: IPR's published file, in ETO's format.
    """

    format: Literal["scripted", "recorded", "eto"]


class SqlServerConfig(Strict):
    """The database server: `binary` if given, else a `mysqld` on PATH, else the kit's own package.

    A statement runs at most `statement_seconds` and brings at most `rows`. The server is restarted when its resident
    memory passes `memory_mb` MiB, or its temporary files `temporary_mb` MiB; one such file holds at most a quarter of
    that.
    """

    binary: str | None
    statement_seconds: Rate
    rows: Positive
    memory_mb: Positive
    temporary_mb: Positive


class InterCodeSqlConfig(EnvSection):
    """InterCodeSQL: questions over the twenty databases of `dump`, answered by a real server in `workers` sessions.

    `reward`: `continuous` as upstream computes it, or `binary` (1 for an exact answer, else 0), as in appendix A.
    Observations are cut to `observation_length` characters.
    """

    licence: ClassVar[str] = (
        "InterCodeSQL: InterCode is MIT; questions and databases are Spider's, CC BY-SA 4.0, which asks for "
        "attribution and the same licence."
    )
    licence_id: ClassVar[str] = "cc-by-sa-4.0"
    splits: list[Literal["test", "development"]]
    tasks: TaskSelection
    items: SqlItems
    experts: SqlExperts
    dump: SourceFile
    server: SqlServerConfig
    reward: Literal["continuous", "binary"]
    observation_length: Positive
    step_limit: Positive

    @property
    def note(self) -> str:
        """How the items differ from IPR's."""
        return {
            "templates": "InterCodeSQL: template questions, not IPR's items.",
            "dev": "InterCodeSQL: Spider's dev items, 815 to train on and 200 of other databases, not IPR's split.",
            "ipr": "",
        }[self.items.source]

    def other_version(self, identity: str) -> str:
        """A sentence if the server is not that of the committed results; the identity begins with its version."""
        server = identity.partition(" (")[0]
        differs = server and server != COMMITTED_SERVER
        return f"InterCodeSQL: {server}; the committed results have {COMMITTED_SERVER}." if differs else ""

    @staticmethod
    def is_refused(before: str, action: str | None, observation: str) -> bool:
        """Whether the server answered the statement with an error."""
        return observation.startswith("Error executing query")

    @property
    def data_files(self) -> dict[str, str]:
        """Files the task lists and experts are made from, by name."""
        return self.play_files | ({"experts": self.experts.file.path} if self.experts.file else {})

    @property
    def play_files(self) -> dict[str, str]:
        """Files an episode needs, by name: the items are there for the fingerprint of their gold rows."""
        items = self.items
        sources = {"dump": self.dump, "dev": items.dev, "train": items.train, "test": items.test}
        return {name: file.path for name, file in sources.items() if file}
