"""What PPO and GRPO share: rollouts of the policy in training, and its episodes as token sequences."""

import contextlib
import hashlib
import logging
import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import is_peft_model  # type: ignore[import-untyped]
from torch.distributed.tensor import DTensor

from coevolve import seeds
from coevolve.chat.chat_template import Renderer, TokenizedTrajectory
from coevolve.envs.base import Env
from coevolve.errors import UserError
from coevolve.policies import loading
from coevolve.policies.hf import TransformersPolicy
from coevolve.records.episodes import PolicyRef, Sampling, StopReason, Task, Trajectory
from coevolve.records.training import TrainReport
from coevolve.rollout import PromptBuilder, rollout
from coevolve.settings.protocol import LongPrompt, Protocol
from coevolve.storage import jsonl, policy_dir
from coevolve.train import policy_io, trainer
from coevolve.train.dataset import TrainingSet, steps_of
from coevolve.train.policy_io import TrainingRun

log = logging.getLogger(__name__)

#: In the names of weights whose activations FSDP recomputes.
_RECOMPUTED = "_checkpoint_wrapped_module."


@dataclass(frozen=True)
class OnlineSetup:
    """The setting of online training: tasks, the environments that run in parallel, and the rules of an episode.

    The policy samples at temperature 1 from all tokens (choice): only then are the probabilities in the objectives
    those that the tokens were sampled with. `dtype`: of the weights that sample (:func:`loading.compute_dtype`).
    """

    tasks: Sequence[Task]
    envs: Sequence[Env]
    prompt: PromptBuilder
    protocol: Protocol
    long_prompt: LongPrompt
    max_new_tokens: int
    retries: int
    dtype: str | None = None


@dataclass(frozen=True)
class Experience(TokenizedTrajectory):
    """An episode of the policy in training as token ids; the action tokens are those that the policy sampled.

    `prompt` is the number of tokens before the first action; `reward` is r(u, e). `truncated`: the episode was longer
    than the context, and its end is missing. `logps`: log-probs that the action tokens were sampled with, if kept.
    """

    prompt: int
    reward: float
    truncated: bool
    logps: tuple[float, ...] = ()


class Player:
    """A copy of the policy in training that only plays: whole on every rank, in `dtype`, without dropout.

    Its weights are those of the last `refresh`. It is loaded before the launch divides models over the ranks.
    """

    def __init__(self, run: TrainingRun, dtype: torch.dtype) -> None:
        model = loading.load_model(run.start, dtype)
        if run.lora:
            with seeded(run.seed, "adapters"):  # replaced by the trained ones
                model = policy_io.add_adapters(model, run.lora).eval()
        self._model = model

    @property
    def causal_lm(self) -> Any:
        """The causal language model, without the wrapper of its adapters if it has any."""
        return self._model.get_base_model() if is_peft_model(self._model) else self._model

    @torch.no_grad()
    def refresh(self, model: Any) -> None:
        """Take the trained weights of `model`; where they are divided over ranks, all ranks call this together."""
        copies: Any = None
        for name, weight in _trained(model):
            copies = copies or dict(self._model.to(weight.device).named_parameters())
            copies[name].copy_(weight)


