"""Policies in and out of training: read in float32, written whole, their history in the name."""

from __future__ import annotations

import os
import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from accelerate import DistributedType, PartialState  # type: ignore[import-untyped]
from peft import get_peft_model, get_peft_model_state_dict, set_peft_model_state_dict
from transformers import AutoConfig, AutoModelForCausalLM, BitsAndBytesConfig, GenerationConfig
from transformers.integrations.deepspeed import is_deepspeed_zero3_enabled, unset_hf_deepspeed_config
from transformers.utils import logging as transformers_logging

from coevolve.config.sections import LoraConfig
from coevolve.errors import UserError
from coevolve.policies import loading
from coevolve.storage import files, policy_dir
from coevolve.storage.policy_dir import UNTRAINED
from coevolve.types import PolicyRef


def load(path: Path, lora: LoraConfig | None = None) -> Any:
    """The model of a policy directory with float32 weights, whatever its files hold.

    With `lora.quantize` its matrices are in 4 bits. A reference is loaded with the same `lora`: quantised alike, a
    training begins at a margin of 0 and measures its adapters alone. Raises `UserError` where quantised weights cannot
    be had.
    """
    transformers_logging.disable_progress_bar()
    model = _quantized(path) if lora and lora.quantize else loading.load_model(path, dtype=torch.float32)
    # Some published ones contradict themselves, and a checkpoint with such a one cannot be saved.
    model.generation_config = GenerationConfig()
    return model


def _quantized(path: Path) -> Any:
    """Dettmers et al. 2023 (QLoRA), section 3: NF4 with double quantisation; embeddings and norms stay float32."""
    if not find_spec("bitsandbytes"):
        raise UserError("`lora.quantize` needs the package bitsandbytes; install the extra `qlora` or set it to null.")
    if os.environ.get("ACCELERATE_USE_FSDP") == "true":
        raise UserError("`lora.quantize`: FSDP cannot divide 4-bit weights; launch with configs/accelerate/ddp.yaml.")
    device = PartialState().device
    quantization = BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=torch.float32 if device.type == "cpu" else torch.bfloat16,
    )
    model = AutoModelForCausalLM.from_pretrained(
        path,
        dtype=torch.float32,
        local_files_only=True,
        attn_implementation="sdpa",
        quantization_config=quantization,
        device_map={"": device},
    )
    for module in model.modules():
        # On some CPUs the first forward pass of `eval` repacks the weights for a kernel that has no gradient.
        if hasattr(module, "support_avx512bf16_for_cpu"):
            module.support_avx512bf16_for_cpu = False
    return model.eval()


def context_of(path: Path) -> int:
    """How many tokens the model in a policy directory can read at once."""
    return int(AutoConfig.from_pretrained(path, local_files_only=True).max_position_embeddings)


def widen_adapters(model: Any) -> None:
    """Hold the adapters of a quantised model in float32; TRL rounds them to bfloat16 when it makes its trainer."""
    if getattr(model, "is_loaded_in_4bit", False):
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.data = parameter.data.float()


def require_full_precision(model: torch.nn.Module) -> None:
    """Raises `UserError` if any weight is narrower than float32, but for quantised ones, which stay as they are.

    At the paper's learning rates a step is shorter than the distance from one bfloat16 number to the next: 0.6 % of the
    weights moved in 20 steps, against 89 % in float32.
    """
    for name, parameter in model.named_parameters():
        if parameter.is_floating_point() and parameter.dtype not in (torch.float32, torch.float64):
            raise UserError(f"weight `{name}` is {parameter.dtype}; load the policy in float32 to train it.")


def write(trainer: Any, start: Path, before: PolicyRef, out: Path, stage: str) -> None:
    """Write the trained policy, adapters merged into its float32 weights, as the policy directory `out`.

    That goes for adapters that were trained beside quantised weights too. What training does not change is the start
    policy's own: its config, and byte for byte its tokenizer and generation config. `stage` is added to the name of the
    policy it was (`before`).
    """
    accelerator = trainer.accelerator
    divided = is_deepspeed_zero3_enabled() or accelerator.distributed_type == DistributedType.FSDP
    # Gathering what lies divided over the devices is everybody's work, all the rest is the first process's.
    state = accelerator.get_state_dict(trainer.model_wrapped) if divided or accelerator.is_main_process else {}
    if not accelerator.is_main_process:
        return
    unset_hf_deepspeed_config()  # under ZeRO-3 a model is divided as it is read, which would take all processes
    model, trained = load(start), accelerator.unwrap_model(trainer.model)
    adapters = getattr(trained, "peft_config", None)
    if adapters:
        model = get_peft_model(model, adapters["default"])
        set_peft_model_state_dict(model, get_peft_model_state_dict(trained, state, save_embedding_layers=False))
        model = model.merge_and_unload()
    else:
        model.load_state_dict(state)
    model.save_pretrained(out)
    for file in (file for pattern in UNTRAINED for file in start.glob(pattern)):
        files.write_bytes(out / file.name, file.read_bytes())
    policy_dir.seal(out, name=f"{before.name}+{stage}", base=before.base or before.name, revision=before.revision)


def copy(start: Path, out: Path) -> None:
    """The policy in `start` once more, as `out`; of several processes the first copies."""
    if os.environ.get("RANK", "0") != "0":
        return
    shutil.copytree(start, out, dirs_exist_ok=True, ignore=shutil.ignore_patterns("provenance.json"))
