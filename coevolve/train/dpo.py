"""Eq. 7 and 9 on TRL's DPOTrainer: multi-turn action masks, weights per pair, and a batch that is a batch."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from accelerate.utils import gather_object, is_peft_model  # type: ignore[import-untyped]
from datasets import Dataset
from torch import Tensor
from trl import DPOConfig as TrlConfig
from trl import DPOTrainer
from trl.trainer import dpo_trainer

from coevolve.config.sections import DpoConfig, LoraConfig, ObjectiveConfig
from coevolve.config.suite import per_iteration
from coevolve.policies import loading
from coevolve.storage import policy_dir
from coevolve.train import loop, policy_io
from coevolve.train.collate import PairCollator, token_logps
from coevolve.train.losses import PairLosses, Side, objective, pair_losses
from coevolve.train.rows import PairRow, fit_pairs, step_order
from coevolve.train.train_report import TrainReport, kind_means, report

# TRL would hash all weights, in every process, for a cache that the kit does not use.
dpo_trainer.hash_module = lambda _: None


class PairTrainer(DPOTrainer):  # type: ignore[misc]
    """DPOTrainer with the objective of `coevolve.train.losses` and batches from a `PairCollator`."""

    #: `compute_loss` divides by the number of pairs of the whole batch, so the trainer must not divide again.
    loss_is_scaled_for_ga = True

    def __init__(self, *, nll: Literal["mean", "sum"], preference: ObjectiveConfig, **trl: Any) -> None:
        self._nll: Literal["mean", "sum"] = nll
        self._objective, self._reference_free = objective(preference), preference.reference_free
        self._seen: list[tuple[str, tuple[float, ...]]] = []
        super().__init__(**trl)

    def compute_loss(
        self, model: Any, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Tensor:
        """The micro-batch's share of the mean of eq. 9 over all pairs of the batch."""
        policy = token_logps(model, inputs, fused=inputs["input_ids"].is_cuda)
        reference = policy.detach() if self._reference_free else inputs.get("reference")
        if reference is None:
            reference = self.compute_ref_log_probs(self.ref_model or self.model, inputs)
        chosen, rejected = _sides(policy, reference, inputs["learned"])
        lambdas = (inputs["lambda_dpo"].to(policy.dtype), inputs["lambda_sft"].to(policy.dtype))
        losses = pair_losses(chosen, rejected, *lambdas, self.beta, self._nll, self._objective)
        self._see(inputs["kinds"], losses)
        # The gradients of the devices are averaged, and num_items_in_batch counts the pairs of all of them.
        loss: Tensor = losses.loss.sum() * self.accelerator.num_processes / num_items_in_batch
        return loss

    def compute_ref_log_probs(self, model: Any, inputs: dict[str, Any]) -> Tensor:
        """The reference policy's per-token log-probs; if no model holds it, it is this one without its adapters."""
        adapters = self.ref_model is None and is_peft_model(self.model)
        without = self.accelerator.unwrap_model(self.model).disable_adapter() if adapters else contextlib.nullcontext()
        on_gpu = inputs["input_ids"].is_cuda
        # The accelerator's autocast does nothing under DeepSpeed, whose engine has its own.
        with torch.no_grad(), torch.autocast("cuda", torch.bfloat16, enabled=on_gpu), without:
            return token_logps(model, inputs, fused=on_gpu)

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Add the means per pair kind of the step."""
        logs.update(kind_means(gather_object(self._seen)))
        self._seen.clear()
        super().log(logs, start_time)

    def _precompute_ref_logps(self, dataset: Dataset, name: str, batch_size: int) -> Dataset:
        return dataset  # the collator has them

    def _see(self, kinds: Sequence[str], losses: PairLosses) -> None:
        values = (losses.loss.detach(), losses.chosen, losses.rejected, losses.margin, (losses.margin > 0).float())
        columns = torch.stack([value.double() for value in values], dim=1).tolist()
        self._seen += [(kind, tuple(column)) for kind, column in zip(kinds, columns, strict=False)]

    def _get_num_items_in_batch(self, batch_samples: list[dict[str, Any]], device: torch.device) -> Tensor:
        return loop.total(self, sum(len(batch["kinds"]) for batch in batch_samples), device)

    def _prepare_dataset(self, dataset: Dataset, *_: Any) -> Dataset:
        return dataset

    def _send_telemetry(self) -> None:
        pass


def run_dpo(
    pairs: Sequence[PairRow],
    *,
    start: Path,
    reference: Path | None,
    config: DpoConfig,
    iteration: int,
    lora: LoraConfig | None,
    seed: int,
    out: Path,
    work: Path,
    context: int | None = None,
) -> TrainReport:
    """Train the policy in `start` on the pairs (eq. 7 and 9) and write the policy directory `out`.

    `reference` None is `start` itself, and is asked in every step unless the pairs bring its log-probs along; `context`
    None is the model's own. `iteration` counts from 1 and picks learning rate and beta. Without a pair `out` is a copy
    of `start`, and the report says so. Raises as `run_sft` does.
    """
    began = time.monotonic()
    before = policy_dir.describe(start)
    fitted = fit_pairs(pairs, context or policy_io.context_of(start))
    if not fitted.rows:
        policy_io.copy(start, out)
        note = f"no pair to train on ({fitted.dropped} of {len(pairs)} dropped): the policy is the one it started from"
        return report(fitted, [], config.batch_size, [], seconds=time.monotonic() - began, note=note)
    order = step_order(len(fitted.rows), config.batch_size, config.epochs, seed)
    own = reference is None or reference.resolve() == start.resolve()
    # With its adapters off the model is its own reference: no second copy in memory.
    unneeded = fitted.rows[0].reference is not None or config.objective.reference_free or (own and lora)
    trainer = pair_trainer(
        fitted.rows,
        order,
        model=policy_io.load(start, lora),
        reference=None if unneeded else policy_io.load(reference or start, lora),
        tokenizer=loading.load_tokenizer(start),
        config=config,
        iteration=iteration,
        lora=lora,
        seed=seed,
        work=work,
    )
    history = loop.run(trainer, work)
    policy_io.write(trainer, start, before, out, f"dpo{iteration}")
    return report(fitted, order, config.batch_size, history, seconds=time.monotonic() - began)


def pair_trainer(
    pairs: Sequence[PairRow],
    order: list[int],
    *,
    model: Any,
    reference: Any | None,
    tokenizer: Any,
    config: DpoConfig,
    iteration: int,
    lora: LoraConfig | None,
    seed: int,
    work: Path,
) -> PairTrainer:
    """A trainer that is about to learn the pairs in the order given.

    `reference` None: the pairs bring its log-probs along, or it is the model without its adapters, or nobody asks.
    """
    rate = per_iteration(config.learning_rate, iteration)
    settings = loop.settings(config, rate, slots=len(order), model=model, seed=seed, work=work)
    own = {
        "beta": per_iteration(config.beta, iteration),
        # TRL makes a reference model of its own wherever there is neither one nor its log-probs.
        "precompute_ref_log_probs": reference is None and lora is None,
        "disable_dropout": False,  # TRL would silence the adapters' dropout, which is a key of ours
    }
    return PairTrainer(
        nll=config.nll,
        preference=config.objective,
        model=loop.reading(model, config.layout),
        ref_model=reference and loop.reading(reference, config.layout),
        args=loop.full_precision(TrlConfig(**settings, **own)),
        data_collator=PairCollator(pairs, config.layout),
        train_dataset=loop.slots_dataset(order),
        processing_class=tokenizer,
        callbacks=[loop.Progress()],
        peft_config=loop.peft_config(lora),
    )


def _sides(policy: Tensor, reference: Tensor, learned: Tensor) -> tuple[Side, Side]:
    """The chosen and the rejected half of a batch."""
    halves = zip(policy.chunk(2), reference.chunk(2), learned.chunk(2), strict=True)
    chosen, rejected = (Side(*half) for half in halves)
    return chosen, rejected
