"""Eq. 2 and 5: the likelihood of trajectories, and the loss of supervised training.

Shapes: B trajectories, T predicted tokens. `action_mask` is the indicator 1(t_k in A) of eq. 5: True where the agent
produced the token.
"""

from torch import Tensor


def trajectory_logps(token_logps: Tensor, action_mask: Tensor) -> Tensor:
    """Log pi(e | u) in nats, [B] (eq. 2): the sum over action tokens alone."""
    return token_logps.masked_fill(~action_mask, 0.0).sum(dim=1)


def sft_losses(token_logps: Tensor, action_mask: Tensor) -> Tensor:
    """Eq. 5 for each trajectory, [B], in nats: -sum_k log pi(t_k | t_<k) 1(t_k in A)."""
    return -trajectory_logps(token_logps, action_mask)
