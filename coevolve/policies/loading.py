"""A policy directory as a model and a tokenizer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging as transformers_logging

from coevolve.storage.policy_dir import require_weights


def load_model(path: Path, dtype: torch.dtype | str = "auto") -> Any:
    """The model, ready to act; `dtype` "auto" is the one its weights were saved in."""
    require_weights(path)
    transformers_logging.disable_progress_bar()
    model = AutoModelForCausalLM.from_pretrained(path, dtype=dtype, local_files_only=True, attn_implementation="sdpa")
    return model.eval()


def load_tokenizer(path: Path) -> Any:
    """The tokenizer, with the chat template that lies beside it."""
    return AutoTokenizer.from_pretrained(path, local_files_only=True)
