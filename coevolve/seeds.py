"""Seeds derived by hashing names, instead of a global generator or arithmetic on seeds."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np


def derive(seed: int, *names: str | int) -> int:
    """A 63-bit seed, the hash of `seed` and `names`; the same on every machine."""
    key = "\x1f".join(str(part) for part in (seed, *names))
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big") >> 1


def generator(seed: int, *names: str | int) -> np.random.Generator:
    """A new numpy generator with the seed derived from `seed` and `names`."""
    import numpy as np  # most jobs that derive a seed need no generator, and its import takes a tenth of a second

    return np.random.default_rng(derive(seed, *names))
