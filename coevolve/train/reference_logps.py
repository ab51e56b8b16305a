"""What a reference policy says of rows of tokens: computed once, kept in a file, found again by the tokens themselves.

Attention is causal, so a row's log-probs are those of everything that begins with it: a trajectory that is cut short,
or stands in several pairs, needs no row of its own.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import PartialState  # type: ignore[import-untyped]
from safetensors.torch import load_file, save_file
from torch import Tensor
from trl.trainer.utils import add_fused_lm_head

from coevolve.train.collate import lay, token_logps
from coevolve.train.rows import Row

Ids = Sequence[int]


@dataclass(frozen=True)
class Scores:
    """Rows in the order of their tokens, and of each log pi(t_k | t_<k) in nats of all its tokens but the first."""

    rows: Sequence[bytes]
    logps: Sequence[Tensor]

    def of(self, input_ids: Ids) -> Tensor | None:
        """Those of a row's tokens, float32 [len - 1]; None where no row begins so."""
        wanted = _key(input_ids)
        place = bisect_left(self.rows, wanted)
        if place == len(self.rows) or not self.rows[place].startswith(wanted):
            return None
        return self.logps[place][: len(input_ids) - 1]


def distinct(rows: Iterable[Ids]) -> list[tuple[int, ...]]:
    """The rows in the order of their tokens, without those that another one begins with."""
    found = sorted({tuple(row) for row in rows})
    return [row for row, after in pairwise([*found, ()]) if after[: len(row)] != row]


def score(model: Any, rows: Sequence[Ids], tell: Callable[[int, int], None]) -> list[Tensor]:
    """Log pi(t_k | t_<k) in nats of all tokens of each row but the first, float32 [len - 1], computed as trainers do.

    Each row stands alone: no other can change a bit of it. `tell` hears how many of all are done.
    """
    device = PartialState().device
    cuda = device.type == "cuda"
    if cuda:
        if model.device.type != "cuda":  # where a quantised model is already, and from where it cannot be moved
            model.to(device)
        add_fused_lm_head(model)
    found = []
    with torch.inference_mode(), torch.autocast(device.type, dtype=torch.bfloat16, enabled=cuda):
        for done, row in enumerate(rows, start=1):
            batch = lay([[Row(tuple(row), (1,) * len(row))]], "padded")
            on_device = {name: tensor.to(device) for name, tensor in batch.items()}
            found.append(token_logps(model, on_device, fused=cuda)[0].float().cpu())
            tell(done, len(rows))
    return found


def write(path: Path, rows: Sequence[Ids], logps: Sequence[Tensor]) -> None:
    """Leave distinct `rows`, as :func:`distinct` orders them, and their log-probs, end to end, with their `lengths`."""
    tensors = {
        "token_ids": torch.tensor([token for row in rows for token in row], dtype=torch.int32),
        "logps": torch.cat([torch.zeros(0), *logps]),
        "lengths": torch.tensor([len(row) for row in rows], dtype=torch.int64),
    }
    save_file(tensors, path)


def read(path: Path) -> Scores:
    """What :func:`write` left."""
    tensors = load_file(path)
    lengths = tensors["lengths"].tolist()
    rows = np.split(tensors["token_ids"].numpy(), np.cumsum(lengths)[:-1]) if lengths else []
    logps = tensors["logps"].split_with_sizes([length - 1 for length in lengths])
    return Scores([_key(row) for row in rows], logps)


def _key(input_ids: Ids | np.ndarray[Any, Any]) -> bytes:
    """Token ids as bytes in the same order, and beginning alike where they do."""
    return np.asarray(input_ids, dtype=">u4").tobytes()
