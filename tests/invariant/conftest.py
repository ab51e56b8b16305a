"""The tiny policies of the training tests."""

from train.conftest import llama, one_thread, other, qwen

__all__ = ["llama", "one_thread", "other", "qwen"]
