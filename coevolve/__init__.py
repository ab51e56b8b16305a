"""Co-evolving agents, reproduced: rollouts, pairs, weighted preference training, tables."""

__version__ = "0.1.0"
