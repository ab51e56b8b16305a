"""From logits to tokens, by a uniform number that belongs to the token and to nothing else."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from coevolve import seeds
from coevolve.types import Sampling


def uniforms(seed: int, turn: int, count: int) -> NDArray[np.float64]:
    """Numbers in [0, 1) for the first `count` tokens of turn number `turn` of the episode with this `seed`, [count].

    Philox counts: the same arguments give the same numbers, and a longer sequence begins with the shorter one.
    """
    return np.random.Generator(np.random.Philox(key=seeds.derive(seed, "turn", turn))).random(count)


def choose(logits: torch.Tensor, sampling: Sampling, uniform: NDArray[np.float64]) -> list[int]:
    """One token id per row of `logits` [B, V]: the likeliest one at temperature 0, else the one under `uniform` [B].

    The latter inverts the distribution function of softmax(logits / T) in float64. With top_p < 1 only the likeliest
    tokens whose probabilities first add up to top_p are left.
    """
    if sampling.temperature == 0:
        return _ids(logits.argmax(-1))
    probabilities = torch.softmax(logits.double() / sampling.temperature, dim=-1)
    if sampling.top_p < 1:
        probabilities = _nucleus(probabilities, sampling.top_p)
    cumulative = probabilities.cumsum(-1)
    total = cumulative[:, -1:]
    target = torch.as_tensor(uniform, device=logits.device)[:, None] * total
    target = target.minimum(total.nextafter(torch.zeros_like(total)))  # a product may round up to the total
    return _ids(torch.searchsorted(cumulative, target, right=True)[:, 0])


def _nucleus(probabilities: torch.Tensor, top_p: float) -> torch.Tensor:
    """`probabilities` [B, V] with everything outside the nucleus set to 0."""
    ordered, order = probabilities.sort(dim=-1, descending=True, stable=True)
    outside = ordered.cumsum(-1) - ordered >= top_p
    return probabilities.masked_fill(torch.zeros_like(outside).scatter(-1, order, outside), 0.0)


def _ids(tokens: torch.Tensor) -> list[int]:
    return [int(token) for token in tokens.tolist()]