class Explorer:
    """Collects episodes of the model with its current weights; a killed training resumes from each step's journals.

    Of several processes each plays a part of a step's episodes, with a journal of its own.
    """

    def __init__(self, setup: OnlineSetup, run: TrainingRun) -> None:
        self.context = run.longest
        self._setup, self._run = setup, run
        #: The policy that training starts from.
        self.start, self._tokenizer = policy_dir.describe(run.start), loading.load_tokenizer(run.start)
        self._renderer = Renderer(self._tokenizer)
        self.end_of_turn = self._renderer.end_of_turn
        dtype = loading.compute_dtype(setup.dtype)
        self._player = Player(run, dtype)
        #: Whether the probabilities of sampling are not those of the training's passes.
        self.keeps_logps = run.mixed or dtype != torch.float32

    def play(self, model: Any, step: int, tasks: Sequence[Task], part: slice = slice(None)) -> list[Trajectory]:
        """One episode of each of `tasks`, in their order; a repeated task gives one episode per repetition.

        `part`: the episodes among them that this process plays. All ranks call this together.
        """
        setup, sha256 = self._setup, digest(model, self.start.sha256)
        ref = PolicyRef(name=f"{self.start.name}@{step}", sha256=sha256, base=self.start.base)
        self._player.refresh(model)
        policy = TransformersPolicy(
            self._player.causal_lm,
            self._tokenizer,
            ref,
            slots=len(setup.envs),
            context=self.context,
            long_prompt=setup.long_prompt,
            logps=self.keeps_logps,
        )
        with contextlib.closing(self._opened_journal(step, ref)) as journal:
            return rollout(
                tasks,
                policy,
                setup.envs[: policy.slots],
                samples=1,
                sampling=Sampling(temperature=1.0, top_p=1.0, max_new_tokens=setup.max_new_tokens),
                seed=seeds.derive(self._run.seed, "explore", step),
                agent="target",
                protocol=setup.protocol,
                retries=setup.retries,
                journal=journal,
                prompt=setup.prompt,
                part=part,
            )

    def experience(self, episode: Trajectory) -> Experience | None:
        """The episode as at most `context` tokens; None if it has no action in them, or if its environment failed."""
        if episode.stop is StopReason.ENV_ERROR or not episode.turns:
            return None
        ids = [turn.token_ids for turn in episode.turns]
        whole = self._renderer.render(episode.prompt, episode.completion, ids)
        cut = whole.truncate(self.context)
        if not cut.has_targets:
            return None
        return Experience(
            cut.input_ids,
            cut.action_mask,
            prompt=len(self._renderer.prompt_ids(episode.prompt)),
            reward=episode.reward,
            truncated=len(whole) > self.context,
            logps=tuple(logp for turn in episode.turns for logp in turn.logps)[: sum(cut.action_mask)],
        )

    def report(self, history: Sequence[dict[str, float]], *, steps: int, passes: int, seconds: float) -> TrainReport:
        """The report of a training with this `history`; writes the episodes of all steps to `run.out`."""
        episodes = [episode for step in range(steps) for episode in self._episodes(step)]
        jsonl.write(self._run.out / "episodes.jsonl", episodes)
        experiences = [self.experience(episode) for episode in episodes]
        trained = [experience for experience in experiences if experience is not None]
        truncated = sum(experience.truncated for experience in trained)
        training_set = TrainingSet(tuple(trained), truncated, dropped=len(experiences) - len(trained))
        sampled = sum(len(turn.token_ids) for episode in episodes for turn in episode.turns)
        order = [*range(len(trained))] * passes
        return trainer.report(training_set, order, 1, history, seconds=seconds, sampled_tokens=sampled)

    def journal(self, step: int) -> Path:
        """The file of the episodes of a step that this process plays."""
        return self._run.work / f"episodes-{step}-{rank()}.jsonl"

    def _opened_journal(self, step: int, ref: PolicyRef) -> jsonl.Journal[Trajectory]:
        """The journal of a step; without its episodes if they are of other weights than those of `ref`.

        A resumed training repeats the steps since its last checkpoint, which on a GPU can end in other bits.
        """
        journal = jsonl.Journal(path := self.journal(step), Trajectory)
        stale = sum(episode.policy is not None and episode.policy.sha256 != ref.sha256 for episode in journal.records)
        if not stale:
            return journal
        log.warning("step %d: %d episodes of other weights, from before the resumption, are discarded.", step, stale)
        journal.close()
        path.unlink()
        return jsonl.Journal(path, Trajectory)

    def _episodes(self, step: int) -> list[Trajectory]:
        """The episodes of a step, sorted by task and sample; the ranks' journals have them in order of completion."""
        journals = self._run.work.glob(f"episodes-{step}-*.jsonl")
        episodes = (episode for journal in journals for episode in jsonl.read(journal, Trajectory))
        return sorted(episodes, key=lambda e: (e.task.task_id, e.sample))


@torch.no_grad()
def digest(model: Any, start: str) -> str:
    """Names the policy in training by its weights, which all ranks that hold a part of them read together.

    It is the sha256 of `start`, that of the policy that training starts from, and of a hash of each row of the weights
    that are trained. Rows are hashed where they are: 27 GB on a GPU take less than copying them to the CPU.
    """
    whole = hashlib.sha256(start.encode())
    for name, weight in _trained(model):
        whole.update(name.encode() + torch.hash_tensor(weight, dim=-1).cpu().numpy().tobytes())
    return whole.hexdigest()


def _trained(model: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """The weights that are trained, whole, by their names in a model that no launch divides."""
    for name, weight in model.named_parameters():
        if weight.requires_grad:
            with _whole(weight) as whole:
                yield name.replace(_RECOMPUTED, ""), whole


@contextlib.contextmanager
def _whole(weight: torch.Tensor) -> Iterator[torch.Tensor]:
    """The whole of a weight that ZeRO-3 or FSDP divides over the ranks."""
    if hasattr(weight, "ds_id"):
        import deepspeed  # type: ignore[import-untyped]  # an extra of the package

        with deepspeed.zero.GatheredParameters([weight]):
            yield weight
    else:
        yield weight.full_tensor() if isinstance(weight, DTensor) else weight


@contextlib.contextmanager
def seeded(seed: int, *names: str | int) -> Iterator[None]:
    """Derive torch's random numbers (dropout, new adapters) from `seed` inside the block; restore its state after."""
    # Adapters are made on the CPU, before a process has chosen its device.
    devices = [torch.cuda.current_device()] if torch.cuda.is_initialized() else []  # type: ignore[no-untyped-call]
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(seeds.derive(seed, *names))
        yield


def task_schedule(tasks: Sequence[Task], per_step: int, epochs: float, seed: int) -> list[list[Task]]:
    """The tasks of each step, `per_step` a step: permutation after permutation, at least `epochs` visits to each task.

    The last step is filled up from one more permutation. Raises `UserError` if there is no task.
    """
    if not tasks:
        raise UserError("there is no task to explore; raise `explore` in the environment's `tasks`.")
    steps = steps_of(epochs, len(tasks) / per_step)
    stream: list[Task] = []
    for epoch in range(math.ceil(steps * per_step / len(tasks))):
        stream += [tasks[i] for i in seeds.generator(seed, "visits", epoch).permutation(len(tasks))]
    return [stream[step * per_step : (step + 1) * per_step] for step in range(steps)]


def rank() -> int:
    """The rank of this process, from the launcher's environment variable."""
    return int(os.environ.get("RANK", "0"))


def world_size() -> int:
    """The number of processes that train together, from the launcher's environment variable."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def per_rank(count: int, of: str) -> int:
    """How many of the `count` items `of` a step a rank has; the last ranks may have fewer.

    Raises `UserError` for more ranks than items.
    """
    if (ranks := world_size()) > count:
        raise UserError(f"{ranks} processes, but a step has {count} {of}; start at most {count} processes.")
    return -(-count // ranks)
