"""Whether a folder holds a whole checkpoint: every weight of the model that its config describes, and no other."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

# Before transformers.
from coevolve.policies import optional_packages  # noqa: F401

# isort: split
import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError, safe_open
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.conversion_mapping import get_checkpoint_conversion_mapping

from coevolve.errors import UserError, brief
from coevolve.storage import files
from coevolve.storage.policy_dir import ADAPTER_CONFIG, WEIGHTS, require_weights, start_of

#: Buffers in older files, which the model computes: transformers ignores them too.
_COMPUTED = r"rotary_emb\.inv_freq$"
#: What wrappers of a model put before the names of its weights.
_WRAPPERS = ("module.", "_orig_mod.", "base_model.model.")
#: For every loader of transformers: no network, and no code of a checkpoint is run or asked for.
LOCAL: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
#: Names that a message lists.
_LISTED = 3
Shapes = Mapping[str, Sequence[int]]


def require_whole(path: Path) -> Any:
    """The config of the checkpoint in a folder; raises `UserError` unless it is whole, by its names and shapes alone.

    Of the kit's adapters the checkpoint that they were trained on must be whole.
    transformers would draw a missing weight at random and leave out an unexpected one. Models whose weights it renames
    or joins when it loads them are not compared.
    """
    require_weights(path)
    config = read_config(path)
    if start := start_of(path):
        _shapes(path)
        require_whole(start.folder)
        return config
    if (path / ADAPTER_CONFIG).exists():
        raise UserError(f"{path}: has adapter_config.json; merge the adapters into the weights, and remove that file.")
    if method := (getattr(config, "quantization_config", None) or {}):
        kind = dict(method).get("quant_method", "another type")
        raise UserError(f"{path}: its weights are quantised ({kind}); give the checkpoint in bfloat16 or float32.")
    if not get_checkpoint_conversion_mapping(config.model_type):
        _require_same(path, _expected(path, config), _shapes(path))
    return config


def read_config(path: Path) -> Any:
    """The content of a folder's config.json; raises `UserError` if transformers cannot read it."""
    files.read_json(path / "config.json")
    try:
        return AutoConfig.from_pretrained(path, **LOCAL)
    except (OSError, ValueError, TypeError, StrictDataclassError) as error:
        raise UserError(f"{path / 'config.json'}: {load_problem(error)}") from error


def load_problem(error: Exception) -> str:
    """Why transformers cannot load a part of a checkpoint, as the end of a sentence."""
    if "trust_remote_code" not in str(error):
        return brief(error)
    return "it needs code of its own (`auto_map`), which is never run; give a model that transformers itself has."


def _expected(path: Path, config: Any) -> tuple[Shapes, set[str], list[str]]:
    """The shapes of the model's weights, the names that may be missing (tied), and patterns of those to ignore."""
    try:
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config, trust_remote_code=False)
    except (ValueError, RuntimeError, OverflowError) as error:
        raise UserError(f"{path / 'config.json'}: no model can be made of it ({load_problem(error)}).") from error
    ignored = [_COMPUTED, *(model._keys_to_ignore_on_load_unexpected or ())]
    tied = set(model.all_tied_weights_keys) if config.tie_word_embeddings else set()
    return {name: tuple(weight.shape) for name, weight in model.state_dict().items()}, tied, ignored


def _shapes(path: Path) -> Shapes:
    """The shapes of the weights in a folder's files; raises `UserError` for a missing shard or a damaged file."""
    index = path / "model.safetensors.index.json"
    if index.exists():
        content = files.read_json(index)
        if not isinstance(content, dict) or not isinstance(content.get("weight_map"), dict):
            raise UserError(f"{index}: no index of weights; copy the whole checkpoint.")
        shards = set(map(str, content["weight_map"].values()))
        if missing := sorted(shard for shard in shards if not (path / shard).exists()):
            raise UserError(f"{path}: {_some(missing)} of {index.name} missing; copy the whole checkpoint.")
    shapes: dict[str, Sequence[int]] = {}
    for file in sorted(path.glob(WEIGHTS)):
        try:
            with safe_open(file, "pt") as weights:
                shapes |= {name: tuple(weights.get_slice(name).get_shape()) for name in weights.keys()}  # noqa: SIM118
        except SafetensorError as error:
            raise UserError(f"{file}: damaged ({brief(error)}); copy it again.") from error
    return shapes


def _require_same(path: Path, expected: tuple[Shapes, set[str], list[str]], present: Shapes) -> None:
    shapes, tied, ignored = expected
    missing = sorted(shapes.keys() - present.keys() - tied)
    extra = sorted(name for name in present.keys() - shapes.keys() if not any(re.search(i, name) for i in ignored))
    other = [
        f"{n} {present[n]} instead of {shapes[n]}" for n in sorted(shapes) if present.get(n, shapes[n]) != shapes[n]
    ]
    problems = {"missing": missing, "unexpected": extra, "of another shape": other}
    if listed := [f"{name}: {_some(names)}" for name, names in problems.items() if names]:
        wrapper = next((prefix for prefix in _WRAPPERS if any(name.startswith(prefix) for name in extra)), None)
        fix = f"save the model without its wrapper `{wrapper}`" if wrapper else "give a whole checkpoint"
        raise UserError(f"{path}: its weights are not those of its config.json ({'; '.join(listed)}); {fix}.")


def _some(names: Sequence[str]) -> str:
    """The first names and the number of the others."""
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return f"{', '.join(names[:_LISTED])}{more}"
