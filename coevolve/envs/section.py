"""The packages of environments by kind, of this distribution and of others.

An environment of kind `K` is the package `coevolve.envs.K`, or the package that an installed distribution names as its
entry point `K` of the group `coevolve.envs`. Its section is the subclass of `EnvSection` in the package's module
`config`. The module is imported by name when a suite first names the kind, so the code digest of a job covers the
sections of its own environments and no others.
"""

import functools
import importlib
import importlib.util
import json
import pkgutil
from collections.abc import Iterable, Sequence
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self
from urllib.parse import urlsplit
from urllib.request import url2pathname

from pydantic import (
    BaseModel,
    Field,
    ModelWrapValidatorHandler,
    SerializeAsAny,
    ValidationError,
    WrapValidator,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from coevolve.errors import UserError, suggestion
from coevolve.settings.protocol import Protocol
from coevolve.settings.section import SENTENCE, Positive, Rate, SourceFile, Strict, UnitInterval


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


class ScriptedOrFile(Strict):
    """The source of expert trajectories: a scripted expert of the kit (`format: scripted`), or a `file`."""

    format: str
    file: SourceFile | None = None
    min_reward: UnitInterval

    @model_validator(mode="after")
    def _file_unless_scripted(self) -> Self:
        if (self.file is None) != (self.format == "scripted"):
            raise ValueError(f"format `{self.format}` {'takes no' if self.file else 'needs a'} `file`")
        return self


class ExpectedEpisodes(Strict):
    """The mean `turns` and `tokens` of an episode, and the mean `action_tokens` of an action."""

    turns: Rate
    tokens: Rate
    action_tokens: Rate


class Expected(ExpectedEpisodes):
    """Estimates for `coevolve plan`; no result depends on them.

    `experts`, `explore`, `evaluate`: numbers of expert trajectories, explored tasks and evaluated tasks. `failures`:
    share of rollouts that fail. `expert_pair_share`: of rollouts that are paired with an expert; None: `failures`. It
    is less where tasks have no expert, or where one earns no more than a rollout. `turn_seconds`: wall time of one
    step of the environment while other episodes run beside it. `untrained`: means of an untrained policy's episodes,
    for evaluations only; None: the same as above.
    """

    experts: Positive
    explore: Positive
    evaluate: Positive
    failures: UnitInterval
    expert_pair_share: UnitInterval | None = None
    turn_seconds: Rate
    untrained: ExpectedEpisodes | None = None


class EnvSection(Strict):
    """The keys that every environment's section has.

    `kind` names the package, `label` stands in tables, `splits` are the evaluation splits. `workers`
    environments are open, in `processes` worker processes (0: in the job's own process, or in one for a package that is
    not of the kit); the episodes in flight are at most as many, and fewer if the engine's cache holds fewer. A worker
    process is killed and replaced when a call takes longer than `step_seconds`, and its episodes are restarted. The
    three change no result and are excluded from digests. `protocol`: the only one that these settings are for.
    """

    #: What the licence of tasks and texts covers and does not, a sentence; and its identifier on the Hugging Face hub,
    #: empty unless one licence covers them all.
    licence: ClassVar[str] = "The licence of this environment's texts is not stated."
    licence_id: ClassVar[str] = ""

    @classmethod
    def variant(cls, raw: Any) -> type[BaseModel]:
        """The section class of a kind."""
        return section_class(raw["kind"]) if cls is EnvSection and isinstance(raw, dict) and "kind" in raw else cls

    kind: str
    label: str
    splits: Sequence[str]
    workers: Positive = Field(exclude=True)
    processes: Annotated[int, Field(ge=0)] = Field(0, exclude=True)
    step_seconds: Rate = Field(600.0, exclude=True)
    expected: Expected | None = None
    protocol: Protocol | None = None

    @field_validator("splits")
    @classmethod
    def _some_split(cls, splits: Sequence[str]) -> Sequence[str]:
        if not splits:
            raise ValueError("list at least one split, on which policies are evaluated")
        return splits

    @property
    def prepared(self) -> bool:
        """Whether the stage `prepare` makes files that all jobs of the environment share."""
        return False

    @property
    def needs_actions(self) -> bool:
        """Whether a turn without an action is a mistake."""
        return True

    @property
    def single_message(self) -> bool:
        """Whether a policy sees the last observation alone, instead of the conversation; nothing trains on that."""
        return False

    @property
    def note(self) -> str:
        """A remark printed with every result, for example that a split is not the paper's; empty if there is none."""
        return ""

    def other_version(self, identity: str) -> str:
        """A sentence under tables if the committed results have another version than `identity`; else empty."""
        return ""

    @staticmethod
    def is_refused(before: str, action: str | None, observation: str) -> bool:
        """Whether an action was not executed, by the observations `before` and after it."""
        return False

    @property
    def data_files(self) -> dict[str, str]:
        """Paths of the files that the task lists and expert trajectories are made from, by name."""
        return {}

    @property
    def play_files(self) -> dict[str, str]:
        """Paths of the files that an episode reads, by name."""
        return {}


#: The package whose subpackages are the environments, and the group of entry points that name others.
ENVIRONMENTS = "coevolve.envs"


def module_name(kind: str, name: str) -> str:
    """The full name of a module in an environment's package; raises `UserError` if several packages have the kind."""
    return f"{_package(kind)}.{name}"


@functools.cache
def has_module(kind: str, name: str) -> bool:
    """Whether an environment's package has the module; False for a kind without a package."""
    try:
        return kind in known_kinds() and importlib.util.find_spec(module_name(kind, name)) is not None
    except ImportError:  # an entry point that names no package
        return False


def known_kinds() -> list[str]:
    """The kinds of environments in alphabetical order: the packages under `coevolve.envs`, and the entry points."""
    return sorted({*_built_in_kinds(), *_entry_points()})


def distributions(kinds: Iterable[str]) -> list[str]:
    """Names of the installed distributions, other than this one, that the environments come from."""
    points = (point for kind in kinds for point in _entry_points().get(kind, ()))
    return sorted({point.dist.name for point in points if point.dist})


def section_class(kind: str) -> type[EnvSection]:
    """The section class of a kind; raises `UserError` unless its package has a module `config` with one."""
    name = module_name(kind, "config")
    try:
        module = importlib.import_module(name)
    except ImportError as error:
        raise UserError(f"environment `{kind}`: cannot import `{name}` ({error}); {_fix(kind)}") from None
    sections = [
        value
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, EnvSection) and value.__module__ == module.__name__
    ]
    if len(sections) != 1:
        count = f"{len(sections)} subclasses of `EnvSection`"
        raise UserError(f"environment `{kind}`: {count} in the module `{name}`, it must have one; {_fix(kind)}")
    return sections[0]


