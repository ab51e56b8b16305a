"""What trainings share: the trainer, its settings, progress lines and checkpoints, and the report.

Metrics of pairs have TRL's names and meanings, with the pair kind in front, such as `expert_target/rewards/margins`;
`<kind>/pairs` is the number of pairs. `logps/*` are log pi(e | u) in nats, `rewards/margins` is the argument of the
sigmoid in eq. 7, `rewards/accuracies` the share of pairs in which it is positive.
"""

import functools
import itertools
import json
import logging
import math
import os
import shutil
import time
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState  # type: ignore[import-untyped]
from torch import Tensor
from torch.optim.lr_scheduler import LambdaLR
from transformers import PrinterCallback, Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_utils import set_seed

from coevolve import seeds
from coevolve.errors import UserError
from coevolve.records.pairs import PairKind
from coevolve.records.training import ReferenceLevels, TrainReport, TrajectoryLogps
from coevolve.train import policy_io, varlen_attention
from coevolve.train.collate import MicroBatch, PairCollator, TrajectoryCollator, add_tiled_head, token_logps
from coevolve.train.dataset import EMPTY_SLOT, TrainingSet
from coevolve.train.settings import RECOMPUTE_ABOVE, Optimiser

logger = logging.getLogger(__name__)

#: The config sections of the trainings that this module runs.
SECTIONS = "the training's section (`sft`, `dpo`, `grpo`, or the model's `pretrain`)"
PROGRESS_LINES = 20
#: A file in a checkpoint of several processes, written when each has saved its part.
COMPLETE = "whole"
#: The file of a checkpoint with the number of its step, which is written last.
STATE = "trainer_state.json"
#: FSDP's own bfloat16 mode rounds what the model returns, log-probs among it.
FSDP_PRECISION = dict.fromkeys(("param_dtype", "reduce_dtype", "output_dtype"), torch.float32)
#: The metrics of the steps of a training that runs, one JSON line each.
METRICS = "metrics.jsonl"
#: The names of transformers' argument for recomputing activations, the newest first.
_RECOMPUTE = ("activation_checkpointing", "gradient_checkpointing")

#: Means over the pairs of one kind that a step reports, under `<kind>/<name>`.
KIND_METRICS = ("loss", "logps/chosen", "logps/rejected", "rewards/margins", "rewards/accuracies")


def rate_factor(step: int, *, schedule: str, warmup: int, steps: int) -> float:
    """The share of the learning rate at `step`, which counts from 0, of `steps`.

    It rises linearly to 1 at the last of the `warmup` steps, so the first step is not lost as it is with a warm-up from
    0. Then it falls to 0 after the last step along a half `cosine` or a line (`linear`), or stays (`constant`).
    """
    if step < warmup:
        return (step + 1) / warmup
    done = (step - warmup) / max(1, steps - warmup)
    return {"cosine": (1.0 + math.cos(math.pi * done)) / 2.0, "linear": 1.0 - done, "constant": 1.0}[schedule]


class ScheduledTrainer(Trainer):  # type: ignore[misc]
    """transformers' Trainer with the learning rates of `rate_factor`."""

    lr_scheduler: Any

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        """The scheduler, made once."""
        if self.lr_scheduler is None:
            schedule = self.args.lr_scheduler_type.value
            warmup = self.args.get_warmup_steps(num_training_steps)
            factor = functools.partial(rate_factor, schedule=schedule, warmup=warmup, steps=num_training_steps)
            self.lr_scheduler = LambdaLR(optimizer or self.optimizer, factor)
            self._created_lr_scheduler = True
        return self.lr_scheduler


