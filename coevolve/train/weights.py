"""Policies in and out of training: read in float32, written whole, their history in the name."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import torch
from accelerate import DistributedType  # type: ignore[import-untyped]
from peft import get_peft_model
from transformers import AutoConfig
from transformers.integrations.deepspeed import is_deepspeed_zero3_enabled, unset_hf_deepspeed_config
from transformers.utils import logging as transformers_logging

from coevolve import store
from coevolve.errors import UserError
from coevolve.policies import directory
from coevolve.types import PolicyRef

_TOKENIZER = ("tokenizer*", "special_tokens_map.json", "added_tokens.json", "vocab*", "merges.txt", "chat_template*")


def load(path: Path) -> Any:
    """The model of a policy directory with float32 weights, whatever its files hold."""
    transformers_logging.disable_progress_bar()
    return directory.load_model(path, dtype=torch.float32)


def context_of(path: Path) -> int:
    """How many tokens the model in a policy directory can read at once."""
    return int(AutoConfig.from_pretrained(path, local_files_only=True).max_position_embeddings)


def require_full_precision(model: torch.nn.Module) -> None:
    """Raises `UserError` if any weight is narrower than float32.

    At the paper's learning rates a step is shorter than the distance from one bfloat16 number to the next: 0.6 % of the
    weights moved in 20 steps, against 89 % in float32.
    """
    for name, parameter in model.named_parameters():
        if parameter.dtype not in (torch.float32, torch.float64):
            raise UserError(f"weight `{name}` is {parameter.dtype}; load the policy in float32 to train it.")


def write(trainer: Any, start: Path, before: PolicyRef, out: Path, stage: str) -> None:
    """Write the trained policy, adapters merged into its weights, as the policy directory `out`.

    What training does not change is the start policy's own: its config, and its tokenizer byte for byte. `stage` is
    added to the name of the policy it was (`before`).
    """
    accelerator = trainer.accelerator
    divided = is_deepspeed_zero3_enabled() or accelerator.distributed_type == DistributedType.FSDP
    # Gathering what lies divided over the devices is everybody's work, all the rest is the first process's.
    state = accelerator.get_state_dict(trainer.model_wrapped) if divided or accelerator.is_main_process else {}
    if not accelerator.is_main_process:
        return
    unset_hf_deepspeed_config()  # under ZeRO-3 a model is divided as it is read, which would take all processes
    model = load(start)
    adapters = getattr(accelerator.unwrap_model(trainer.model), "peft_config", None)
    if adapters:
        model = get_peft_model(model, adapters["default"])
    model.load_state_dict(state)
    if adapters:
        model = model.merge_and_unload()
    model.save_pretrained(out)
    for file in (file for pattern in _TOKENIZER for file in start.glob(pattern)):
        store.write_bytes(out / file.name, file.read_bytes())
    directory.seal(out, name=f"{before.name}+{stage}", base=before.base or before.name, revision=before.revision)


def copy(start: Path, out: Path) -> None:
    """The policy in `start` once more, as `out`; of several processes the first copies."""
    if os.environ.get("RANK", "0") != "0":
        return
    shutil.copytree(start, out, dirs_exist_ok=True, ignore=shutil.ignore_patterns("provenance.json"))