def _fix(kind: str) -> str:
    """What to do about a package that cannot be used."""
    names = ", ".join(distributions([kind]))
    return f"correct the package or remove it (`pip uninstall {names}`)." if names else "correct the package."


def _package(kind: str) -> str:
    """The package of a kind, of this distribution unless an entry point names another."""
    points = _entry_points().get(kind, ())
    packages = {*(point.value for point in points), *([f"{ENVIRONMENTS}.{kind}"] if kind in _built_in_kinds() else [])}
    if len(packages) > 1:
        raise UserError(f"environment `{kind}`: several packages have it ({', '.join(sorted(packages))}); {_fix(kind)}")
    return packages.pop() if packages else f"{ENVIRONMENTS}.{kind}"


@functools.cache
def _built_in_kinds() -> frozenset[str]:
    packages = pkgutil.iter_modules(importlib.import_module(ENVIRONMENTS).__path__)
    return frozenset(package.name for package in packages if package.ispkg)


@functools.cache
def _entry_points() -> dict[str, tuple[EntryPoint, ...]]:
    """The installed entry points of the group by name."""
    points = entry_points(group=ENVIRONMENTS)
    return {point.name: tuple(points.select(name=point.name)) for point in points}


def _require_current(point: EntryPoint) -> None:
    """Raises `UserError` if pip copied the package from a folder in which it was edited since: no job would rerun."""
    origin = json.loads((point.dist and point.dist.read_text("direct_url.json")) or "{}")
    if not point.dist or "dir_info" not in origin or origin["dir_info"].get("editable"):
        return
    folder = Path(url2pathname(urlsplit(origin["url"]).path))
    for file in point.dist.files or ():
        edited = next((path for path in (folder / file, folder / "src" / file) if path.is_file()), None)
        if file.suffix == ".py" and edited and edited.read_bytes() != file.read_binary():
            problem = f"{edited} was edited after pip copied it, and the copy is what runs"
            raise UserError(f"environment `{point.name}`: {problem}; run `pip install --editable {folder}`.")


def _by_kind(raw: Any, handler: ModelWrapValidatorHandler[EnvSection]) -> EnvSection:
    """Validates `raw` as the section class of its kind."""
    kind = raw.get("kind") if isinstance(raw, dict) else None
    if not isinstance(kind, str):
        return handler(raw)
    if kind not in known_kinds():
        hint = suggestion(kind, known_kinds()) or f"; known are {', '.join(known_kinds())}"
        # Pydantic substitutes the braces itself.
        error = PydanticCustomError(SENTENCE, "no environment `{kind}`{hint}", {"kind": kind, "hint": hint})
        raise ValidationError.from_exception_data("EnvSection", [{"type": error, "loc": ("kind",), "input": kind}])
    for point in _entry_points().get(kind, ()):
        _require_current(point)
    return section_class(kind).model_validate(raw)


#: A section of any kind: validated and serialised as the section class that its `kind` names.
EnvConfig = Annotated[EnvSection, SerializeAsAny(), WrapValidator(_by_kind)]
