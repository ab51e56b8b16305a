"""What supervised and preference training share: TRL's settings, progress and checkpoints."""

from __future__ import annotations

import json
import logging
import math
import os
import shutil
import time
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState  # type: ignore[import-untyped]
from datasets import Dataset
from peft import LoraConfig as PeftLora
from torch import Tensor
from transformers import PrinterCallback, TrainerCallback, TrainerControl, TrainerState

from coevolve import seeds
from coevolve.config.sections import LoraConfig, Optimiser
from coevolve.errors import UserError
from coevolve.train import policy_io, varlen_attention
from coevolve.train.collate import Layout

logger = logging.getLogger(__name__)

SCHEDULES = {"cosine": "cosine", "linear": "linear", "constant": "constant_with_warmup"}
#: Above this many parameters activations are recomputed in the backward pass: slower, smaller, the same numbers.
RECOMPUTE_ABOVE = 1_000_000_000
#: Progress lines per training.
PROGRESS_LINES = 20
#: In a checkpoint of several processes: a file that appears when each has saved its part.
WHOLE = "whole"


def settings(
    config: Optimiser, learning_rate: float, *, slots: int, model: Any, seed: int, work: Path
) -> dict[str, Any]:
    """TRL's settings for one pass over `slots` slots in the order given; `seed` is the training's own.

    Raises `UserError` if micro-batches over all devices do not divide the batch.
    """
    # What every launcher sets; accelerate knows it only once these settings are TRL's.
    devices = int(os.environ.get("WORLD_SIZE", "1"))
    micro = min(config.micro_batch, config.batch_size)
    if config.batch_size % (micro * devices):
        together = f"`micro_batch` {micro} times {devices} devices"
        raise UserError(f"`batch_size` {config.batch_size} is no multiple of {together}; change one of the two.")
    steps = slots // config.batch_size
    cuda = torch.cuda.is_available()
    return {
        "output_dir": str(work),
        "max_steps": steps,
        "per_device_train_batch_size": micro,
        "gradient_accumulation_steps": config.batch_size // (micro * devices),
        "train_sampling_strategy": "sequential",
        "learning_rate": learning_rate,
        "lr_scheduler_type": SCHEDULES[config.schedule],
        "warmup_steps": math.ceil(config.warmup * steps),
        "weight_decay": config.weight_decay,
        "max_grad_norm": config.max_grad_norm,
        "optim": "adamw_torch_fused",
        "bf16": cuda,  # autocast only: the weights and the optimizer stay float32
        "activation_checkpointing": model.num_parameters() > RECOMPUTE_ABOVE,
        "seed": seeds.derive(seed, "trainer") % 2**32,
        "save_strategy": "steps",
        "save_steps": config.save_steps,
        # Of several processes the last may still be saving when the first removes older checkpoints.
        "save_total_limit": 1 if devices == 1 else 2,
        "logging_steps": 1,
        "logging_nan_inf_filter": False,
        "report_to": "none",
        "disable_tqdm": True,
        "remove_unused_columns": False,
        "dataloader_pin_memory": cuda,
        "ddp_find_unused_parameters": False,
        "ddp_backend": None if cuda or devices == 1 else "gloo",
        "max_length": None,
    }


def full_precision(args: Any) -> Any:
    """TRL's `args`, with DeepSpeed and FSDP told to compute in bfloat16 as all else does: by autocast over float32.

    DeepSpeed's own bfloat16 mode keeps float32 weights too, but to itself: the model it hands back is rounded. FSDP's
    rounds what the model returns, log-probs among it.
    """
    if args.deepspeed_plugin:
        autocast = {"enabled": args.bf16, "dtype": "bfloat16"}
        args.deepspeed_plugin.deepspeed_config |= {"bf16": {"enabled": False}, "torch_autocast": autocast}
        args.bf16 = False  # or transformers finds the two at odds, and refuses
    if os.environ.get("ACCELERATE_USE_FSDP") == "true":
        whole = dict.fromkeys(("param_dtype", "reduce_dtype", "output_dtype"), torch.float32)
        args.fsdp_plugin_args = (args.fsdp_plugin_args or {}) | {"mixed_precision_policy": whole}
    return args


