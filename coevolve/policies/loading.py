"""Load the model and the tokenizer of a policy directory, and write them as one checkpoint."""

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# Before transformers.
from coevolve.policies import optional_packages  # noqa: F401

# isort: split
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig
from transformers.utils import logging as transformers_logging

from coevolve.errors import UserError
from coevolve.policies import adapters
from coevolve.policies.checkpoint import LOCAL, load_problem, read_config, require_whole
from coevolve.storage import policy_dir


def load_model(path: Path, dtype: torch.dtype | str = "auto", **options: Any) -> Any:
    """The model in evaluation mode, by default in the dtype of its weights; `UserError` unless it is whole.

    Adapters are merged in float32, which is also their dtype. `options`: further ones of transformers.
    """
    config = require_whole(path)
    transformers_logging.disable_progress_bar()
    options = {"attn_implementation": "sdpa", **options}
    if policy_dir.start_of(path):
        dtype = torch.float32 if dtype == "auto" else dtype
        with torch.device("meta"):
            architecture = type(AutoModelForCausalLM.from_config(config, trust_remote_code=False))
        model = architecture.from_pretrained(
            None, config=config, state_dict=adapters.merged(path), dtype=dtype, **LOCAL, **options
        )
    else:
        model = AutoModelForCausalLM.from_pretrained(path, dtype=dtype, **LOCAL, **options)
    return model.eval()


def write_checkpoint(model: Any, start: Path, out: Path) -> None:
    """Write a model to `out` in transformers' format, with tokenizer and generation config as they are in `start`."""
    model.generation_config = GenerationConfig()  # some published ones contradict themselves, and are not saved
    model.save_pretrained(out)
    policy_dir.copy_files(start, out, policy_dir.UNTRAINED)


@contextlib.contextmanager
def checkpoint(path: Path, dtype: torch.dtype) -> Iterator[Path]:
    """A folder for programs that read weights themselves: `path`, or for adapters a temporary one with them merged."""
    if policy_dir.start_of(path) is None:
        yield path
        return
    with tempfile.TemporaryDirectory() as folder:
        write_checkpoint(load_model(path, dtype), path, Path(folder))
        yield Path(folder)


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
    config = read_config(path)
    try:
        tokenizer = AutoTokenizer.from_pretrained(path, **LOCAL)
    except Exception as error:  # tokenizers raises nothing narrower
        raise UserError(
            f"{path}: no tokenizer can be loaded ({load_problem(error)}); copy tokenizer.json beside the weights."
        ) from error
    if not tokenizer.is_fast:
        raise UserError(f"{path}: its tokenizer has no `tokenizer.json`, and none can be made; use another model.")
    if isinstance(tokenizer.chat_template, dict):  # several, by name
        tokenizer.chat_template = tokenizer.chat_template.get("default")
    rows, tokens = config.get_text_config().vocab_size, len(tokenizer)
    if tokens > rows:
        raise UserError(
            f"{path}: the tokenizer has {tokens} tokens, the model {rows}; give the tokenizer of this model."
        )
    return tokenizer
