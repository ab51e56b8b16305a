"""The tiny policies and the key-door world of the training tests."""

from train.doors import half
from train.key_door import base
from train.tiny_policies import exact_norms, llama, one_thread, other, qwen

__all__ = ["base", "exact_norms", "half", "llama", "one_thread", "other", "qwen"]
