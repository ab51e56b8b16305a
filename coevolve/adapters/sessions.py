"""What all adapters share: the tasks of an environment by split, and sessions that play them step by step."""

import contextlib
import logging
import queue
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import SupportsIndex

from coevolve.config.restriction import as_dict, digest
from coevolve.config.suite import quirks
from coevolve.envs.base import Env, EnvError, Setup
from coevolve.envs.registry import domain
from coevolve.envs.workers import environments
from coevolve.errors import UserError, brief, suggestion
from coevolve.pipeline import in_process
from coevolve.pipeline.plan import Plan
from coevolve.records.episodes import Task
from coevolve.settings.yaml_files import read_yaml
from coevolve.shipped import shipped_file

_log = logging.getLogger(__name__)

#: Folder of what environments prepare for adapters.
ROOT = Path("results/adapters")
#: How often `Session.reset` repeats a start that failed.
RETRIES = 3


@dataclass(frozen=True)
class SessionStep:
    """The result of a turn. `reward` is the change of the episode's reward, so that the sum of all is `total`.

    `done`: the environment ended the episode; `truncated`: the step limit did. `action` is what was executed of the
    turn's text, None if it holds no action.
    """

    observation: str
    reward: float
    total: float
    done: bool
    truncated: bool
    action: str | None


def tasks_of(tasks: Mapping[str, Sequence[Task]], split: str) -> Sequence[Task]:
    """The tasks of a split; raises `UserError` for an unknown one."""
    if not isinstance(split, str) or split not in tasks:
        hint = suggestion(str(split), tasks) or f"; it has {', '.join(tasks)}."
        raise UserError(f"no split `{split}`{hint}")
    return tasks[split]


class Session:
    """One episode at a time in one environment: the loop of `coevolve.rollout` from the other side."""

    def __init__(self, env: Env, tasks: Mapping[str, Sequence[Task]]) -> None:
        self.env, self.tasks = env, tasks
        self.task: Task | None = None
        self.turns, self.total = 0, 0.0

    def reset(self, split: str, index: int) -> str:
        """Starts a task; returns the first observation.

        A start that fails is repeated; raises `EnvError` if it fails once more than `RETRIES` times, and `UserError`
        for an unknown split or index.
        """
        tasks = tasks_of(self.tasks, split)
        if not isinstance(index, SupportsIndex) or isinstance(index, bool) or index not in range(len(tasks)):
            raise UserError(f"split `{split}` has the tasks 0 to {len(tasks) - 1}, not {brief(repr(index))}.")
        self.task, self.turns, self.total = tasks[index], 0, 0.0
        for attempt in range(1, RETRIES + 1):
            try:
                return self.env.start(self.task)
            except EnvError as error:
                _log.warning("%s, attempt %d: %s", self.task.task_id, attempt, error)
        return self.env.start(self.task)

    def step(self, text: str) -> SessionStep:
        """Plays a turn, the whole text of a policy.

        Raises `UserError` before the first `reset`, and `EnvError` if the environment fails, as when its process ends:
        the episode is lost, and `reset` starts another one.
        """
        if self.task is None:
            raise UserError("no episode is running; call `reset` first.")
        action = self.env.parse(text)
        result = self.env.step(action)
        reward, self.total, self.turns = result.reward - self.total, result.reward, self.turns + 1
        truncated = not result.done and self.turns >= self.env.step_limit(self.task)
        return SessionStep(result.observation, reward, self.total, result.done, truncated, action)


class SessionPool:
    """Sessions for several episodes at once; `acquire` waits for a free one. `identity` is that of the environments."""

    def __init__(self, envs: Sequence[Env], tasks: Mapping[str, Sequence[Task]]) -> None:
        self.tasks, self.identity, self.size = tasks, envs[0].identity, len(envs)
        self._free: queue.SimpleQueue[Session] = queue.SimpleQueue()
        for env in envs:
            self._free.put(Session(env, tasks))

    def acquire(self, seconds: float | None = None) -> Session:
        """A session that nobody else has; raises `EnvError` if there is none within `seconds`."""
        try:
            return self._free.get(timeout=seconds)
        except queue.Empty:
            raise EnvError(f"all {self.size} sessions are in use; try again later") from None

    def release(self, session: Session) -> None:
        """Gives a session back."""
        self._free.put(session)


@contextlib.contextmanager
def open_sessions(
    env: str, n: int = 1, *, suite: str | None = None, overrides: Sequence[str] = (), root: Path = ROOT
) -> Iterator[SessionPool]:
    """`n` sessions of an environment, with its tasks by split; arguments are those of `prepare_environment`."""
    setup, tasks = prepare_environment(env, suite=suite, overrides=overrides, root=root)
    with environments(setup, n) as envs:
        yield SessionPool(envs, tasks)


def prepare_environment(
    env: str, *, suite: str | None = None, overrides: Sequence[str] = (), root: Path = ROOT
) -> tuple[Setup, dict[str, Sequence[Task]]]:
    """An environment's setup, and its tasks by split: `train` (fine-tuning and exploration), and those of evaluation.

    `env` is the name of a file in `configs/envs`, or with `suite` one of its environments. Its
    files are fetched, and what it prepares is made, once, below `root`.
    """
    model = read_yaml(shipped_file(Path("configs/models/tiny.yaml")))["models"]["tiny"]
    suite_of_env, name = in_process.single_environment(env, suite, overrides, model, seed=0)
    suite_of_env = suite_of_env.model_copy(update={"suite": f"{name}_{digest(as_dict(suite_of_env))}"})
    if suite_of_env.envs[name].single_message:
        raise UserError(f"envs.{name}.prompt: trainers read conversations, not one message a step; set it to null.")
    config, plan = suite_of_env.envs[name], Plan(suite_of_env, root=root.as_posix())
    shared = plan.paper.prepared(name)
    in_process.make(plan, [*config.data_files.values(), *config.play_files.values(), *shared.values()], threads=1)
    prepared = Path(shared["prepared"]).parent.resolve() if shared else None
    setup = Setup(config, f"envs.{name}", suite_of_env.protocol, quirks(suite_of_env), prepared)
    selected = domain(config).select(setup)
    evaluated = {split: [t for t in selected.evaluate if t.split == split] for split in config.splits}
    return setup, {"train": selected.training, **evaluated}
