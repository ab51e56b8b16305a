"""Eq. 5 on TRL's SFTTrainer, for fine-tuning on action tokens and for pre-training on all of them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from trl import SFTConfig as TrlConfig
from trl import SFTTrainer

from coevolve.config.sections import LoraConfig, PretrainConfig, SftConfig, Supervised
from coevolve.errors import UserError
from coevolve.policies import loading
from coevolve.storage import policy_dir
from coevolve.train import loop, policy_io
from coevolve.train.collate import Batch, RowCollator, token_logps
from coevolve.train.losses import sft_losses
from coevolve.train.rows import Row, TokenRow, everywhere, fit_rows, step_order
from coevolve.train.train_report import TrainReport, report


class RowTrainer(SFTTrainer):  # type: ignore[misc]
    """SFTTrainer with eq. 5 of `coevolve.train.losses` and batches from a `RowCollator`."""

    #: `compute_loss` divides by the number of action tokens of the whole batch, so the trainer must not divide again.
    loss_is_scaled_for_ga = True

    def compute_loss(
        self, model: Any, inputs: Batch, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Tensor:
        """The micro-batch's share of the mean of eq. 5 over all action tokens of the batch."""
        logps = token_logps(model, inputs, fused=inputs["input_ids"].is_cuda)
        losses = sft_losses(logps, inputs["learned"])
        # The gradients of the devices are averaged, and num_items_in_batch counts the action tokens of all of them.
        loss: Tensor = losses.sum() * self.accelerator.num_processes / num_items_in_batch
        return loss

    def _get_num_items_in_batch(self, batch_samples: list[Batch], device: torch.device) -> Tensor:
        return loop.total(self, sum(int(batch["learned"].sum()) for batch in batch_samples), device)

    def _send_telemetry(self) -> None:
        pass


def run_pretrain(
    rows: Sequence[TokenRow],
    *,
    start: Path,
    config: PretrainConfig,
    seed: int,
    out: Path,
    work: Path,
    context: int | None = None,
) -> TrainReport:
    """Language modelling on all tokens of the rows; the rest is as in `run_sft`."""
    return _train(
        everywhere(rows),
        "pretrain",
        context=context,
        start=start,
        config=config,
        lora=None,
        seed=seed,
        out=out,
        work=work,
    )


def run_sft(
    rows: Sequence[TokenRow],
    *,
    start: Path,
    config: SftConfig,
    lora: LoraConfig | None,
    seed: int,
    out: Path,
    work: Path,
    context: int | None = None,
) -> TrainReport:
    """Train the policy in `start` on the rows' action tokens (eq. 3 to 5) and write the policy directory `out`.

    `context` None is the model's own. `work` keeps checkpoints: a killed training that is started again goes on from
    there. Raises `UserError` if there is nothing to learn from, if `start` holds no policy, or if the loss is no number
    any more.
    """
    return _train(rows, "sft", context=context, start=start, config=config, lora=lora, seed=seed, out=out, work=work)


def row_trainer(
    rows: Sequence[Row],
    order: list[int],
    *,
    model: Any,
    tokenizer: Any,
    config: Supervised,
    lora: LoraConfig | None,
    seed: int,
    work: Path,
) -> RowTrainer:
    """A trainer that is about to learn the rows in the order given."""
    layout = config.layout
    settings = loop.settings(config, config.learning_rate, slots=len(order), model=model, seed=seed, work=work)
    return RowTrainer(
        model=loop.reading(model, layout),
        args=loop.full_precision(TrlConfig(**settings, dataset_kwargs={"skip_prepare_dataset": True})),
        data_collator=RowCollator(rows, layout),
        train_dataset=loop.slots_dataset(order),
        processing_class=tokenizer,
        callbacks=[loop.Progress()],
        peft_config=loop.peft_config(lora),
    )


def _train(
    rows: Sequence[TokenRow],
    stage: str,
    *,
    context: int | None,
    start: Path,
    config: Supervised,
    lora: LoraConfig | None,
    seed: int,
    out: Path,
    work: Path,
) -> TrainReport:
    began = time.monotonic()
    before = policy_dir.describe(start)
    fitted = fit_rows(rows, context or policy_io.context_of(start))
    if not fitted.rows:
        raise UserError(f"{start}: {stage} got no row with an action token inside the context; give it trajectories.")
    order = step_order(len(fitted.rows), config.batch_size, config.epochs, seed)
    model, tokenizer = policy_io.load(start, lora), loading.load_tokenizer(start)
    trainer = row_trainer(
        fitted.rows, order, model=model, tokenizer=tokenizer, config=config, lora=lora, seed=seed, work=work
    )
    history = loop.run(trainer, work)
    policy_io.write(trainer, start, before, out, stage)
    return report(fitted, order, config.batch_size, history, seconds=time.monotonic() - began)
