"""Episodes of a result executed again in their environment, from the settings in its `provenance.json`."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue
from typing import Any, cast

from coevolve.chat.prompts import without_surrogates
from coevolve.config.recorded import settings_here
from coevolve.config.restriction import digest
from coevolve.envs.base import Env, Setup
from coevolve.envs.registry import Preparing, domain
from coevolve.envs.replay import replay
from coevolve.envs.section import EnvSection, section_class
from coevolve.envs.workers import environments
from coevolve.errors import UserError
from coevolve.pipeline.stages.shard import part
from coevolve.policies.base import Conversation
from coevolve.progress import Progress
from coevolve.records.base import Record
from coevolve.records.episodes import StopReason, Task, Trajectory
from coevolve.records.evaluation import EpisodeNotes
from coevolve.records.provenance import Provenance
from coevolve.settings.protocol import Quirks
from coevolve.settings.validation import validated
from coevolve.settings.yaml_files import Section
from coevolve.storage import files, folders, jsonl, policy_dir, provenance

#: Finds an input of a job by its path in the provenance; None if no file of its sha256 is here.
Locate = Callable[[str], Path | None]
#: Episode, turn (-1: the start; None: the whole), what is compared, what was recorded, and what it is now.
Compared = tuple[str, int | None, str, object, object]
#: So many episodes take seconds, and have no progress.
QUICK = 100


class FileDifference(Record):
    """The first difference of a file: in which episode and turn (-1: its start), and what was recorded and is now."""

    episode: str = ""
    turn: int | None = None
    what: str
    recorded: str = ""
    now: str

    def __str__(self) -> str:
        where = f"episode {self.episode}, " if self.episode else ""
        where += "" if self.turn is None else "start, " if self.turn < 0 else f"turn {self.turn}, "
        return f"{where}{self.what}: recorded {self.recorded[:200]!r}, now {self.now[:200]!r}"


class Environments:
    """The environments of the last settings, open until a result has others; `cache` keeps what is prepared here.

    `given`: this machine's own settings, in place of a record's (`coevolve.config.recorded`).
    """

    def __init__(self, cache: Path, given: Mapping[str, Any]) -> None:
        self.given, self.cache = given, cache
        self.number = 2 * (os.cpu_count() or 1)  # two neighbours share a worker process
        self._stack, self._key, self._free = contextlib.ExitStack(), "", SimpleQueue[Env]()

    def open(self, setup: Setup) -> None:
        """Open those of a setup, unless they are open; raises `UserError` if a program or a file of them is missing."""
        sections = [section.model_dump(mode="json") for section in (setup.config, setup.quirks)]
        if (key := digest([*sections, str(setup.prepared), setup.chance])) != self._key:
            self.close()
            for env in self._stack.enter_context(environments(setup, self.number)):
                self._free.put(env)
            self._key = key

    def close(self) -> None:
        """Close them."""
        self._key, self._free = "", SimpleQueue()
        self._stack.close()

    def compare(self, episodes: Sequence[Trajectory]) -> Iterator[Compared]:
        """What the environments make of the episodes, in their order."""
        progress = Progress("episodes")
        with ThreadPoolExecutor(self.number) as threads:
            for number, compared in enumerate(threads.map(self._replay, episodes), start=1):
                if len(episodes) > QUICK:
                    progress.report(number, len(episodes))
                yield from compared

    def _replay(self, episode: Trajectory) -> list[Compared]:
        """What is compared of an episode, by turn; of what `replay` compares, the differences."""
        name, stop, last, env = _name(episode), episode.stop, len(episode.turns) - 1, self._free.get()
        try:
            different = [(name, each.turn, each.what, each.expected, each.actual) for each in replay(env, episode)]
            parsed = [(name, n, "action", turn.action, env.parse(turn.text)) for n, turn in enumerate(episode.turns)]
            reached = stop is not StopReason.DONE and last + 1 >= env.step_limit(episode.task)
            compared: list[Compared] = [
                (name, -1, "environment", episode.environment, env.identity),
                (name, -1, "reward of no turn", episode.reward * (last < 0), 0.0),
                *parsed,
                *different,
                (name, last, "stop", stop is StopReason.STEP_LIMIT, reached),
            ]
            return sorted(compared, key=lambda each: each[1] or 0)
        finally:
            self._free.put(env)


def execute(
    episodes: Sequence[Trajectory], record: Provenance, locate: Locate, envs: Environments
) -> FileDifference | dict[str, int]:
    """Execute the episodes of a result again; returns the first difference, else counts as `FileCheck` has them.

    Compared are texts, actions, scores, rewards and stop reasons, the task list, and the notes of the provenance; with
    the policy's tokenizer, token ids and full contexts. Raises `UserError` if the environment cannot be opened, and as
    `settings_here`.
    """
    record = record_here(record, envs.given)
    envs.open(_setup(record, locate, envs))
    played = [episode for episode in episodes if episode.stop is not StopReason.ENV_ERROR]
    policy = _policy(record, locate)
    tokens = _of_tokens(played, record, policy) if policy and (policy / "tokenizer.json").is_file() else None
    others = [
        _of_notes(episodes, record),
        _of_list(episodes, record, locate),
        _of_policy(episodes, policy),
        tokens or (),
    ]
    for episode, turn, what, recorded, now in itertools.chain(envs.compare(played), *others):
        if recorded != now:
            return FileDifference(episode=episode, turn=turn, what=what, recorded=str(recorded), now=str(now))
    return {
        "episodes": len(played),
        "turns": sum(len(each.turns) for each in played),
        "context": 0 if tokens else sum(each.stop is StopReason.CONTEXT for each in played),
        "failed": len(episodes) - len(played),
    }


def _of_notes(episodes: Sequence[Trajectory], record: Provenance) -> Iterator[Compared]:
    """The counts that the stage noted."""
    if isinstance(notes := record.notes, EpisodeNotes):
        mean = sum(episode.reward for episode in episodes) / max(1, len(episodes))
        yield "", None, f"number of episodes in {provenance.NAME}", notes.episodes, len(episodes)
        yield "", None, f"stop reasons in {provenance.NAME}", notes.stops, Counter(each.stop for each in episodes)
        yield "", None, f"mean reward in {provenance.NAME}", notes.mean_reward, mean


def _of_list(episodes: Sequence[Trajectory], record: Provenance, locate: Locate) -> Iterator[Compared]:
    """The order, tasks and seed of the episodes of a rollout, an evaluation or a part of one, if its tasks are here."""
    listed = [path for path in record.inputs if path.endswith(".jsonl") and not path.endswith("episodes.jsonl")]
    if not isinstance(record.notes, EpisodeNotes) or len(listed) != 1 or not (path := locate(listed[0])):
        return
    tasks, counts, expected = jsonl.read(path, Task), Counter[str](), list[tuple[Task, int]]()
    if "part" in record.wildcards:
        tasks = part(tasks, *map(int, record.wildcards["part"].split("of")))
    samples = record.config.get("evaluation", {}).get("samples", record.config["rollout"]["k"])
    for task in tasks:
        expected += [(task, counts[task.task_id] + sample) for sample in range(samples)]
        counts[task.task_id] += samples
    names = [f"{task.task_id}#{sample}" for task, sample in expected]
    for name, now in itertools.zip_longest(map(_name, episodes), names, fillvalue="no further episode"):
        yield "", None, "next episode of the task list", name, now
    for episode, (task, _) in zip(episodes, expected, strict=False):
        yield _name(episode), None, "task", episode.task, task
        yield _name(episode), None, "seed", episode.seed, record.seeds["job"]


def _policy(record: Provenance, locate: Locate) -> Path | None:
    """The folder of the policy that played a rollout, an evaluation or a part of one; None if it is not here."""
    policies = [path for name in record.inputs if name.endswith(policy_dir.REF_NAME) if (path := locate(name))]
    return policies[0].parent if len(policies) == 1 and isinstance(record.notes, EpisodeNotes) else None


def _of_policy(episodes: Sequence[Trajectory], policy: Path | None) -> Iterator[Compared]:
    """The policy that the episodes name."""
    ref = policy_dir.read_ref(policy / policy_dir.REF_NAME) if policy else None
    return ((_name(each), None, "policy", each.policy, ref) for each in episodes if ref)


def _of_tokens(episodes: Sequence[Trajectory], record: Provenance, policy: Path) -> Iterator[Compared]:
    """The texts of the token ids, and whether the context was full when it ended an episode."""
    from coevolve.chat.chat_template import Renderer
    from coevolve.policies.context import ContextWindow
    from coevolve.policies.loading import load_tokenizer  # imports torch

    renderer, (model,) = Renderer(load_tokenizer(policy)), record.config["models"].values()
    window = ContextWindow(renderer, model["context"], record.config["protocols"][record.protocol]["long_prompt"])
    single_message = section(record).single_message
    for each in episodes:
        name = _name(each)
        for number, turn in enumerate(each.turns):
            if turn.token_ids:
                yield name, number, "token ids", turn.text, without_surrogates(renderer.decode(turn.token_ids))
        if each.stop is StopReason.CONTEXT and each.sampling:
            whole = Conversation(name, 0, each.prompt, each.turns)
            read = whole.last_message() if single_message else whole
            is_full = window.prompt_ids(read, each.sampling.max_new_tokens) is None
            yield name, len(each.turns), "full context", True, is_full


def quirks(record: Provenance) -> Quirks:
    """The switches of a job's protocol; raises `UserError` if they are of another version of the kit."""
    at = Path(record.result, provenance.NAME)
    return validated(Quirks, at, Section(record.config["protocols"][record.protocol], {}))


