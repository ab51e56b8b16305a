"""Models in GGUF files: float32 weights and the tokenizer in transformers' format."""

from pathlib import Path
from typing import Any

import torch
import transformers
from gguf import GGUFReader
from packaging.version import Version
from tokenizers import pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging as transformers_logging

from coevolve.errors import UserError
from coevolve.policies.checkpoint import LOCAL

#: What transformers' conversion of the tokenizer loses, by the rule's name in the file (`tokenizer.ggml.pre`).
#: llama.cpp's rule `smollm` splits a text at every digit before the byte-level rule.
PRE_TOKENIZERS = {"smollm": [pre_tokenizers.Digits(individual_digits=True)]}


def convert(source: Path, out: Path) -> None:
    """Write the dequantised model and the tokenizer of the GGUF file `source` to the folder `out`.

    Equal files give equal bytes. Raises `UserError` for a file that is not GGUF or whose tokenizer's rule is unknown.
    """
    transformers_logging.disable_progress_bar()
    tokenizer = load_tokenizer(source)
    original = AutoModelForCausalLM.from_pretrained(source.parent, gguf_file=source.name, dtype=torch.float32, **LOCAL)
    config = original.config
    del config.quantization_config  # the weights are dequantised, and a model with this key is not saved
    model = type(original)(config)
    model.load_state_dict(original.state_dict())
    model.generation_config = original.generation_config
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)


def load_tokenizer(source: Path) -> Any:
    """The tokenizer in a GGUF file, with the rule that transformers' conversion loses; raises as `convert`."""
    if Version(transformers.__version__) < Version("5.23"):
        problem = f"transformers {transformers.__version__} converts its tokenizer otherwise"
        raise UserError(f"{source}: {problem}; install the version of requirements.lock.")
    try:
        field = GGUFReader(source).fields["tokenizer.ggml.pre"]
    except (ValueError, OSError, IndexError, KeyError) as error:
        raise UserError(f"{source}: not a GGUF file with a byte-level tokenizer ({error}); fetch it again.") from None
    rule = field.contents()
    if rule not in PRE_TOKENIZERS:
        known = ", ".join(f"`{name}`" for name in PRE_TOKENIZERS)
        problem = f"its tokenizer splits text by the rule `{rule}`, and only {known} is known here"
        raise UserError(f"{source}: {problem}; name the model's original checkpoint (`hub`) in place of `gguf`.")
    tokenizer = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name, **LOCAL)
    backend = tokenizer.backend_tokenizer
    backend.pre_tokenizer = pre_tokenizers.Sequence([*PRE_TOKENIZERS[rule], backend.pre_tokenizer])
    return tokenizer
