"""The sections of the environments, one class a kind."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from coevolve.config.sections import Positive, Rate, SourceFile, Strict
from coevolve.types import UnitInterval


class TaskSelection(Strict):
    """Which tasks of an environment's lists a suite uses, in the lists' order.

    `kinds` None: all task types. `sft`, `explore` and `evaluate` bound the number of tasks per task type (None: all).
    `explore_sft`: the tasks fine-tuned on are explored too (what the paper does); otherwise exploration takes others.
    """

    kinds: list[str] | None
    sft: Positive | None
    explore: Positive | None
    evaluate: Positive | None
    explore_sft: bool


class SciWorldSelection(TaskSelection):
    """`lists`: ETO's task lists, or the simulator's official splits."""

    lists: Literal["eto", "official"]


class ExpertSource(SourceFile):
    """Where expert trajectories come from: `gold` (the kit's own trajectory file) or `eto` (ETO's published format)."""

    format: Literal["gold", "eto"]
    min_reward: UnitInterval


class Expected(Strict):
    """What `coevolve plan` reckons with before anything has run; decides nothing.

    Numbers of expert trajectories, explored and evaluated tasks; turns of an episode, tokens of a whole one and of one
    action; the share of rollouts that fail.
    """

    experts: Positive
    explore: Positive
    evaluate: Positive
    turns: Rate
    tokens: Rate
    action_tokens: Rate
    failures: UnitInterval


class EnvSection(Strict):
    """What every environment's section has: its kind, its name in tables, and how many episodes run at once.

    Their environments live in so many `processes` (0: in the job's own). `workers` and `processes` decide no number and
    stay out of digests: a machine with less memory reruns nothing.
    """

    kind: str
    label: str
    workers: Positive = Field(exclude=True)
    processes: Annotated[int, Field(ge=0)] = Field(0, exclude=True)
    expected: Expected | None = None

    @property
    def module(self) -> str:
        """The module that stands behind this kind (`coevolve.envs.registry`)."""
        return f"coevolve.envs.{self.kind}.domain"

    @property
    def prepared(self) -> bool:
        """Whether jobs share something that the stage `prepare` makes once."""
        return False

    @property
    def note(self) -> str:
        """What has to be said beside every result, such as that a split is not the paper's; else empty."""
        return ""


class SciWorldConfig(EnvSection):
    """ScienceWorld. `simplification`: the simulator's own string; `workers` episodes at once, sixteen to a JVM.

    `memory_mb` caps the heap of a JVM; one that is silent for `read_timeout` seconds has failed.
    """

    kind: Literal["sciworld"]
    splits: list[Literal["seen", "unseen"]]
    tasks: SciWorldSelection
    experts: ExpertSource
    simplification: str
    step_limit: Positive | None
    memory_mb: Positive
    read_timeout: Rate

    @property
    def data_files(self) -> dict[str, str]:
        """Files the task lists and experts are made from, by name."""
        return {"experts": self.experts.path}

    @property
    def play_files(self) -> dict[str, str]:
        """Files an episode needs, by name."""
        return {}


#: Servers that speak MySQL's language; what MariaDB says differs from what was recorded in 2023.
Flavour = Literal["mysql", "mariadb"]


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


class ScriptOrFile(Strict):
    """Expert trajectories that a script of the kit plays (`format` scripted), or those of a `file`."""

    format: str
    file: SourceFile | None = None
    min_reward: UnitInterval

    @model_validator(mode="after")
    def _file_where_one_is_read(self) -> Self:
        if (self.file is None) != (self.format == "scripted"):
            raise ValueError(f"format `{self.format}` {'takes no' if self.file else 'needs a'} `file`")
        return self


class SqlExperts(ScriptOrFile):
    """Where expert trajectories come from.

    `scripted`: the kit looks at the tables, then asks. `recorded`: GPT-4's own runs of 2023 that earned 1.0, in
    InterCode's format. `eto`: IPR's published file, in ETO's format.
    """

    format: Literal["scripted", "recorded", "eto"]


class SqlServerConfig(Strict):
    """The database server: `address` if given, else `binary`, else a `mysqld` on PATH, else the kit's own package.

    `address`: `user@host:port` or `user@/path/to/socket`, password in COEVOLVE_SQL_PASSWORD; the server then holds the
    dump already. `engine`: which flavours are taken, the first found wins. A statement runs at most
    `statement_seconds` and brings at most `rows`.
    """

    address: str | None
    binary: str | None
    engine: Annotated[list[Flavour], Field(min_length=1)]
    statement_seconds: Rate
    rows: Positive


class InterCodeSqlConfig(EnvSection):
    """InterCodeSQL: questions over the twenty databases of `dump`, asked of a real server by `workers` sessions.

    `reward`: `continuous` as upstream computes it, or `binary` (1 for an exact answer, else 0), as appendix A says.
    Observations are cut to `observation_length` characters.
    """

    kind: Literal["intercode_sql"]
    splits: list[Literal["test"]]
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


class WebShopSelection(TaskSelection):
    """`lists`: ETO's lists of goal numbers, or `parts`: the goals in order, the first for evaluation.

    With `parts` the first `test` goals are evaluated, as upstream does with its first 500.
    """

    lists: Literal["eto", "parts"]
    test: Positive | None = None

    @model_validator(mode="after")
    def _parts_have_a_size(self) -> WebShopSelection:
        if (self.lists == "parts") != (self.test is not None):
            raise ValueError("`test` goes with lists `parts`, and only with them")
        return self


class CatalogueConfig(Strict):
    """The shop's products: `generated` (so many, in invented words) or upstream's files, of which `limit` are used."""

    generated: Positive | None = None
    products: SourceFile | None = None
    attributes: SourceFile | None = None
    instructions: SourceFile | None = None
    limit: Positive | None = None

    @property
    def files(self) -> dict[str, SourceFile]:
        """Upstream's files by name; none for a generated catalogue."""
        found = {"products": self.products, "attributes": self.attributes, "instructions": self.instructions}
        return {name: file for name, file in found.items() if file}

    @model_validator(mode="after")
    def _generated_or_all_files(self) -> CatalogueConfig:
        if len(self.files) != (0 if self.generated else 3):
            raise ValueError("give `generated`, or all of `products`, `attributes` and `instructions`")
        return self


class WebShopExperts(ScriptOrFile):
    """Expert trajectories: `scripted` (searches, reads the pages and buys) or `eto` (ETO's published file)."""

    format: Literal["scripted", "eto"]


class WebShopConfig(EnvSection):
    """WebShop, the kit's own implementation: text mode, upstream's goals and rewards.

    `goals`: the human ones, or synthetic ones. Prices of products sold in a range, and price limits, are drawn from
    `seed` once, unless the protocol redraws them in each job. `tagger` finds the nouns of titles for the reward.
    Pages are cut to `observation_length` characters (None: whole, as upstream).
    """

    kind: Literal["webshop"]
    splits: list[Literal["test"]]
    tasks: WebShopSelection
    experts: WebShopExperts
    catalogue: CatalogueConfig
    goals: Literal["human", "synthetic"]
    seed: int
    tagger: Literal["spacy", "stand_in", "approximate"]
    observation_length: Positive | None
    step_limit: Positive

    @property
    def prepared(self) -> bool:
        """The shop, its search engine and the list of goals are made once."""
        return True

    @property
    def note(self) -> str:
        """That the shop is an invented one, or its tagger an approximate one."""
        remarks = ["an invented catalogue"] if self.catalogue.generated else []
        remarks += [] if self.tagger == "spacy" else [f"noun tagger `{self.tagger}`, not upstream's"]
        return f"WebShop: {', '.join(remarks)}; non-comparable." if remarks else ""

    @property
    def data_files(self) -> dict[str, str]:
        """Files the shop, the task lists and the experts are made from, by name."""
        files = self.catalogue.files | ({"experts": self.experts.file} if self.experts.file else {})
        return {name: file.path for name, file in files.items()}

    @property
    def play_files(self) -> dict[str, str]:
        """None: an episode needs only what was prepared."""
        return {}


EnvConfig = Annotated[SciWorldConfig | InterCodeSqlConfig | WebShopConfig, Field(discriminator="kind")]
KINDS: dict[str, type[EnvSection]] = {
    "sciworld": SciWorldConfig,
    "intercode_sql": InterCodeSqlConfig,
    "webshop": WebShopConfig,
}
