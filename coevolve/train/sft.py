"""Supervised training by eq. 5: fine-tuning on action tokens, pre-training on all tokens."""

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from coevolve.chat.chat_template import TokenizedTrajectory
from coevolve.errors import UserError
from coevolve.records.training import TrainReport
from coevolve.storage import policy_dir
from coevolve.train import policy_io, trainer
from coevolve.train.collate import MicroBatch, TrajectoryCollator, sft_losses
from coevolve.train.dataset import cut_to_context, slot_order
from coevolve.train.policy_io import TrainingRun
from coevolve.train.settings import PretrainConfig, Supervised
from coevolve.train.trainer import report


class SupervisedTrainer(trainer.MaskedTrainer):
    """Minimises eq. 5, averaged over the action tokens of the global batch or, with `nll: sum`, over its trajectories.

    Visits the trajectories in `order`.
    """

    def __init__(
        self,
        trajectories: Sequence[TokenizedTrajectory],
        order: list[int],
        *,
        model: Any,
        config: Supervised,
        run: TrainingRun,
    ) -> None:
        collator = TrajectoryCollator(trajectories, config.layout, summed=config.nll == "sum")
        super().__init__(model, collator, order, config=config, learning_rate=config.learning_rate, run=run)

    def loss_sum(self, model: Any, batch: MicroBatch) -> Tensor:
        """Eq. 5 of the micro-batch in nats, summed over its trajectories."""
        return sft_losses(self.token_logps(model, batch), batch["action_mask"]).sum()


def run_pretrain(trajectories: Sequence[TokenizedTrajectory], config: PretrainConfig, run: TrainingRun) -> TrainReport:
    """Language modelling on all tokens of the trajectories; otherwise as `run_sft`."""
    unmasked = [replace(trajectory, action_mask=(1,) * len(trajectory)) for trajectory in trajectories]
    return run_sft(unmasked, config, replace(run, lora=None), stage="pretrain")


def run_sft(
    trajectories: Sequence[TokenizedTrajectory], config: Supervised, run: TrainingRun, stage: str = "sft"
) -> TrainReport:
    """Train on the action tokens (eq. 3 to 5); `stage` is appended to the policy's name.

    Raises `UserError` if no trajectory has an action token inside the context, if `run.start` holds no policy, or if
    the loss is not finite.
    """
    started = time.monotonic()
    before = policy_dir.describe(run.start)
    training_set = cut_to_context(trajectories, run.longest)
    if not training_set.examples:
        problem = f"none of {len(trajectories)} trajectories has an action token among its first {run.longest} tokens"
        raise UserError(f"{stage}: {problem}; raise the model's `context`, or give others.")
    order = slot_order(len(training_set.examples), config.batch_size, config.epochs, run.seed)
    supervised = SupervisedTrainer(
        training_set.examples, order, model=policy_io.load(run.start), config=config, run=run
    )
    history = trainer.train(supervised, run.work)
    policy_io.write(supervised, run, before, stage)
    return report(training_set, order, config.batch_size, history, seconds=time.monotonic() - started)
