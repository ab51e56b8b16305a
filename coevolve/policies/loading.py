"""Load the model and the tokenizer of a policy directory."""

from pathlib import Path
from typing import Any

# Before transformers.
from coevolve.policies import optional_packages  # noqa: F401

# isort: split
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging as transformers_logging

from coevolve.errors import UserError, brief
from coevolve.policies.checkpoint import read_config, require_whole


def load_model(path: Path, dtype: torch.dtype | str = "auto") -> Any:
    """The model in evaluation mode, by default in the dtype of its weights; `UserError` unless it is whole."""
    require_whole(path)
    transformers_logging.disable_progress_bar()
    model = AutoModelForCausalLM.from_pretrained(path, dtype=dtype, local_files_only=True, attn_implementation="sdpa")
    return model.eval()


def transpose_weights(model: Any) -> None:
    """Store the matrices of a model that is not trained in columns; a tied head gets a copy of its own.

    The numbers stay the same up to rounding. On a CPU with MKL products of 2 to 15 rows are up to twice as fast
    then, and any two or more rows give a row the same bits.
    """
    for module in (m for m in model.modules() if isinstance(m, torch.nn.Linear)):
        module.weight = torch.nn.Parameter(module.weight.detach().t().contiguous().t(), requires_grad=False)


def compute_dtype(name: str | None) -> torch.dtype:
    """The type of forward and backward passes called `name`; None: bfloat16 on a GPU, float32 on a CPU."""
    default = "bfloat16" if torch.cuda.is_available() else "float32"
    return {"float32": torch.float32, "bfloat16": torch.bfloat16}[name or default]


def load_tokenizer(path: Path) -> Any:
    """The tokenizer with its chat template; `UserError` without one, or if the model has no row for a token of it."""
    try:
        tokenizer = AutoTokenizer.from_pretrained(path, local_files_only=True)
    except Exception as error:  # tokenizers raises nothing narrower
        raise UserError(
            f"{path}: no tokenizer can be loaded ({brief(error)}); copy tokenizer.json beside the weights."
        ) from error
    rows, tokens = read_config(path).get_text_config().vocab_size, len(tokenizer)
    if tokens > rows:
        raise UserError(
            f"{path}: the tokenizer has {tokens} tokens, the model {rows}; give the tokenizer of this model."
        )
    return tokenizer
