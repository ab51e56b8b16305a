"""From logits to tokens, with one uniform number per token, and how probable given tokens are."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from coevolve import seeds
from coevolve.chat.chat_template import Ids
from coevolve.policies import loading
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


class TokenScores(NamedTuple):
    """Of each token the log-prob, and the distance from the most probable token, in nats."""

    logps: list[float]
    gaps: list[float]


@torch.inference_mode()
def token_scores(folder: Path, dtype: str | None, turns: Iterable[tuple[Ids, Ids]]) -> Iterator[TokenScores]:
    """The scores of each turn's tokens after its prompt, one forward pass a turn.

    `folder` has the policy, `turns` the token ids of prompts and of what was sampled.
    """
    model = loading.load_model(folder, loading.compute_dtype(dtype))
    model.to("cuda" if torch.cuda.is_available() else "cpu")
    for prompt, sampled in turns:
        ids = torch.tensor([[*prompt, *sampled]], device=model.device)
        logits = model(ids, logits_to_keep=len(sampled) + 1).logits[0, :-1].float()
        chosen = logits.gather(1, ids[0, -len(sampled) :, None])[:, 0]
        yield TokenScores((chosen - logits.logsumexp(-1)).tolist(), (logits.amax(-1) - chosen).tolist())
