"""Seeds derived by hashing names: no global generator, no arithmetic on seeds, no collisions by accident."""

from __future__ import annotations

import hashlib

import numpy as np


def derive(seed: int, *names: str | int) -> int:
    """A 63-bit seed for the thing called `names` under `seed`; equal arguments give equal seeds on any machine."""
    key = "\x1f".join(str(part) for part in (seed, *names))
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big") >> 1


def generator(seed: int, *names: str | int) -> np.random.Generator:
    """A numpy generator of its own for the thing called `names` under `seed`."""
    return np.random.default_rng(derive(seed, *names))
