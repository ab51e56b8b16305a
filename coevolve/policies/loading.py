"""The model and the tokenizer of a policy directory, loaded and written; adapters (LoRA, Hu et al. 2021) merged."""

import contextlib
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

# Before transformers.
from coevolve.policies import optional_packages  # noqa: F401

# isort: split
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig
from transformers.utils import logging as transformers_logging

from coevolve.errors import UserError
from coevolve.policies.checkpoint import LOCAL, load_problem, read_config, require_whole
from coevolve.storage import files, policy_dir
from coevolve.storage.policy_dir import ADAPTER_CONFIG, UNTRAINED, WEIGHTS

#: peft's file of the weights, and the beginning and ends of their names.
FILE, _PREFIX, _A, _B = "adapter_model.safetensors", "base_model.model.", ".lora_A.weight", ".lora_B.weight"


def load_model(path: Path, dtype: torch.dtype | str = "auto") -> Any:
    """The model in evaluation mode, by default in the dtype of its weights; `UserError` unless it is whole.

    Adapters are merged in float32, which is also their dtype.
    """
    config = require_whole(path)
    transformers_logging.disable_progress_bar()
    if policy_dir.start_of(path):
        dtype = torch.float32 if dtype == "auto" else dtype
        with torch.device("meta"):
            architecture = type(AutoModelForCausalLM.from_config(config, trust_remote_code=False))
        model = architecture.from_pretrained(
            None, config=config, state_dict=merged_weights(path), dtype=dtype, attn_implementation="sdpa", **LOCAL
        )
    else:
        model = AutoModelForCausalLM.from_pretrained(path, dtype=dtype, attn_implementation="sdpa", **LOCAL)
    return model.eval()


def write_checkpoint(model: Any, start: Path, out: Path) -> None:
    """Write a model to `out` in transformers' format, with tokenizer and generation config as they are in `start`."""
    model.generation_config = GenerationConfig()  # some published ones contradict themselves, and are not saved
    model.save_pretrained(out)
    policy_dir.copy_files(start, out, UNTRAINED)


def write_adapters(
    path: Path, start: Path, sha256: str, config: Mapping[str, Any], weights: Mapping[str, Tensor]
) -> None:
    """Write adapters in peft's format, with the start policy's config, tokenizer and generation config, to `path`.

    `start` and `sha256`: the policy that they were trained on. `config`: peft's `LoraConfig` as a dictionary.
    """
    path.mkdir(parents=True, exist_ok=True)
    save_file({name: weight.cpu().contiguous() for name, weight in weights.items()}, path / FILE, {"format": "pt"})
    # Sets have another order in each process. peft's name of the base is that of a model, not of a chain of adapters.
    ordered = {key: sorted(value) if isinstance(value, set) else value for key, value in config.items()}
    files.write_json(path / ADAPTER_CONFIG, ordered | {"base_model_name_or_path": None, "inference_mode": True})
    policy_dir.copy_files(start, path, ("config.json", *UNTRAINED))
    policy_dir.write_start(path, start, sha256)


def merged_weights(path: Path) -> dict[str, Tensor]:
    """The float32 weights of a policy by name: the first policy's of its chain, with adapters in the order of training.

    As peft merges them: W + (B A) alpha / rank, on the CPU. Raises `UserError` for adapters of other weights.
    """
    if (start := policy_dir.start_of(path)) is None:
        read = (load_file(file) for file in sorted(path.glob(WEIGHTS)))
        return {name: weight.float() for weights in read for name, weight in weights.items()}
    weights, adapters, config = (
        merged_weights(start.folder),
        load_file(path / FILE),
        files.read_json(path / ADAPTER_CONFIG),
    )
    for name in (name.removesuffix(_A) for name in adapters if name.endswith(_A)):
        delta = (adapters[name + _B] @ adapters[name + _A]) * (config["lora_alpha"] / config["r"])
        matrix = f"{name.removeprefix(_PREFIX)}.weight"
        if matrix not in weights or weights[matrix].shape != delta.shape:
            raise UserError(f"{path}: {start.folder} has no weights `{matrix}` for its adapters; copy both again.")
        weights[matrix] = weights[matrix] + delta
    return weights


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
