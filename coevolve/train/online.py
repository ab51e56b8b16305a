"""What PPO and GRPO share: a policy that plays while it is trained, and its episodes as rows of tokens."""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import peft
import torch
from accelerate.utils import is_peft_model  # type: ignore[import-untyped]

from coevolve import seeds
from coevolve.chat.chat_template import Renderer
from coevolve.config.sections import LoraConfig
from coevolve.envs.base import Env
from coevolve.errors import UserError
from coevolve.policies import loading
from coevolve.policies.context import LongPrompt
from coevolve.policies.hf import TransformersPolicy
from coevolve.rollout import PromptBuilder, rollout
from coevolve.storage import jsonl, policy_dir
from coevolve.train import loop, policy_io
from coevolve.train.rows import Row
from coevolve.train.train_report import TrainReport
from coevolve.types import PolicyRef, Protocol, Sampling, StopReason, Task, Trajectory


@dataclass(frozen=True)
class World:
    """Where a policy is trained online: the tasks, the environments that play them side by side, and the rules.

    The policy samples at temperature 1 from all of its tokens: choice, for only then are the probabilities that the
    objectives reckon with those of the tokens' making.
    """

    tasks: Sequence[Task]
    envs: Sequence[Env]
    prompt: PromptBuilder
    protocol: Protocol
    long_prompt: LongPrompt
    max_new_tokens: int
    retries: int

    @property
    def sampling(self) -> Sampling:
        """How the policy explores."""
        return Sampling(temperature=1.0, top_p=1.0, max_new_tokens=self.max_new_tokens)


@dataclass(frozen=True)
class Experience(Row):
    """A played episode as tokens: those the policy sampled are those it learns from. `prompt` counts tokens before the
    first action; `reward` is r(u, e). `truncated`: it was longer than the context, and its end is missing.
    """

    prompt: int
    reward: float
    truncated: bool


class Explorer:
    """Plays tasks with a model as it is at the moment. `context` None: as many tokens as the model can read.

    Each step's episodes have a journal in `work`: a killed training takes those of the step it was in from there.
    """

    def __init__(self, world: World, start: Path, *, context: int | None, seed: int, work: Path) -> None:
        self.context = context or policy_io.context_of(start)
        self._world, self._seed, self._work = world, seed, work
        self._before, self._tokenizer = policy_dir.describe(start), loading.load_tokenizer(start)
        self._renderer = Renderer(self._tokenizer)

    def play(self, model: Any, step: int, tasks: Sequence[Task]) -> list[Trajectory]:
        """One episode of each of `tasks`, in their order; a task that stands there twice is played twice."""
        world = self._world
        ref = PolicyRef(name=f"{self._before.name}@{step}", sha256=_digest(model), base=self._before.base)
        journal = jsonl.Journal(self._journal(step), Trajectory)
        with evaluating(model), contextlib.closing(journal):
            policy = TransformersPolicy(
                causal(model),
                self._tokenizer,
                ref,
                slots=len(world.envs),
                context=self.context,
                long_prompt=world.long_prompt,
            )
            return rollout(
                tasks,
                policy,
                world.envs[: policy.slots],
                samples=1,
                sampling=world.sampling,
                seed=seeds.derive(self._seed, "explore", step),
                agent="target",
                protocol=world.protocol,
                retries=world.retries,
                journal=journal,
                prompt=world.prompt,
            )

    def experience(self, episode: Trajectory) -> Experience | None:
        """The episode as a row of at most `context` tokens; None if no action is in it, or its environment failed."""
        if episode.stop is StopReason.ENV_ERROR or not episode.turns:
            return None
        ids = [turn.token_ids for turn in episode.turns]
        rendered = self._renderer.render(episode.prompt, episode.completion, ids)
        row = Experience(
            rendered.input_ids[: self.context],
            rendered.action_mask[: self.context],
            prompt=len(self._renderer.prompt_ids(episode.prompt)),
            reward=episode.reward,
            truncated=len(rendered.input_ids) > self.context,
        )
        return row if row.learnable else None

    def report(
        self, history: Sequence[dict[str, float]], out: Path, *, steps: int, passes: int, seconds: float
    ) -> TrainReport:
        """What the training's episodes, now written to `out`, and its `history` come to."""
        episodes = [episode for step in range(steps) for episode in self._played(step)]
        jsonl.write(out / "episodes.jsonl", episodes)
        rows = [self.experience(episode) for episode in episodes]
        learned = [row for row in rows if row is not None]
        return TrainReport(
            rows=len(learned),
            truncated=sum(row.truncated for row in learned),
            dropped=len(rows) - len(learned),
            steps=len(history),
            tokens=passes * sum(row.tokens for row in learned),
            first_loss=history[0]["loss"] if history else None,
            last_loss=history[-1]["loss"] if history else None,
            history=tuple(history),
            kinds={},
            note="",
            seconds=seconds,
        )

    @property
    def end_of_turn(self) -> int:
        """The id that ends an action."""
        return self._renderer.end_of_turn

    def _journal(self, step: int) -> Path:
        return self._work / f"episodes-{step}.jsonl"

    def _played(self, step: int) -> list[Trajectory]:
        """A step's episodes, by task and sample; its journal has them in the order in which they ended."""
        return sorted(jsonl.read(self._journal(step), Trajectory), key=lambda e: (e.task.task_id, e.sample))


def visits(tasks: Sequence[Task], per_step: int, epochs: float, seed: int) -> list[list[Task]]:
    """The tasks of each step, `per_step` a step: permutation after permutation, until all had at least `epochs` visits.

    The last step is filled up from one more permutation. Raises `UserError` without a task.
    """
    if not tasks:
        raise UserError("there is no task to explore; raise `explore` in the environment's `tasks`.")
    steps = math.ceil(len(tasks) * epochs / per_step)
    stream: list[Task] = []
    for epoch in range(math.ceil(steps * per_step / len(tasks))):
        stream += [tasks[i] for i in seeds.generator(seed, "visits", epoch).permutation(len(tasks))]
    return [stream[step * per_step : (step + 1) * per_step] for step in range(steps)]


def load(start: Path, lora: LoraConfig | None, seed: int) -> Any:
    """The policy in `start`, ready to be trained: in float32, with fresh adapters if there are to be any."""
    model = policy_io.load(start)
    if lora is None:
        return model
    with seeded(seed, "adapters"):
        return peft.get_peft_model(model, loop.peft_config(lora))


def causal(model: Any) -> Any:
    """The causal language model itself, which holds its adapters if there are any."""
    return model.get_base_model() if is_peft_model(model) else model


@contextlib.contextmanager
def evaluating(model: Any) -> Iterator[None]:
    """The model without dropout for as long as the block runs."""
    before = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(before)


@contextlib.contextmanager
def seeded(seed: int, *names: str | int) -> Iterator[None]:
    """Torch's own randomness (dropout, fresh adapters) derived from `seed`, and untouched outside the block."""
    devices = [torch.cuda.current_device()] if torch.cuda.is_available() else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(seeds.derive(seed, *names))
        yield


def require_one_device(method: str) -> None:
    """Raises `UserError` under a launcher of several processes: the built-in policy plays with whole weights."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise UserError(f"{method} trains on one device; give its job one GPU, and `lora` for a model that fills it.")


def _digest(model: Any) -> str:
    """sha256 over the weights: the name of a policy that is in no directory."""
    digest = hashlib.sha256()
    for name, weight in model.state_dict().items():
        digest.update(name.encode() + weight.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()
