"""The gradient of eq. 9 by pair kind: its size, its share of the sum over kinds, and cosines between kinds.

It is that of the loss that :class:`coevolve.train.dpo.PreferenceTrainer` minimises, without dropout.
"""

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import send_to_device  # type: ignore[import-untyped]
from torch import Tensor

from coevolve.errors import UserError
from coevolve.records.gradients import GradientCosine, GradientSize, KindGradient, PointGradients
from coevolve.records.pairs import PairKind
from coevolve.train import policy_io
from coevolve.train.dataset import TokenizedPair, cut_to_context
from coevolve.train.dpo import PreferenceTrainer, needs_reference
from coevolve.train.policy_io import TrainingRun
from coevolve.train.settings import DpoConfig

#: A float32 tensor on the CPU for each trainable parameter.
Gradient = Sequence[Tensor]
#: The parts of eq. 9 in records: the whole loss, lambda_DPO times eq. 7, and lambda_SFT times the NLL of chosen sides.
PARTS = ("loss", "dpo", "sft")


@dataclass(frozen=True)
class GradientSum:
    """The gradient of each of the `PARTS` of eq. 9, summed over `measured_pairs` of a kind's `pairs`."""

    pairs: int
    measured_pairs: int
    parts: Mapping[str, Gradient]

    def total_norm(self, part: str) -> float:
        """The L2 norm of one of the parts over all pairs of the kind, estimated from the measured ones."""
        return norm(self.parts[part]) * self.pairs / self.measured_pairs


def measure(
    pairs: Sequence[TokenizedPair],
    config: DpoConfig,
    run: TrainingRun,
    *,
    limit: int,
    iteration: int,
    reference: Path | None,
    progress: Callable[[int, int], None],
) -> PointGradients:
    """The gradients at the policy in `run.start`, of at most `limit` pairs of each kind. One process on one device.

    With adapters they are those of new adapters with the random numbers of `run.seed`, as a training starts with. The
    policy in `reference` is not read if the pairs have reference log-probs or the objective needs none. Calls
    `progress(done, total)` after each micro-batch. Raises `UserError` for a gradient that is not finite, and for
    weights that are not those of their `policy.json`.
    """
    examples = cut_to_context(pairs, run.longest).examples
    if not examples:
        return PointGradients(trainable_parameters=0, kinds=(), cosines=())
    read = reference if needs_reference(examples, config) else None
    trainer = PreferenceTrainer(
        examples,
        list(range(len(examples))),
        model=policy_io.load_checked(run.start),
        reference=policy_io.load_checked(read) if read else None,
        config=config,
        iteration=iteration,
        run=run,
    )
    sums = gradient_sums(trainer, [pair.kind for pair in examples], limit, progress)
    for kind, of_kind in sums.items():
        if not math.isfinite(norm(of_kind.parts["loss"])):
            raise UserError(f"{run.start}: the gradient of the pairs {kind} is not finite; lower `dpo.learning_rate`.")
    return PointGradients(
        trainable_parameters=sum(parameter.numel() for parameter in _trainable(trainer.model)),
        kinds=_kinds(sums),
        cosines=tuple(
            GradientCosine(
                first=first,
                second=second,
                **{part: cosine(sums[first].parts[part], sums[second].parts[part]) for part in PARTS},
            )
            for first, second in itertools.combinations(sums, 2)
        ),
    )


def gradient_sums(
    trainer: PreferenceTrainer, kinds: Sequence[PairKind], limit: int, progress: Callable[[int, int], None]
) -> dict[PairKind, GradientSum]:
    """The gradient of each kind that occurs; `kinds` are those of the trainer's pairs, in their order.

    Evenly spaced pairs are measured, in micro-batches of the training's size, which have a reference point under `kto`.
    """
    trainer.model.eval()  # no dropout
    of_kind = {kind: [index for index, other in enumerate(kinds) if other is kind] for kind in PairKind}
    measured = {kind: evenly_spaced(indices, limit) for kind, indices in of_kind.items() if indices}
    done, total, sums = 0, sum(map(len, measured.values())), {}
    for kind, indices in measured.items():
        dpo, sft = ([torch.zeros_like(weight, device="cpu") for weight in _trainable(trainer.model)] for _ in range(2))
        size = trainer.args.per_device_train_batch_size
        for first in range(0, len(indices), size):
            slots = indices[first : first + size]
            _add_gradients(trainer, slots, dpo, sft)
            done += len(slots)
            progress(done, total)
        whole = [first + second for first, second in zip(dpo, sft, strict=True)]
        sums[kind] = GradientSum(len(of_kind[kind]), len(indices), {"loss": whole, "dpo": dpo, "sft": sft})
    return sums


def evenly_spaced(indices: Sequence[int], limit: int) -> list[int]:
    """At most `limit` of the indices, at equal distances, the first among them."""
    count = min(limit, len(indices))
    return [indices[number * len(indices) // count] for number in range(count)]


def norm(gradient: Gradient) -> float:
    """The L2 norm, summed in float64."""
    return math.sqrt(inner(gradient, gradient))


def inner(first: Gradient, second: Gradient) -> float:
    """The inner product, summed in float64."""
    pairs = zip(first, second, strict=True)
    return math.fsum(float(torch.dot(a.flatten().double(), b.flatten().double())) for a, b in pairs)


def cosine(first: Gradient, second: Gradient) -> float | None:
    """The cosine of the angle between two gradients; None if one of them is 0."""
    norms = norm(first) * norm(second)
    return max(-1.0, min(1.0, inner(first, second) / norms)) if norms else None


def _add_gradients(trainer: PreferenceTrainer, slots: Sequence[int], dpo: Gradient, sft: Gradient) -> None:
    """Add the gradients of both parts, summed over the pairs in `slots`: one forward and up to two backward passes."""
    device, weights = trainer.accelerator.device, list(_trainable(trainer.model))
    batch = send_to_device(trainer.data_collator(slots), device)
    with torch.autocast(device.type, torch.bfloat16, enabled=trainer.mixed):
        sides = trainer.pair_logps(trainer.model, batch)
    none = torch.zeros_like(batch["lambda_dpo"])
    for total, lambdas in ((dpo, (batch["lambda_dpo"], none)), (sft, (none, batch["lambda_sft"]))):
        if any(map(torch.any, lambdas)):
            loss = trainer.pair_losses(*sides, *lambdas).loss.sum()
            gradient = torch.autograd.grad(loss, weights, retain_graph=True, materialize_grads=True)
            for accumulated, value in zip(total, gradient, strict=True):
                accumulated += value.to("cpu")


def _trainable(model: Any) -> Iterator[Tensor]:
    return (parameter for parameter in model.parameters() if parameter.requires_grad)


def _kinds(sums: Mapping[PairKind, GradientSum]) -> tuple[KindGradient, ...]:
    sizes = {part: {kind: of_kind.total_norm(part) for kind, of_kind in sums.items()} for part in PARTS}
    whole = {part: math.fsum(totals.values()) for part, totals in sizes.items()}
    return tuple(
        KindGradient(
            kind=kind,
            pairs=of_kind.pairs,
            measured_pairs=of_kind.measured_pairs,
            **{
                part: GradientSize(
                    mean_norm=totals[kind] / of_kind.pairs,
                    total_norm=totals[kind],
                    share=totals[kind] / whole[part] if whole[part] else None,
                )
                for part, totals in sizes.items()
            },
            dpo_sft_cosine=cosine(of_kind.parts["dpo"], of_kind.parts["sft"]),
        )
        for kind, of_kind in sums.items()
    )
