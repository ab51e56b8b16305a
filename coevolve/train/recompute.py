"""When activations are recomputed. The plan, which loads no torch, reads it too."""

#: Above this many parameters the backward pass recomputes activations: slower, less memory, the same numbers.
RECOMPUTE_ABOVE = 1_000_000_000
