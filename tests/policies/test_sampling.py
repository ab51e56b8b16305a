"""Sampling against the definition, in float64."""

import numpy as np
import pytest
import torch

from coevolve.policies.sampling import choose, uniforms
from coevolve.records.episodes import Sampling

LOGITS = torch.tensor([[2.0, -1.0, 0.5, 1.0, -torch.inf, 0.0]])


def softmax(logits, temperature):
    weights = np.exp(logits.double().numpy()[0] / temperature)
    return weights / weights.sum()


def reference(probabilities, uniform):
    return int(np.argmax(np.cumsum(probabilities) > uniform * probabilities.sum()))


def test_what_is_impossible_is_never_chosen_and_at_temperature_zero_the_likeliest():
    logits = torch.tensor([[-torch.inf, 1.0, -torch.inf, 1.0, -torch.inf]])
    chances = np.array([0.0, 0.25, 0.5, np.nextafter(1.0, 0.0)])
    assert choose(logits.expand(4, -1), Sampling(temperature=1.0), chances) == [1, 1, 3, 3]
    likeliest = choose(torch.tensor([[0.0, 3.0, 1.0], [5.0, 3.0, 1.0]]), Sampling(temperature=0), np.zeros(2))
    assert likeliest == [1, 0]


@pytest.mark.parametrize("temperature", [0.3, 1.0, 2.0])
def test_the_distribution_function_is_inverted(temperature):
    chances = np.concatenate([uniforms(7, 0, 500), [0.0, np.nextafter(1.0, 0.0)]])
    chosen = choose(LOGITS.expand(len(chances), -1), Sampling(temperature=temperature), chances)
    assert chosen == [reference(softmax(LOGITS, temperature), chance) for chance in chances]
    assert 4 not in chosen


def test_the_nucleus_ends_where_it_reaches_top_p():
    """Two tokens of probability 1/2."""
    half = Sampling(temperature=1.0, top_p=0.5)
    assert set(choose(torch.zeros(1, 2).expand(50, -1), half, torch.linspace(0, 0.99, 50).tolist())) == {0}


@pytest.mark.parametrize(("top_p", "kept"), [(0.3, {0}), (0.6, {0, 3}), (0.9, {0, 2, 3, 5}), (1.0, {0, 1, 2, 3, 5})])
def test_top_p_keeps_the_fewest_tokens_that_reach_it(top_p, kept):
    chances = uniforms(1, 0, 2000)
    chosen = choose(LOGITS.expand(2000, -1), Sampling(temperature=1.0, top_p=top_p), chances)
    left = np.where(np.isin(np.arange(6), list(kept)), softmax(LOGITS, 1.0), 0.0)
    assert chosen == [reference(left, chance) for chance in chances]
    assert set(chosen) == kept


def test_uniform_numbers_are_uniform_and_belong_to_seed_turn_and_token():
    many = uniforms(3, 0, 20_000)
    assert (many >= 0).all() and (many < 1).all()
    tenths = np.bincount((10 * many).astype(int), minlength=10)
    assert np.sum((tenths - 2_000) ** 2 / 2_000) < 27.9  # 99.9 % quantile at 9 degrees of freedom
    assert np.array_equal(uniforms(3, 0, 30), many[:30])
    for other in (uniforms(3, 1, 100), uniforms(2, 0, 100)):
        assert not np.isin(other, many).any()
