"""Tiny models are fastest on one thread."""

from train.tiny_policies import one_thread

__all__ = ["one_thread"]