def record_here(record: Provenance, given: Mapping[str, Any]) -> Provenance:
    """The provenance with this machine's settings, as all checks of this package read it; raises as `settings_here`."""
    return record.model_copy(update={"config": settings_here(record.config, given)})


def section(record: Provenance) -> EnvSection:
    """The section of a job's environment; `UserError` if it is of another version of the kit."""
    (values,) = record.config["envs"].values()
    at = Path(record.result, provenance.NAME)
    return validated(section_class(values["kind"]), at, Section(values, {}))


def _setup(record: Provenance, locate: Locate, envs: Environments) -> Setup:
    """The environment's arguments from the provenance of a job in it; what it shares is prepared if it is not here."""
    (name,), devices = record.config["envs"], {"workers": envs.number, "processes": envs.number // 2}
    config = section(record).model_copy(update=devices)
    switches = quirks(record)
    chance = record.notes.chance if isinstance(record.notes, EpisodeNotes) else None
    if chance is None and config.kind == "webshop" and switches.webshop_draws == "each_job":
        raise UserError("its prices were drawn from a seed that its provenance lacks, so no page can be made again.")
    setup = Setup(config, f"envs.{name}", record.protocol, switches, chance=chance or 0)
    if not config.prepared:
        return setup
    (meta,) = (path for path in record.inputs if path.endswith("/meta.json"))
    if here := locate(meta):
        return replace(setup, prepared=here.parent)
    folder = envs.cache / f"prepared-{record.inputs[meta][:16]}"
    if not folder.exists():
        with folders.directory(folder) as out:
            cast(Preparing, domain(config)).prepare(setup, out)
    if files.sha256(folder / "meta.json") != record.inputs[meta]:
        raise UserError(f"{folder}: what is prepared here from the same settings is not {meta}; copy that folder here.")
    return replace(setup, prepared=folder)


def _name(episode: Trajectory) -> str:
    return f"{episode.task.task_id}#{episode.sample}"
