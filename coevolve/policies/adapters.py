"""Adapters (LoRA, Hu et al. 2021) on disk, beside the name of the policy that they were trained on; and merged."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from torch import Tensor

from coevolve.errors import UserError
from coevolve.storage import files, policy_dir
from coevolve.storage.policy_dir import ADAPTER_CONFIG, UNTRAINED, WEIGHTS

#: peft's file of the weights, and the beginning and ends of their names.
FILE, _PREFIX, _A, _B = "adapter_model.safetensors", "base_model.model.", ".lora_A.weight", ".lora_B.weight"


def write(path: Path, start: Path, sha256: str, config: Mapping[str, Any], weights: Mapping[str, Tensor]) -> None:
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


def merged(path: Path) -> dict[str, Tensor]:
    """The float32 weights of a policy by name: the first policy's of its chain, with adapters in the order of training.

    As peft merges them: W + (B A) alpha / rank, on the CPU. Raises `UserError` for adapters of other weights.
    """
    if (start := policy_dir.start_of(path)) is None:
        read = (load_file(file) for file in sorted(path.glob(WEIGHTS)))
        return {name: weight.float() for weights in read for name, weight in weights.items()}
    weights, adapters, config = merged(start.folder), load_file(path / FILE), files.read_json(path / ADAPTER_CONFIG)
    for name in (name.removesuffix(_A) for name in adapters if name.endswith(_A)):
        delta = (adapters[name + _B] @ adapters[name + _A]) * (config["lora_alpha"] / config["r"])
        matrix = f"{name.removeprefix(_PREFIX)}.weight"
        if matrix not in weights or weights[matrix].shape != delta.shape:
            raise UserError(f"{path}: {start.folder} has no weights `{matrix}` for its adapters; copy both again.")
        weights[matrix] = weights[matrix] + delta
    return weights
