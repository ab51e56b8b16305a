"""The tiny policies of the training tests."""

from train.tiny_policies import exact_norms, llama, one_thread, other, qwen

__all__ = ["exact_norms", "llama", "one_thread", "other", "qwen"]