class MaskedTrainer(ScheduledTrainer):
    """transformers' Trainer over slots, with a loss that is a mean over the global batch.

    `order` is the index of the example in each slot (:func:`coevolve.train.dataset.slot_order`), which `collator`
    turns into micro-batches. The split into micro-batches and ranks does not change the loss. Weights, gradients and
    optimizer state are float32, also where `run` is `mixed`.
    """

    #: `compute_loss` divides by the items of the global batch; the base class must not divide by micro-batches again.
    loss_is_scaled_for_ga = True

    def __init__(
        self,
        model: Any,
        collator: TrajectoryCollator | PairCollator,
        order: list[int],
        *,
        config: Optimiser,
        learning_rate: float,
        run: policy_io.TrainingRun,
    ) -> None:
        self.mixed = run.mixed
        settings = training_settings(config, learning_rate, run, slots=len(order), model=model)
        arguments = single_device(full_precision(TrainingArguments(**settings), mixed=run.mixed))
        set_seed(arguments.seed)  # adapters start from random numbers
        self.tiled_head = uses_tiled_head()
        self._layout = collator.layout
        model = self.prepare_forward(model)
        if run.lora:
            model = policy_io.add_adapters(model, run.lora)
        super().__init__(
            model=model,
            args=arguments,
            data_collator=collator,
            train_dataset=order,
            callbacks=[TrainingProgress()],
        )

    @abstractmethod
    def loss_sum(self, model: Any, batch: MicroBatch) -> Tensor:
        """The sum of the losses of a micro-batch's `items`, of which the training takes the mean."""

    def prepare_forward(self, model: Any) -> Any:
        """The model with the attention and the head that `token_logps` needs; `UserError` if it cannot have them."""
        if self._layout != "padded":
            varlen_attention.enable(model)
        if self.tiled_head:
            add_tiled_head(model)
        return model

    def token_logps(self, model: Any, batch: MicroBatch) -> Tensor:
        """Log-probs in nats of the action tokens, [R, W] (:func:`coevolve.train.collate.token_logps`)."""
        return token_logps(model, batch, tiled=self.tiled_head)

    def compute_loss(
        self, model: Any, inputs: MicroBatch, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Tensor:
        """The micro-batch's share of the mean loss over all items of the global batch."""
        # Gradients are averaged over ranks, and num_items_in_batch counts the items of all of them.
        loss: Tensor = self.loss_sum(model, inputs) * self.accelerator.num_processes / num_items_in_batch
        return loss

    def _get_num_items_in_batch(self, batch_samples: list[MicroBatch], device: torch.device) -> Tensor:
        items = torch.tensor(sum(batch["items"] for batch in batch_samples), device=device)
        total: Tensor = self.accelerator.gather(items).sum()
        return total


class TrainingProgress(TrainerCallback):  # type: ignore[misc]
    """Logs the progress of a training, and ends it when the loss is not finite."""

    def __init__(self) -> None:
        self._start: tuple[float, int] = (time.monotonic(), 0)

    def on_train_begin(self, args: Any, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Start the clock; a resumed training starts at the step of its checkpoint, and the metrics after it go."""
        self._start = (time.monotonic(), state.global_step)
        metrics = Path(args.output_dir, METRICS)
        if state.is_world_process_zero and metrics.exists():
            lines = metrics.read_text().splitlines(keepends=True)[: state.global_step]
            metrics.write_text("".join(lines))

    def on_step_end(self, args: Any, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Save no checkpoint after the last step: the policy itself is written next."""
        if state.global_step >= state.max_steps:
            control.should_save = False

    def on_save(self, args: Any, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Mark a checkpoint of several processes as complete once each has saved its part."""
        if args.world_size > 1:
            PartialState().wait_for_everyone()
            if state.is_world_process_zero:
                (Path(args.output_dir) / f"checkpoint-{state.global_step}" / COMPLETE).touch()

    def on_log(self, args: Any, state: TrainerState, control: TrainerControl, logs: dict[str, float], **_: Any) -> None:
        """Append the step to `METRICS` before it is saved; `UserError` for a loss or gradient that is not finite."""
        if "loss" not in logs:
            return
        step, last = state.global_step, state.max_steps
        if not (math.isfinite(logs["loss"]) and math.isfinite(logs.get("grad_norm", 0.0))):
            raise UserError(
                f"step {step} of {last}: loss {logs['loss']}, gradient norm {logs.get('grad_norm')};"
                f" lower `learning_rate` of {SECTIONS}, or look at the training examples."
            )
        if state.is_world_process_zero:
            with Path(args.output_dir, METRICS).open("a") as file:
                file.write(json.dumps({"step": step, **logs}) + "\n")
        if state.is_world_process_zero and (step == last or step % max(1, last // PROGRESS_LINES) == 0):
            started, first = self._start
            left = (time.monotonic() - started) / (step - first) * (last - step)
            logger.info("step %d of %d, loss %.4f, %.0f s left", step, last, logs["loss"], left)


def uses_tiled_head() -> bool:
    """Whether log-probs come from the tiled head: on a GPU, where the logits of long sequences fill the memory."""
    return torch.cuda.is_available()


def training_settings(
    config: Optimiser,
    learning_rate: float,
    run: policy_io.TrainingRun,
    *,
    slots: int,
    model: Any,
) -> dict[str, Any]:
    """Arguments of `TrainingArguments` for one pass over `slots` slots; `UserError` for a batch that is not divided."""
    # The variable that every launcher sets; accelerate reads it only when the arguments exist.
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    micro = min(config.micro_batch, config.batch_size)
    if config.batch_size % (micro * ranks):
        product = f"`micro_batch` {micro} times {ranks} devices"
        problem = f"`batch_size` {config.batch_size} is not a multiple of {product}"
        raise UserError(f"{problem}; change one of the two in {SECTIONS}.")
    steps = slots // config.batch_size
    cuda = torch.cuda.is_available()
    # `use_cpu` would switch DeepSpeed off, which has a setting of its own (`full_precision`).
    autocast = run.mixed and (cuda or os.environ.get("ACCELERATE_USE_DEEPSPEED") != "true")
    return {
        "output_dir": str(run.work),
        "max_steps": steps,
        "per_device_train_batch_size": micro,
        "gradient_accumulation_steps": config.batch_size // (micro * ranks),
        "train_sampling_strategy": "sequential",
        "learning_rate": learning_rate,
        "lr_scheduler_type": config.schedule,
        "warmup_steps": math.ceil(config.warmup * steps),
        "weight_decay": config.weight_decay,
        "max_grad_norm": config.max_grad_norm,
        "optim": "adamw_torch_fused",
        "bf16": autocast,  # autocast only: weights and optimizer state stay float32
        "use_cpu": autocast and not cuda,  # transformers refuses `bf16` without a GPU unless this is set
        next(name for name in _RECOMPUTE if hasattr(TrainingArguments, name)): model.num_parameters() > RECOMPUTE_ABOVE,
        "seed": seeds.derive(run.seed, "trainer") % 2**32,
        "save_strategy": "steps",
        "save_steps": config.save_steps,
        # With several processes the last may still be saving when the first removes older checkpoints.
        "save_total_limit": 1 if ranks == 1 else 2,
        "logging_steps": 1,
        "logging_nan_inf_filter": False,
        "report_to": "none",
        "disable_tqdm": True,
        "remove_unused_columns": False,
        "dataloader_pin_memory": cuda,
        "ddp_find_unused_parameters": False,
        "ddp_backend": None if cuda or ranks == 1 else "gloo",
    }


def full_precision(args: Any, *, mixed: bool) -> Any:
    """The arguments; if `mixed`, DeepSpeed and FSDP compute in bfloat16 by autocast over float32 weights."""
    if args.deepspeed_plugin:
        args.deepspeed_plugin.deepspeed_config |= deepspeed_precision(mixed)
        args.bf16 = False  # transformers refuses arguments that differ from DeepSpeed's configuration
    if os.environ.get("ACCELERATE_USE_FSDP") == "true":
        args.fsdp_plugin_args = (args.fsdp_plugin_args or {}) | {"mixed_precision_policy": FSDP_PRECISION}
    return args


def deepspeed_precision(mixed: bool) -> dict[str, Any]:
    """DeepSpeed's settings of precision: its own bfloat16 mode would return a rounded model."""
    return {"bf16": {"enabled": False}, "torch_autocast": {"enabled": mixed, "dtype": "bfloat16"}}


def single_device(args: Any) -> Any:
    """The arguments for one device a process; transformers would multiply micro-batches by the GPUs that it sees."""
    args._n_gpu = min(args.n_gpu, 1)  # `n_gpu` has no setter; reading it prepares the device
    return args


def train(trainer: Trainer, work: Path) -> list[dict[str, float]]:
    """Train to the last step, from the last complete checkpoint in `work` if there is one; one log entry per step."""
    policy_io.require_full_precision(trainer.model)
    trainer.remove_callback(PrinterCallback)
    with PartialState().main_process_first():
        checkpoint = last_checkpoint(work)
    if checkpoint is not None:
        logger.info("resuming from %s", checkpoint.name)
    trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    steps = [entry for entry in trainer.state.log_history if "loss" in entry]
    # `epoch` counts passes over the slots, of which there is always one.
    return [{name: value for name, value in step.items() if name != "epoch" and value is not None} for step in steps]


def last_checkpoint(work: Path) -> Path | None:
    """The newest complete checkpoint; removes incomplete ones.

    The trainer writes `trainer_state.json` last, so a checkpoint of one process is complete if that file is whole. A
    checkpoint of several processes (whose random state files are numbered) must contain the file `COMPLETE`.
    """
    complete: dict[int, Path] = {}
    for checkpoint in work.glob("checkpoint-*"):
        if (checkpoint / "rng_state_0.pth").exists() and not (checkpoint / COMPLETE).exists():
            shutil.rmtree(checkpoint)
            continue
        try:
            complete[json.loads((checkpoint / STATE).read_text())["global_step"]] = checkpoint
        except (FileNotFoundError, json.JSONDecodeError):
            shutil.rmtree(checkpoint)
    return complete[max(complete)] if complete else None


def report(
    training_set: TrainingSet[Any],
    order: Sequence[int],
    batch_size: int,
    history: Sequence[dict[str, float]],
    *,
    seconds: float,
    gold: TrajectoryLogps | None = None,
    explored: TrajectoryLogps | None = None,
    reference: Mapping[PairKind, ReferenceLevels] | None = None,
    note: str = "",
    sampled_tokens: int | None = None,
) -> TrainReport:
    """The report of a training that visited the examples in `order`, `batch_size` slots a step.

    Its `kinds` are means over the last steps, as many as an epoch has: steps of two epochs, if it ends inside one.
    """
    epoch = math.ceil(len(training_set.examples) / batch_size)
    tokens = sum(len(training_set.examples[slot]) for slot in order if slot != EMPTY_SLOT)
    return TrainReport(
        rows=len(training_set.examples),
        truncated=training_set.truncated,
        dropped=training_set.dropped,
        steps=len(history),
        tokens=tokens,
        first_loss=history[0]["loss"] if history else None,
        last_loss=history[-1]["loss"] if history else None,
        history=tuple(history),
        kinds=last_metrics(history[-epoch:]),
        gold=gold,
        explored=explored,
        reference=dict(reference or {}),
        note=note,
        seconds=seconds,
        trained_tokens=tokens,
        sampled_tokens=sampled_tokens,
    )


def last_metrics(history: Sequence[dict[str, float]]) -> dict[PairKind, dict[str, int | float]]:
    """Number of pairs and means of each kind over the steps of `history`, weighted by its number of pairs in each."""
    means: dict[PairKind, dict[str, int | float]] = {}
    for kind in PairKind:
        steps = [step for step in history if f"{kind}/pairs" in step]
        pairs = sum(step[f"{kind}/pairs"] for step in steps)
        sums = {name: sum(step[f"{kind}/{name}"] * step[f"{kind}/pairs"] for step in steps) for name in KIND_METRICS}
        if pairs:
            means[kind] = {"pairs": int(pairs)} | {name: total / pairs for name, total in sums.items()}
    return means


def kind_means(pairs: Sequence[tuple[str, tuple[float, ...]]]) -> dict[str, float]:
    """`<kind>/pairs` and `<kind>/<metric>` of one step, from the kind and the `KIND_METRICS` of each of its pairs."""
    metrics: dict[str, float] = {}
    for kind, group in itertools.groupby(sorted(pairs), key=lambda pair: pair[0]):
        values = [pair[1] for pair in group]
        metrics[f"{kind}/pairs"] = float(len(values))
        for name, column in zip(KIND_METRICS, zip(*values, strict=True), strict=True):
            metrics[f"{kind}/{name}"] = sum(column) / len(column)
    return metrics
