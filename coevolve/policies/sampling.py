"""From logits to tokens, with one uniform number per token."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from coevolve import seeds
from coevolve.records.episodes import Sampling


def uniforms(seed: int, turn: int, count: int) -> NDArray[np.float64]:
    """Numbers in [0, 1) for the first `count` tokens of turn number `turn` of the episode with this `seed`, [count].

    Philox is counter-based: equal arguments give equal numbers, and a longer sequence begins with the shorter one.
    """
    return np.random.Generator(np.random.Philox(key=seeds.derive(seed, "turn", turn))).random(count)


def logps_of(logits: torch.Tensor, tokens: Sequence[int]) -> list[float]:
    """Log-probs in nats of one token id per row of `logits` [B, V] under softmax(logits): at temperature 1."""
    columns = torch.tensor(tokens, device=logits.device)[:, None]
    logps: list[float] = torch.log_softmax(logits.float(), dim=-1).gather(1, columns)[:, 0].tolist()
    return logps


def choose(logits: torch.Tensor, sampling: Sampling, uniform: NDArray[np.float64]) -> list[int]:
    """One token id per row of `logits` [B, V]: the argmax at temperature 0, otherwise sampled with `uniform` [B].

    Sampling inverts the cumulative distribution of softmax(logits / T) in float64. With top_p < 1 the distribution is
    restricted to the nucleus: the most likely tokens until their probabilities add up to top_p.
    """
    if sampling.temperature == 0:
        greedy: list[int] = logits.argmax(-1).tolist()
        return greedy
    probabilities = torch.softmax(logits.double() / sampling.temperature, dim=-1)
    if sampling.top_p < 1:
        probabilities = _nucleus(probabilities, sampling.top_p)
    cumulative = probabilities.cumsum(-1)
    total = cumulative[:, -1:]
    target = torch.as_tensor(uniform, device=logits.device)[:, None] * total
    target = target.minimum(total.nextafter(torch.zeros_like(total)))  # the product may round up to the total
    sampled: list[int] = torch.searchsorted(cumulative, target, right=True)[:, 0].tolist()
    return sampled


def _nucleus(probabilities: torch.Tensor, top_p: float) -> torch.Tensor:
    """`probabilities` [B, V] with every token outside the nucleus set to 0."""
    ordered, order = probabilities.sort(dim=-1, descending=True, stable=True)
    outside = ordered.cumsum(-1) - ordered >= top_p
    return probabilities.masked_fill(torch.zeros_like(outside).scatter(-1, order, outside), 0.0)
