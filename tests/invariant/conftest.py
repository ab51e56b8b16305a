"""The tiny policies of the training tests."""

from train.tiny_policies import llama, one_thread, other, qwen

__all__ = ["llama", "one_thread", "other", "qwen"]
