"""Eq. 5, 7 and 9 as pure functions of per-token log-probabilities, and the objectives that rival eq. 7.

Shapes: P pairs or B trajectories, T predicted tokens. `actions` is the indicator 1(t_k in A) of eq. 5: True where the
agent itself produced the token. Every function returns one value per pair or trajectory; the mean over the whole batch
is the trainers' to take, so that the split into micro-batches cannot change it (KTO's reference point excepted).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from coevolve.config.sections import ObjectiveConfig


@dataclass(frozen=True)
class Side:
    """The chosen or the rejected trajectories of P pairs: log pi(t_k | t_<k) under both policies, [P, T]."""

    policy: Tensor
    reference: Tensor
    actions: Tensor


@dataclass(frozen=True)
class Preference:
    """What a preference objective says of each pair, [P]: its loss, and the margin that the loss widens."""

    loss: Tensor
    margin: Tensor


@dataclass(frozen=True)
class PairLosses:
    """What eq. 9 says of each pair, [P]: the loss, and the numbers worth watching.

    `chosen` and `rejected` are log pi_theta(e | u) in nats; `margin` is the argument of the sigmoid in eq. 7.
    """

    loss: Tensor
    chosen: Tensor
    rejected: Tensor
    margin: Tensor


#: chosen, rejected, beta -> one `Preference`.
Objective = Callable[[Side, Side, float], Preference]


def trajectory_logps(token_logps: Tensor, actions: Tensor) -> Tensor:
    """Log pi(e | u) in nats, [B] (eq. 2): the sum over action tokens; observations are the environment's doing."""
    return token_logps.masked_fill(~actions, 0.0).sum(dim=1)


def sft_losses(token_logps: Tensor, actions: Tensor) -> Tensor:
    """Eq. 5 for each trajectory, [B], in nats: -sum_k log pi(t_k | t_<k) 1(t_k in A)."""
    return -trajectory_logps(token_logps, actions)


def log_ratios(side: Side) -> Tensor:
    """Log pi_theta(e | u) / pi_ref(e | u) in nats, [P]."""
    return trajectory_logps(side.policy, side.actions) - trajectory_logps(side.reference, side.actions)


def lengths(actions: Tensor) -> Tensor:
    """Number of action tokens of each trajectory, [B]; 1 where there is none."""
    return actions.sum(dim=1).clamp(min=1)


def turns(actions: Tensor) -> Tensor:
    """The turn each action token belongs to, [B, T], counted from 0: a turn is a run of action tokens."""
    begins = actions.clone()
    begins[:, 1:] &= ~actions[:, :-1]
    return (begins.cumsum(dim=1) - 1).clamp(min=0)


def dpo(chosen: Side, rejected: Side, beta: float) -> Preference:
    """Eq. 7 (Rafailov et al. 2023, eq. 7): -log sigma(beta d_chosen - beta d_rejected), d the log-ratios."""
    margin = beta * log_ratios(chosen) - beta * log_ratios(rejected)
    return Preference(-logsigmoid(margin), margin)


def dpo_length(chosen: Side, rejected: Side, beta: float) -> Preference:
    """Length-normalised DPO (Lambert et al. 2024, Tulu 3, eq. 6): eq. 7 with each d divided by its action tokens."""
    margin = beta * _mean_log_ratios(chosen) - beta * _mean_log_ratios(rejected)
    return Preference(-logsigmoid(margin), margin)


def dmpo(chosen: Side, rejected: Side, beta: float, *, discount: float) -> Preference:
    """DMPO (Shi et al. 2024, eq. 13): eq. 7 with the log-ratio of turn t of T weighed by phi(t, T) of `discount`."""
    margin = beta * _discounted_log_ratios(chosen, discount) - beta * _discounted_log_ratios(rejected, discount)
    return Preference(-logsigmoid(margin), margin)


def simpo(chosen: Side, rejected: Side, beta: float, *, margin: float) -> Preference:
    """SimPO (Meng et al. 2024, eq. 6): length-normalised, without a reference, with a target margin gamma.

    -log sigma(beta mean log pi(chosen) - beta mean log pi(rejected) - gamma), means over action tokens.
    """
    gap = beta * _mean_logps(chosen) - beta * _mean_logps(rejected) - margin
    return Preference(-logsigmoid(gap), gap)


