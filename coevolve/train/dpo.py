"""Preference training by eq. 7 and 9: multi-turn action masks and weights per pair."""

import contextlib
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from accelerate.utils import gather_object, is_peft_model  # type: ignore[import-untyped]
from torch import Tensor

from coevolve import seeds
from coevolve.chat.chat_template import TokenizedTrajectory
from coevolve.records.pairs import PairKind
from coevolve.records.training import ReferenceLevels, TrainReport, TrajectoryLogps
from coevolve.storage import policy_dir
from coevolve.train import policy_io, trainer
from coevolve.train.collate import MicroBatch, PairCollator, collate
from coevolve.train.dataset import TokenizedPair, cut_to_context, slot_order
from coevolve.train.losses import PairLosses, TokenLogps, objective, pair_losses
from coevolve.train.policy_io import TrainingRun
from coevolve.train.settings import DpoConfig, is_reference_free, per_iteration
from coevolve.train.trainer import kind_means, report

#: At most so many experts, and so many episodes, are scored after a training: a sample, as each costs a forward pass.
SCORED_TRAJECTORIES = 16


class PreferenceTrainer(trainer.MaskedTrainer):
    """Minimises eq. 9, averaged over the pairs of the global batch; visits the pairs in `order`.

    `reference` as in `run_dpo`, but None also if the reference policy is the model without its adapters.
    """

    def __init__(
        self,
        pairs: Sequence[TokenizedPair],
        order: list[int],
        *,
        model: Any,
        reference: Any | None,
        config: DpoConfig,
        iteration: int,
        run: TrainingRun,
    ) -> None:
        self._nll, self._beta = config.nll, per_iteration(config.beta, iteration)
        self._objective, self._reference_free = objective(config.objective), is_reference_free(config.objective)
        self._metrics: list[tuple[str, tuple[float, ...]]] = []
        rate = per_iteration(config.learning_rate, iteration)
        collator = PairCollator(pairs, config.layout)
        super().__init__(model, collator, order, config=config, learning_rate=rate, run=run)
        self._reference = reference and self._prepare_reference(self.prepare_forward(reference))

    def loss_sum(self, model: Any, batch: MicroBatch) -> Tensor:
        """Eq. 9 of the micro-batch, summed over its pairs."""
        losses = self.pair_losses(*self.pair_logps(model, batch), batch["lambda_dpo"], batch["lambda_sft"])
        self._record(batch["kinds"], losses)
        return losses.loss.sum()

    def pair_logps(self, model: Any, batch: MicroBatch) -> tuple[TokenLogps, TokenLogps]:
        """The log-probs of the chosen and of the rejected sides under the policy and under the reference policy."""
        policy = self.token_logps(model, batch)
        reference = policy.detach() if self._reference_free else batch.get("reference_logps")
        if reference is None:
            reference = self._reference_logps(batch)
        halves = zip(policy.chunk(2), reference.chunk(2), batch["action_mask"].chunk(2), strict=True)
        chosen, rejected = (TokenLogps(*half) for half in halves)
        return chosen, rejected

    def pair_losses(
        self, chosen: TokenLogps, rejected: TokenLogps, lambda_dpo: Tensor, lambda_sft: Tensor
    ) -> PairLosses:
        """Eq. 9 for each pair with the training's beta and objective."""
        dtype = chosen.policy.dtype
        weights = (lambda_dpo.to(dtype), lambda_sft.to(dtype))
        return pair_losses(chosen, rejected, *weights, self._beta, self._nll, self._objective)

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Add the means per pair kind of the step."""
        logs.update(kind_means(gather_object(self._metrics)))
        self._metrics.clear()
        super().log(logs, start_time)

    def before_and_after(
        self, trajectories: Mapping[TokenizedTrajectory, Tensor | None], *, starts_as_reference: bool
    ) -> TrajectoryLogps | None:
        """Log-probs of a sample of trajectories before and after the training; None without any.

        `trajectories` have their reference log-probs, which are those before the training if it `starts_as_reference`.
        Trainings with the same trajectories take the same sample. Every rank computes all values, because all take part
        in a forward pass of a sharded model.
        """
        sample = sorted(trajectories, key=lambda each: seeds.derive(0, *each.input_ids))[:SCORED_TRAJECTORIES]
        if not sample:
            return None
        self.model.eval()  # no dropout
        masks = [torch.tensor(trajectory.action_mask[1:]) for trajectory in sample]
        known = ((trajectories[trajectory], mask) for trajectory, mask in zip(sample, masks, strict=True))
        before = [float((logps * mask).sum()) for logps, mask in known if starts_as_reference and logps is not None]
        return TrajectoryLogps(
            trajectories=len(sample),
            action_tokens=fmean(float(mask.sum()) for mask in masks),
            before=fmean(before) if before else None,
            after=fmean(map(self._trajectory_logp, sample)),
        )

    def _trajectory_logp(self, trajectory: TokenizedTrajectory) -> float:
        """Log pi(e | u) in nats under the policy as it is now."""
        device = self.accelerator.device
        batch = {name: tensor.to(device) for name, tensor in collate([[trajectory]], "padded").items()}
        with torch.no_grad(), torch.autocast(device.type, torch.bfloat16, enabled=self.mixed):
            return float(self.token_logps(self.model_wrapped, batch).sum())

    def _reference_logps(self, batch: MicroBatch) -> Tensor:
        """Log-probs in nats of the action tokens under the reference policy, [R, W]."""
        model, adapters_off = self._reference, contextlib.nullcontext()
        if model is None:
            assert is_peft_model(self.model), "neither a reference model nor its log-probs nor adapters to switch off"
            model, adapters_off = self.model, self.accelerator.unwrap_model(self.model).disable_adapter()
        device = batch["input_ids"].device.type
        # The accelerator's autocast does nothing under DeepSpeed, whose engine has one of its own.
        with torch.no_grad(), torch.autocast(device, torch.bfloat16, enabled=self.mixed), adapters_off:
            return self.token_logps(model, batch)

    def _prepare_reference(self, model: Any) -> Any:
        """The reference model on the devices of the launch, in evaluation mode."""
        if self.is_deepspeed_enabled or self.is_fsdp_enabled:
            from trl.models.utils import prepare_deepspeed, prepare_fsdp  # TRL takes seconds to import

            return (prepare_deepspeed if self.is_deepspeed_enabled else prepare_fsdp)(model, self.accelerator)
        return self.accelerator.prepare_model(model, evaluation_mode=True)

    def _record(self, kinds: Sequence[str], losses: PairLosses) -> None:
        """Keep the metrics of each pair until the step is logged; a dummy pair has no kind."""
        values = (losses.loss.detach(), losses.chosen, losses.rejected, losses.margin, (losses.margin > 0).float())
        columns = torch.stack([value.double() for value in values], dim=1).tolist()
        self._metrics += [(kind, tuple(column)) for kind, column in zip(kinds, columns, strict=False)]


def run_dpo(
    pairs: Sequence[TokenizedPair], config: DpoConfig, run: TrainingRun, *, iteration: int, reference: Path | None
) -> TrainReport:
    """Train on the pairs (eq. 7 and 9).

    `reference` None: the pairs have reference log-probs, the objective needs none, or the reference is `run.start`.
    `iteration` counts from 1 and selects learning rate and beta. Without any pair the new policy is a copy of the old
    one, and the report notes it. Raises as `run_sft` does.
    """
    started, start = time.monotonic(), run.start
    before = policy_dir.describe(start)
    training_set = cut_to_context(pairs, run.longest)
    examples = training_set.examples
    if not examples:
        policy_io.copy(start, run.out)
        dropped = f"{training_set.dropped} of {len(pairs)} dropped"
        note = f"no pair to train on ({dropped}): the policy is the one it started from"
        return report(training_set, [], config.batch_size, [], seconds=time.monotonic() - started, note=note)
    phases = [pair.phase for pair in examples]
    order = slot_order(len(examples), config.batch_size, config.epochs, run.seed, phases)
    if reference:
        starts_as_reference = reference.resolve() == start.resolve()
    else:
        starts_as_reference = config.reference == "previous" or iteration == 1
    # With its adapters off the model is its own reference: no second copy in memory.
    second_model = needs_reference(examples, config) and not (starts_as_reference and run.lora)
    preference = PreferenceTrainer(
        examples,
        order,
        model=policy_io.load(start),
        reference=policy_io.load_checked(reference or start) if second_model else None,
        config=config,
        iteration=iteration,
        run=run,
    )
    history = trainer.train(preference, run.work)
    gold, explored = (
        preference.before_and_after(sides, starts_as_reference=starts_as_reference)
        for sides in (experts_of(examples), explored_by_target(examples))
    )
    policy_io.write(preference, run, before, f"dpo{iteration}")
    return report(
        training_set,
        order,
        config.batch_size,
        history,
        gold=gold,
        explored=explored,
        reference=reference_levels(examples),
        seconds=time.monotonic() - started,
    )


def needs_reference(pairs: Sequence[TokenizedPair], config: DpoConfig) -> bool:
    """Whether the objective takes log-probs of a reference policy that the pairs do not have."""
    return pairs[0].reference_logps is None and not is_reference_free(config.objective)


def experts_of(pairs: Sequence[TokenizedPair]) -> dict[TokenizedTrajectory, Tensor | None]:
    """The experts in the pairs with their reference log-probs, where the pairs have them."""
    return {pair.chosen: pair.reference_logps and pair.reference_logps[0] for pair in pairs if pair.gold}


def explored_by_target(pairs: Sequence[TokenizedPair]) -> dict[TokenizedTrajectory, Tensor | None]:
    """The target's episodes that experts are preferred to, with their reference log-probs."""
    kept = [pair for pair in pairs if pair.kind is PairKind.EXPERT_TARGET and pair.gold]
    return {pair.rejected: pair.reference_logps and pair.reference_logps[1] for pair in kept}


def reference_levels(pairs: Sequence[TokenizedPair]) -> dict[PairKind, ReferenceLevels]:
    """The mean log-prob of an action token by pair kind and side, where the pairs have reference log-probs."""
    levels = {}
    for kind in PairKind:
        known = [(pair, pair.reference_logps) for pair in pairs if pair.kind is kind and pair.reference_logps]
        if known:
            levels[kind] = ReferenceLevels(
                pairs=len(known),
                chosen=_token_mean([(pair.chosen, logps[0]) for pair, logps in known]),
                rejected=_token_mean([(pair.rejected, logps[1]) for pair, logps in known]),
            )
    return levels


def _token_mean(sides: Sequence[tuple[TokenizedTrajectory, Tensor]]) -> float:
    """Mean of log-probs [len - 1] over the action tokens of all sides."""
    actions = torch.cat([logps[torch.tensor(side.action_mask[1:], dtype=torch.bool)] for side, logps in sides])
    return float(actions.double().mean())
