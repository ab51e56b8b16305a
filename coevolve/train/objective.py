"""Eq. 5, 7 and 9 as pure functions of per-token log-probabilities.

Shapes: P pairs or B trajectories, T predicted tokens. `actions` is the indicator 1(t_k in A) of eq. 5: True where the
agent itself produced the token. Every function returns one value per pair or trajectory; the mean over the whole batch
is the trainers' to take, so that the split into micro-batches cannot change it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor
from torch.nn.functional import logsigmoid


@dataclass(frozen=True)
class Side:
    """The chosen or the rejected trajectories of P pairs: log pi(t_k | t_<k) under both policies, [P, T]."""

    policy: Tensor
    reference: Tensor
    actions: Tensor


@dataclass(frozen=True)
class PairLosses:
    """What the objective says of each pair, [P]: the loss, and the numbers worth watching.

    `chosen` and `rejected` are log pi_theta(e | u) in nats; `margin` is the argument of the sigmoid in eq. 7.
    """

    loss: Tensor
    chosen: Tensor
    rejected: Tensor
    margin: Tensor


def trajectory_logps(token_logps: Tensor, actions: Tensor) -> Tensor:
    """Log pi(e | u) in nats, [B] (eq. 2): the sum over action tokens; observations are the environment's doing."""
    return token_logps.masked_fill(~actions, 0.0).sum(dim=1)


def sft_losses(token_logps: Tensor, actions: Tensor) -> Tensor:
    """Eq. 5 for each trajectory, [B], in nats: -sum_k log pi(t_k | t_<k) 1(t_k in A)."""
    return -trajectory_logps(token_logps, actions)


def pair_losses(
    chosen: Side,
    rejected: Side,
    lambda_dpo: Tensor,
    lambda_sft: Tensor,
    beta: float,
    nll: Literal["mean", "sum"],
) -> PairLosses:
    """Eq. 9 for each pair; with weights (1, 0) it is eq. 7. `lambda_*`: [P].

    `nll` "mean" divides -log pi(e_chosen | u) by its number of action tokens, so that it does not drown the preference
    term; "sum" is eq. 9 to the letter.
    """
    log_chosen = trajectory_logps(chosen.policy, chosen.actions)  # log pi_theta(e_chosen | u)
    log_rejected = trajectory_logps(rejected.policy, rejected.actions)  # log pi_theta(e_rejected | u)
    d_chosen = log_chosen - trajectory_logps(chosen.reference, chosen.actions)  # log pi_theta / pi_ref (e_chosen | u)
    d_rejected = log_rejected - trajectory_logps(rejected.reference, rejected.actions)
    margin = beta * d_chosen - beta * d_rejected
    l_dpo = -logsigmoid(margin)  # eq. 7: -log sigma(beta d_chosen - beta d_rejected)
    l_sft = -log_chosen  # eq. 9: -log pi_theta(e_chosen | u)
    if nll == "mean":
        l_sft = l_sft / chosen.actions.sum(dim=1).clamp(min=1)
    loss = lambda_dpo * l_dpo + lambda_sft * l_sft  # eq. 9: lambda_DPO L_DPO + lambda_SFT E[-log pi_theta]
    return PairLosses(loss=loss, chosen=log_chosen.detach(), rejected=log_rejected.detach(), margin=margin.detach())
