"""Log-probs of given tokens under a policy, and how far each is below the most probable one."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import torch

from coevolve.chat.chat_template import Ids
from coevolve.policies import loading


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
