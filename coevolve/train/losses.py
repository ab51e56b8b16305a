"""Eq. 7 and 9 as pure functions of per-token log-probabilities, and alternative preference objectives.

Shapes: P pairs or B trajectories, T predicted tokens. `action_mask` is the indicator 1(t_k in A) of eq. 5: True where
the agent produced the token. Every function returns one value per pair or trajectory. The trainers take the mean over
the global batch, so that the split into micro-batches does not change it (except for KTO's reference point).
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from coevolve.train.collate import trajectory_logps
from coevolve.train.settings import ObjectiveConfig, objective_parameters


@dataclass(frozen=True)
class TokenLogps:
    """The chosen or the rejected trajectories of P pairs: log pi(t_k | t_<k) in nats under both policies, [P, T]."""

    policy: Tensor
    reference: Tensor
    action_mask: Tensor


@dataclass(frozen=True)
class PreferenceLosses:
    """The value of a preference objective for each pair, [P]: its loss, and the margin that the loss widens."""

    loss: Tensor
    margin: Tensor


@dataclass(frozen=True)
class PairLosses:
    """Eq. 9 for each pair, [P], and its metrics, which have no gradient.

    `chosen` and `rejected` are log pi_theta(e | u) in nats; `margin` is the argument of the sigmoid in eq. 7.
    """

    loss: Tensor
    chosen: Tensor
    rejected: Tensor
    margin: Tensor


#: chosen, rejected, beta -> `PreferenceLosses`.
Objective = Callable[[TokenLogps, TokenLogps, float], PreferenceLosses]


def log_ratios(logps: TokenLogps) -> Tensor:
    """Log pi_theta(e | u) / pi_ref(e | u) in nats, [P]."""
    return trajectory_logps(logps.policy, logps.action_mask) - trajectory_logps(logps.reference, logps.action_mask)


def lengths(action_mask: Tensor) -> Tensor:
    """Number of action tokens of each trajectory, [B]; 1 where there is none."""
    return action_mask.sum(dim=1).clamp(min=1)


def turns(action_mask: Tensor) -> Tensor:
    """The turn each action token belongs to, [B, T], counted from 0: a turn is a run of action tokens."""
    starts = action_mask.clone()
    starts[:, 1:] &= ~action_mask[:, :-1]
    return (starts.cumsum(dim=1) - 1).clamp(min=0)


def dpo(chosen: TokenLogps, rejected: TokenLogps, beta: float) -> PreferenceLosses:
    """Eq. 7 (Rafailov et al. 2023, eq. 7): -log sigma(beta d_chosen - beta d_rejected), d the log-ratios."""
    margin = beta * log_ratios(chosen) - beta * log_ratios(rejected)
    return PreferenceLosses(-logsigmoid(margin), margin)


def dpo_length(chosen: TokenLogps, rejected: TokenLogps, beta: float) -> PreferenceLosses:
    """Length-normalised DPO (Lambert et al. 2024, Tulu 3, eq. 6): eq. 7 with each d divided by its action tokens."""
    margin = beta * _mean_log_ratios(chosen) - beta * _mean_log_ratios(rejected)
    return PreferenceLosses(-logsigmoid(margin), margin)


def dmpo(chosen: TokenLogps, rejected: TokenLogps, beta: float, *, discount: float) -> PreferenceLosses:
    """DMPO (Shi et al. 2024, eq. 13): eq. 7 with the log-ratio of turn t of T weighted by phi(t, T) of `discount`."""
    margin = beta * _discounted_log_ratios(chosen, discount) - beta * _discounted_log_ratios(rejected, discount)
    return PreferenceLosses(-logsigmoid(margin), margin)


def simpo(chosen: TokenLogps, rejected: TokenLogps, beta: float, *, margin: float) -> PreferenceLosses:
    """SimPO (Meng et al. 2024, eq. 6): length-normalised, without a reference, with a target margin gamma.

    -log sigma(beta mean log pi(chosen) - beta mean log pi(rejected) - gamma), means over action tokens.
    """
    gap = beta * _mean_logps(chosen) - beta * _mean_logps(rejected) - margin
    return PreferenceLosses(-logsigmoid(gap), gap)


def ipo(chosen: TokenLogps, rejected: TokenLogps, beta: float) -> PreferenceLosses:
    """IPO (Azar et al. 2023, eq. 17): (h - 1 / (2 tau))^2, h the difference of the log-ratios, tau = `beta`.

    choice: log-ratios are means over action tokens, as in TRL, whose authors confirmed that with those of the paper.
    """
    h = _mean_log_ratios(chosen) - _mean_log_ratios(rejected)
    return PreferenceLosses((h - 1 / (2 * beta)) ** 2, h)


def kto(
    chosen: TokenLogps, rejected: TokenLogps, beta: float, *, desirable: float, undesirable: float
) -> PreferenceLosses:
    """KTO (Ethayarajh et al. 2024, eq. 7) with the chosen side desirable and the rejected one undesirable.

    The mean over a pair's two trajectories of lambda_D (1 - sigma(beta (d_chosen - z))) and
    lambda_U (1 - sigma(beta (z' - d_rejected))). The reference point, an estimate of KL(pi_theta || pi_ref) without a
    gradient, comes from the other half of the batch: z = max(0, mean d_rejected), z' = max(0, mean d_chosen).

    choice: this is KTO on pairs as TRL had it. TRL's unpaired KTO takes z from a further pass over each prompt with the
    completion of the next prompt; multi-turn completions contain observations that would not fit. As in TRL, the means
    go over the pairs of one micro-batch on one device, so under this objective the result depends on `micro_batch`.
    """
    d_chosen, d_rejected = log_ratios(chosen), log_ratios(rejected)
    z_chosen, z_rejected = (d.detach().mean().clamp(min=0) for d in (d_rejected, d_chosen))
    gain = desirable * (1 - torch.sigmoid(beta * (d_chosen - z_chosen)))
    pain = undesirable * (1 - torch.sigmoid(beta * (z_rejected - d_rejected)))
    return PreferenceLosses((gain + pain) / 2, beta * (d_chosen - d_rejected))


OBJECTIVES: dict[str, Callable[..., PreferenceLosses]] = {
    "dpo": dpo,
    "dpo_length": dpo_length,
    "dmpo": dmpo,
    "simpo": simpo,
    "ipo": ipo,
    "kto": kto,
}


def objective(config: ObjectiveConfig) -> Objective:
    """The objective that a config names, with its parameters set."""
    return functools.partial(OBJECTIVES[config.name], **objective_parameters(config))


def pair_losses(
    chosen: TokenLogps,
    rejected: TokenLogps,
    lambda_dpo: Tensor,
    lambda_sft: Tensor,
    beta: float,
    nll: Literal["mean", "sum"],
    objective: Objective = dpo,
) -> PairLosses:
    """Eq. 9 for each pair; with weights (1, 0) it is eq. 7, or the `objective` in its place. `lambda_*`: [P].

    `nll` "sum", the default, is eq. 9 to the letter; "mean", an ablation, divides -log pi(e_chosen | u) by its number
    of action tokens.
    """
    log_chosen = trajectory_logps(chosen.policy, chosen.action_mask)  # log pi_theta(e_chosen | u)
    log_rejected = trajectory_logps(rejected.policy, rejected.action_mask)  # log pi_theta(e_rejected | u)
    preference = objective(chosen, rejected, beta)  # eq. 7
    l_sft = -log_chosen  # eq. 9: -log pi_theta(e_chosen | u)
    if nll == "mean":
        l_sft = l_sft / lengths(chosen.action_mask)
    loss = lambda_dpo * preference.loss + lambda_sft * l_sft  # eq. 9: lambda_DPO L_DPO + lambda_SFT E[-log pi_theta]
    return PairLosses(loss, log_chosen.detach(), log_rejected.detach(), preference.margin.detach())


def _mean_logps(side: TokenLogps) -> Tensor:
    return trajectory_logps(side.policy, side.action_mask) / lengths(side.action_mask)


def _mean_log_ratios(side: TokenLogps) -> Tensor:
    return log_ratios(side) / lengths(side.action_mask)


def _discounted_log_ratios(side: TokenLogps, discount: float) -> Tensor:
    """The sum over turns of phi(t, T) times the turn's log-ratio, [P]."""
    numbers = turns(side.action_mask)
    counts = numbers.amax(dim=1, keepdim=True) + 1
    ratios = (side.policy - side.reference).masked_fill(~side.action_mask, 0.0)
    return (_phi(numbers, counts, discount).to(ratios.dtype) * ratios).sum(dim=1)


def _phi(turn: Tensor, count: Tensor, discount: float) -> Tensor:
    """Phi(t, T) = gamma^t (1 - gamma^(T - t)) / (1 - gamma^T), 1 for the first turn; (T - t) / T for gamma = 1."""
    left = (count - turn).double()
    if discount == 1.0:
        return left / count
    return discount ** turn.double() * (1 - discount**left) / (1 - discount ** count.double())