def ipo(chosen: Side, rejected: Side, beta: float) -> Preference:
    """IPO (Azar et al. 2023, eq. 17): (h - 1 / (2 tau))^2, h the difference of the log-ratios, tau = `beta`.

    choice: log-ratios are means over action tokens, as in TRL, whose authors confirmed that with those of the paper.
    """
    h = _mean_log_ratios(chosen) - _mean_log_ratios(rejected)
    return Preference((h - 1 / (2 * beta)) ** 2, h)


def kto(chosen: Side, rejected: Side, beta: float, *, desirable: float, undesirable: float) -> Preference:
    """KTO (Ethayarajh et al. 2024, eq. 7) with the chosen side desirable and the rejected one undesirable.

    The mean over a pair's two trajectories of lambda_D (1 - sigma(beta (d_chosen - z))) and
    lambda_U (1 - sigma(beta (z' - d_rejected))). The reference point, an estimate of KL(pi_theta || pi_ref) without a
    gradient, is estimated on the other half of the batch: z = max(0, mean d_rejected), z' = max(0, mean d_chosen).

    choice: this is KTO on pairs as TRL had it. TRL's unpaired KTO takes z from a further pass over each prompt with the
    next one's completion; ours have observations that would not fit. As there, the means go over the pairs of one
    micro-batch on one device, so under this objective `micro_batch` has a say.
    """
    d_chosen, d_rejected = log_ratios(chosen), log_ratios(rejected)
    z_chosen, z_rejected = (d.detach().mean().clamp(min=0) for d in (d_rejected, d_chosen))
    gain = desirable * (1 - torch.sigmoid(beta * (d_chosen - z_chosen)))
    pain = undesirable * (1 - torch.sigmoid(beta * (z_rejected - d_rejected)))
    return Preference((gain + pain) / 2, beta * (d_chosen - d_rejected))


OBJECTIVES: dict[str, Callable[..., Preference]] = {
    "dpo": dpo,
    "dpo_length": dpo_length,
    "dmpo": dmpo,
    "simpo": simpo,
    "ipo": ipo,
    "kto": kto,
}


def objective(config: ObjectiveConfig) -> Objective:
    """The objective a config names, its parameters given."""
    return functools.partial(OBJECTIVES[config.name], **config.parameters)


def pair_losses(
    chosen: Side,
    rejected: Side,
    lambda_dpo: Tensor,
    lambda_sft: Tensor,
    beta: float,
    nll: Literal["mean", "sum"],
    objective: Objective = dpo,
) -> PairLosses:
    """Eq. 9 for each pair; with weights (1, 0) it is eq. 7, or the `objective` in its place. `lambda_*`: [P].

    `nll` "mean" divides -log pi(e_chosen | u) by its number of action tokens, so that it does not drown the preference
    term; "sum" is eq. 9 to the letter.
    """
    log_chosen = trajectory_logps(chosen.policy, chosen.actions)  # log pi_theta(e_chosen | u)
    log_rejected = trajectory_logps(rejected.policy, rejected.actions)  # log pi_theta(e_rejected | u)
    preference = objective(chosen, rejected, beta)  # eq. 7
    l_sft = -log_chosen  # eq. 9: -log pi_theta(e_chosen | u)
    if nll == "mean":
        l_sft = l_sft / lengths(chosen.actions)
    loss = lambda_dpo * preference.loss + lambda_sft * l_sft  # eq. 9: lambda_DPO L_DPO + lambda_SFT E[-log pi_theta]
    return PairLosses(loss, log_chosen.detach(), log_rejected.detach(), preference.margin.detach())


def _mean_logps(side: Side) -> Tensor:
    return trajectory_logps(side.policy, side.actions) / lengths(side.actions)


def _mean_log_ratios(side: Side) -> Tensor:
    return log_ratios(side) / lengths(side.actions)


def _discounted_log_ratios(side: Side, discount: float) -> Tensor:
    """The sum over turns of phi(t, T) times the turn's log-ratio, [P]."""
    numbers = turns(side.actions)
    counts = numbers.amax(dim=1, keepdim=True) + 1
    ratios = (side.policy - side.reference).masked_fill(~side.actions, 0.0)
    return (_phi(numbers, counts, discount).to(ratios.dtype) * ratios).sum(dim=1)


def _phi(turn: Tensor, count: Tensor, discount: float) -> Tensor:
    """Phi(t, T) = gamma^t (1 - gamma^(T - t)) / (1 - gamma^T), 1 for the first turn; (T - t) / T for gamma = 1."""
    left = (count - turn).double()
    if discount == 1.0:
        return left / count
    return discount ** turn.double() * (1 - discount**left) / (1 - discount ** count.double())