def slots_dataset(order: list[int]) -> Dataset:
    """The order of training as the data set TRL wants; the collators know the rows."""
    return Dataset.from_dict({"row": order})


def reading(model: Any, layout: Layout) -> Any:
    """The model, able to read batches of a layout; raises `UserError` where it is not."""
    return model if layout == "padded" else varlen_attention.use(model)


def total(trainer: Any, mine: int, device: torch.device) -> Tensor:
    """The sum over all devices."""
    counts: Tensor = trainer.accelerator.gather(torch.tensor(mine, device=device))
    return counts.sum()


def peft_config(lora: LoraConfig | None) -> PeftLora | None:
    """The adapters as peft wants them described; None for full fine-tuning."""
    if lora is None:
        return None
    return PeftLora(
        r=lora.rank,
        lora_alpha=lora.alpha,
        lora_dropout=lora.dropout,
        target_modules=lora.target_modules,
        task_type="CAUSAL_LM",
    )


class Progress(TrainerCallback):  # type: ignore[misc]
    """Says how far the training is, and ends it when the loss is no number any more."""

    def __init__(self) -> None:
        self._began: tuple[float, int] = (time.monotonic(), 0)

    def on_train_begin(self, args: Any, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Start the clock; a resumed training starts at its checkpoint's step."""
        self._began = (time.monotonic(), state.global_step)

    def on_step_end(self, args: Any, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """No checkpoint after the last step: the policy itself is written next."""
        if state.global_step >= state.max_steps:
            control.should_save = False

    def on_save(self, args: Any, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Of several processes each saves its part: the checkpoint is whole once all of them have come here."""
        if args.world_size > 1:
            PartialState().wait_for_everyone()
            if state.is_world_process_zero:
                (Path(args.output_dir) / f"checkpoint-{state.global_step}" / WHOLE).touch()

    def on_log(self, args: Any, state: TrainerState, control: TrainerControl, logs: dict[str, float], **_: Any) -> None:
        """Raises `UserError` for a loss or gradient that is not finite, before the step can be saved."""
        if "loss" not in logs:
            return
        step, last = state.global_step, state.max_steps
        if not (math.isfinite(logs["loss"]) and math.isfinite(logs.get("grad_norm", 0.0))):
            raise UserError(
                f"step {step} of {last}: loss {logs['loss']}, gradient norm {logs.get('grad_norm')};"
                " lower `learning_rate` or look at the rows."
            )
        if state.is_world_process_zero and (step == last or step % max(1, last // PROGRESS_LINES) == 0):
            began, first = self._began
            left = (time.monotonic() - began) / (step - first) * (last - step)
            logger.info("step %d of %d, loss %.4f, %.0f s left", step, last, logs["loss"], left)


def run(trainer: Any, work: Path) -> list[dict[str, float]]:
    """Train to the end, from the last complete checkpoint in `work` if there is one; one entry of history a step."""
    policy_io.widen_adapters(trainer.model)
    policy_io.require_full_precision(trainer.model)
    trainer.remove_callback(PrinterCallback)
    with PartialState().main_process_first():
        checkpoint = last_complete(work)
    if checkpoint is not None:
        logger.info("resuming from %s", checkpoint.name)
    trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    # `epoch` counts passes over the slots, of which there is always one.
    steps = [entry for entry in trainer.state.log_history if "loss" in entry]
    return [{name: value for name, value in step.items() if name != "epoch"} for step in steps]


def last_complete(work: Path) -> Path | None:
    """The newest checkpoint that was written to its end; half-written ones are removed.

    The trainer writes `trainer_state.json` last, so a checkpoint counts once that file is whole. Where several
    processes have each saved a part (the first one's random state has a number then), it takes the word of all.
    """
    whole: dict[int, Path] = {}
    for checkpoint in work.glob("checkpoint-*"):
        if (checkpoint / "rng_state_0.pth").exists() and not (checkpoint / WHOLE).exists():
            shutil.rmtree(checkpoint)
            continue
        try:
            whole[json.loads((checkpoint / "trainer_state.json").read_text())["global_step"]] = checkpoint
        except (FileNotFoundError, json.JSONDecodeError):
            shutil.rmtree(checkpoint)
    return whole[max(whole)] if whole else None
