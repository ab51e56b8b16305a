"""The objectives beside eq. 7, against plain loops in float64 and by their properties."""

import math

import pytest
import torch
from train.plain_objectives import reference_losses

from coevolve.train.losses import OBJECTIVES, TokenLogps, objective, pair_losses
from coevolve.train.settings import ObjectiveConfig, is_reference_free

PAIRS, TOKENS = 5, 23
PARAMETERS = {
    "dpo": {},
    "dpo_length": {},
    "dmpo": {"discount": 0.7},
    "simpo": {"margin": 0.4},
    "ipo": {},
    "kto": {"desirable": 1.3, "undesirable": 0.8},
}
CASES = [*PARAMETERS.items(), ("dmpo", {"discount": 1.0})]
NAMES = list(PARAMETERS)


def random_side(seed, shift=0.0):
    generator = torch.Generator().manual_seed(seed)
    policy, reference = -torch.rand((2, PAIRS, TOKENS), generator=generator, dtype=torch.float64) * 3
    actions = torch.rand((PAIRS, TOKENS), generator=generator) < 0.5
    actions[:, 3] = True
    return TokenLogps((policy + shift).requires_grad_(), reference, actions)


def losses_of(name, chosen, rejected, beta, parameters):
    return objective(ObjectiveConfig(name=name, **parameters))(chosen, rejected, beta)


@pytest.mark.parametrize(("name", "parameters"), CASES)
@pytest.mark.parametrize("beta", [0.1, 0.5])
@pytest.mark.parametrize("shift", [-0.5, 0.5])
def test_objectives_are_their_equations(name, parameters, beta, shift):
    """Losses and gradients to 1e-9; the shift gives KTO reference points on both sides of 0."""
    chosen, rejected = random_side(1, shift), random_side(2, shift)
    losses = losses_of(name, chosen, rejected, beta, parameters).loss
    expected = reference_losses(name, chosen, rejected, beta, parameters)
    torch.testing.assert_close(losses, expected, rtol=1e-9, atol=1e-9)
    weights = torch.arange(1.0, PAIRS + 1, dtype=torch.float64)
    inputs = (chosen.policy, rejected.policy)
    ours = torch.autograd.grad((losses * weights).sum(), inputs)
    theirs = torch.autograd.grad((expected * weights).sum(), inputs)
    for gradient, wanted in zip(ours, theirs, strict=True):
        assert wanted.abs().max() > 1e-3
        torch.testing.assert_close(gradient, wanted, rtol=1e-9, atol=1e-9)


def at_step_0(seed):
    side = random_side(seed)
    return TokenLogps(side.reference.clone().requires_grad_(), side.reference, side.action_mask)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("dpo", math.log(2)),
        ("dpo_length", math.log(2)),
        ("dmpo", math.log(2)),
        ("ipo", (1 / (2 * 0.1)) ** 2),
        ("kto", (1.3 + 0.8) / 4),
    ],
)
def test_at_step_0_the_loss_is_known(name, value):
    preference = losses_of(name, at_step_0(1), at_step_0(2), 0.1, PARAMETERS[name])
    assert preference.loss.tolist() == pytest.approx([value] * PAIRS)
    assert preference.margin.tolist() == pytest.approx([0.0] * PAIRS)


@pytest.mark.parametrize("name", NAMES)
def test_only_simpo_ignores_the_reference(name):
    def loss(shift):
        chosen, rejected = random_side(1), random_side(2)
        shifted = TokenLogps(chosen.policy, chosen.reference + shift, chosen.action_mask)
        return losses_of(name, shifted, rejected, 0.1, PARAMETERS[name]).loss

    assert torch.equal(loss(0.0), loss(0.3)) == is_reference_free(ObjectiveConfig(name=name, **PARAMETERS[name]))


def test_lambda_0_leaves_the_other_term():
    chosen, rejected = random_side(1), random_side(2)
    nothing, one = torch.zeros(PAIRS), torch.ones(PAIRS)
    for name in NAMES:
        chosen_one = objective(ObjectiveConfig(name=name, **PARAMETERS[name]))
        alone = pair_losses(chosen, rejected, nothing, one, 0.1, "mean", chosen_one).loss
        assert torch.equal(alone, pair_losses(chosen, rejected, nothing, one, 0.1, "mean").loss)
        pure = pair_losses(chosen, rejected, one, nothing, 0.1, "mean", chosen_one).loss
        assert torch.equal(pure, chosen_one(chosen, rejected, 0.1).loss)


def test_every_objective_has_a_name_in_the_config():
    assert set(OBJECTIVES) == set(NAMES) == set(ObjectiveConfig.model_fields["name"].annotation.__args__)
