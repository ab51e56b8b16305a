"""Eq. 5, 7 and 9 by hand."""

import math

import pytest
import torch

from coevolve.train.collate import sft_losses
from coevolve.train.losses import TokenLogps, pair_losses

ACTIONS = torch.tensor([[True, False, True], [False, True, False]])
OFF = math.nan  # what stands off the mask must not matter, whatever it is
CHOSEN = TokenLogps(
    torch.tensor([[-1.0, OFF, -2.0], [OFF, -4.0, OFF]]), torch.tensor([[-2.0, OFF, -2.0], [OFF, -4.0, OFF]]), ACTIONS
)
REJECTED = TokenLogps(
    torch.tensor([[-5.0, OFF, -1.0], [OFF, -3.0, OFF]]), torch.tensor([[-4.0, OFF, -1.0], [OFF, -5.0, OFF]]), ACTIONS
)


@pytest.mark.parametrize(("nll", "tokens"), [("mean", 2), ("sum", 1)])
def test_pair_losses(nll, tokens):
    losses = pair_losses(CHOSEN, REJECTED, torch.tensor([0.5, 1.0]), torch.tensor([0.25, 0.0]), beta=0.5, nll=nll)
    margins = [0.5 * (1 - -1), 0.5 * (0 - 2)]
    first = 0.5 * math.log1p(math.exp(-margins[0])) + 0.25 * 3 / tokens
    second = math.log1p(math.exp(-margins[1]))
    assert losses.loss.tolist() == pytest.approx([first, second])
    assert losses.margin.tolist() == margins
    assert (losses.chosen.tolist(), losses.rejected.tolist()) == ([-3.0, -4.0], [-6.0, -3.0])


def test_sft_losses():
    assert sft_losses(CHOSEN.policy, ACTIONS).tolist() == [3.0, 4.0]


def test_a_side_without_actions_stays_finite():
    nobody = TokenLogps(CHOSEN.policy, CHOSEN.reference, torch.zeros_like(ACTIONS))
    losses = pair_losses(nobody, nobody, torch.ones(2), torch.ones(2), beta=0.1, nll="mean")
    assert torch.isfinite(losses.loss).all()
