"""Reference log-probs: computed once per token sequence, kept in a file, looked up by the token ids.

Attention is causal, so the log-probs of a sequence include those of all its prefixes: a trajectory that was truncated,
or that is part of several pairs, needs no entry of its own.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from coevolve.chat.chat_template import TokenizedTrajectory
from coevolve.policies import loading
from coevolve.train.collate import add_tiled_head, collate, token_logps

Ids = Sequence[int]


@dataclass(frozen=True)
class ReferenceLogps:
    """Sequences as sorted bytes, and log pi(t_k | t_<k) in nats of all tokens of each but the first."""

    keys: Sequence[bytes]
    logps: Sequence[Tensor]

    def lookup(self, input_ids: Ids) -> Tensor | None:
        """Log-probs of the tokens from the second one on, float32 [len - 1]; None if no sequence starts with them."""
        key = _key(input_ids)
        index = bisect_left(self.keys, key)
        if index == len(self.keys) or not self.keys[index].startswith(key):
            return None
        return self.logps[index][: len(input_ids) - 1]


def without_prefixes(sequences: Iterable[Ids]) -> list[tuple[int, ...]]:
    """The sequences in lexicographic order, without duplicates and without prefixes of others."""
    unique = sorted({tuple(sequence) for sequence in sequences})
    return [sequence for sequence, after in pairwise([*unique, ()]) if after[: len(sequence)] != sequence]


def score(
    model: Any, sequences: Sequence[Ids], progress: Callable[[int, int], None], dtype: str | None = None
) -> list[Tensor]:
    """Log pi(t_k | t_<k) in nats of all tokens of each sequence but the first, float32 [len - 1].

    Computed as the trainers do, but one sequence at a time: none changes the bits of another. `progress(done, total)`.
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    cuda = device.type == "cuda"
    if cuda:
        model.to(device)
        add_tiled_head(model)
    scored = []
    mixed = loading.compute_dtype(dtype) == torch.bfloat16
    with torch.inference_mode(), torch.autocast(device.type, dtype=torch.bfloat16, enabled=mixed):
        for done, ids in enumerate(sequences, start=1):
            batch = collate([[TokenizedTrajectory(tuple(ids), (1,) * len(ids))]], "padded")
            on_device = {name: tensor.to(device) for name, tensor in batch.items()}
            scored.append(token_logps(model, on_device, tiled=cuda)[0].float().cpu())
            progress(done, len(sequences))
    return scored


def write(path: Path, sequences: Sequence[Ids], logps: Sequence[Tensor]) -> None:
    """Write the sequences of :func:`without_prefixes` and their log-probs, concatenated, and their `lengths`."""
    tensors = {
        "token_ids": torch.tensor([token for ids in sequences for token in ids], dtype=torch.int32),
        "logps": torch.cat([torch.zeros(0), *logps]),
        "lengths": torch.tensor([len(ids) for ids in sequences], dtype=torch.int64),
    }
    save_file(tensors, path)


def read(path: Path) -> ReferenceLogps:
    """The content of a file that :func:`write` wrote."""
    tensors = load_file(path)
    lengths = tensors["lengths"].tolist()
    sequences = np.split(tensors["token_ids"].numpy(), np.cumsum(lengths)[:-1]) if lengths else []
    logps = tensors["logps"].split_with_sizes([length - 1 for length in lengths])
    return ReferenceLogps([_key(ids) for ids in sequences], logps)


def _key(input_ids: Ids | np.ndarray[Any, Any]) -> bytes:
    """Token ids as bytes that sort in the same order and have the same prefixes."""
    return np.asarray(input_ids, dtype=">u4").tobytes()
