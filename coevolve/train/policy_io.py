"""Policies in and out of training: read in float32, written whole, with the stages of training in their name."""

import os
import shutil
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

# Before transformers.
from coevolve.policies import optional_packages  # noqa: F401

# isort: split
import torch
from transformers import BitsAndBytesConfig, GenerationConfig
from transformers.utils import logging as transformers_logging

from coevolve.config.sections import LoraConfig
from coevolve.errors import UserError
from coevolve.policies import adapters, loading
from coevolve.policies.checkpoint import read_config
from coevolve.records.episodes import PolicyRef
from coevolve.storage import policy_dir


@dataclass(frozen=True)
class TrainingRun:
    """One training: from the policy in `start` to the policy directory `out`.

    `work` holds checkpoints: a killed training that is started again resumes there. `context` is the longest sequence
    in tokens, None: the context of the model. `dtype`: that of the passes (:func:`loading.compute_dtype`).
    `saved_dtype`: that of the weights in `out`, None: float32.
    """

    start: Path
    out: Path
    work: Path
    seed: int
    lora: LoraConfig | None = None
    context: int | None = None
    dtype: str | None = None
    saved_dtype: str | None = None

    @property
    def longest(self) -> int:
        """The longest sequence in tokens."""
        if self.context is not None:
            return self.context
        return int(read_config(self.start).max_position_embeddings)

    @property
    def mixed(self) -> bool:
        """Whether forward and backward passes run in bfloat16 (autocast)."""
        return loading.compute_dtype(self.dtype) == torch.bfloat16


def load(path: Path, lora: LoraConfig | None = None) -> Any:
    """The model of a policy directory with float32 weights, whatever its files hold.

    With `lora.quantize` its matrices are in 4 bits. A reference policy is loaded with the same `lora`: both are then
    quantised alike, and a training starts at a margin of 0. Raises `UserError` if the weights cannot be quantised.
    """
    transformers_logging.disable_progress_bar()
    model = _quantized(path) if lora and lora.quantize else loading.load_model(path, dtype=torch.float32)
    # Some published generation configs contradict themselves, and transformers refuses to save those.
    model.generation_config = GenerationConfig()
    return model


def load_checked(path: Path, lora: LoraConfig | None = None) -> Any:
    """`load`, for a policy that nothing else has described: raises `UserError` unless its files are those it names."""
    policy_dir.describe(path)
    return load(path, lora)


def _quantized(path: Path) -> Any:
    """Dettmers et al. 2023 (QLoRA), section 3: NF4 with double quantisation; embeddings and norms stay float32."""
    if not find_spec("bitsandbytes"):
        raise UserError("`lora.quantize` needs the package bitsandbytes; install the extra `qlora` or set it to null.")
    if os.environ.get("ACCELERATE_USE_FSDP") == "true":
        raise UserError("`lora.quantize`: FSDP cannot divide 4-bit weights; launch with configs/accelerate/ddp.yaml.")
    from accelerate import PartialState  # type: ignore[import-untyped]  # slow to import, for quantised policies only

    device = PartialState().device
    quantization = BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=torch.float32 if device.type == "cpu" else torch.bfloat16,
    )
    model = loading.load_model(path, torch.float32, quantization_config=quantization, device_map={"": device})
    for module in model.modules():
        # On some CPUs the first forward pass of `eval` repacks the weights for a kernel that has no gradient.
        if hasattr(module, "support_avx512bf16_for_cpu"):
            module.support_avx512bf16_for_cpu = False
    return model


def adapter_config(lora: LoraConfig, model: Any) -> Any:
    """The adapters of `model` as peft's `LoraConfig`.

    Raises `UserError` for a target that is not a linear layer of the decoder. peft skips a name that it does not find
    if it finds another, and adapters of a head or of embeddings that share their weights change both when merged.
    """
    import peft  # slow to import, for adapters only

    head = model.get_output_embeddings()
    modules = ((name, module) for name, module in model.named_modules() if module is not head)
    linear = [name for name, module in modules if isinstance(module, torch.nn.Linear)]
    for target in lora.target_modules if isinstance(lora.target_modules, list) else ():
        if not any(f".{name}".endswith(f".{target}") for name in linear):
            known = ", ".join(sorted({name.rpartition(".")[2] for name in linear}))
            raise UserError(f"`lora.target_modules`: `{target}` is not a linear layer of the decoder; it has {known}.")
    return peft.LoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha,
        lora_dropout=lora.dropout,
        target_modules=lora.target_modules,
        task_type="CAUSAL_LM",
    )


def add_adapters(model: Any, lora: LoraConfig) -> Any:
    """The model with new adapters in float32, the only weights that are trained."""
    import peft

    return peft.get_peft_model(model, adapter_config(lora, model))


def require_full_precision(model: torch.nn.Module) -> None:
    """Raises `UserError` if any weight is narrower than float32, except for quantised weights, which do not change.

    At the paper's learning rates a step is smaller than the spacing of bfloat16 numbers: 0.6 % of the weights changed
    in 20 steps, against 89 % in float32.
    """
    for name, parameter in model.named_parameters():
        if parameter.is_floating_point() and parameter.dtype not in (torch.float32, torch.float64):
            raise UserError(f"weight `{name}` is {parameter.dtype}; load the policy in float32 to train it.")


def write(trainer: Any, run: TrainingRun, before: PolicyRef, stage: str, prefix: str = "") -> None:
    """Write the trained policy as the policy directory `run.out`: adapters beside the name of the start policy, or
    float32 weights. Where `run.saved_dtype` names a type, adapters are merged into weights of this type.

    Adapters that were trained on quantised weights are merged into the float32 weights too. The config stays that of
    the start policy; its tokenizer and generation config are copied byte for byte. `stage` is appended to the name of
    the start policy (`before`). `prefix`: of the names of the policy's weights in the trainer's module.
    """
    import accelerate
    from transformers.integrations.deepspeed import is_deepspeed_zero3_enabled, unset_hf_deepspeed_config

    accelerator = trainer.accelerator
    sharded = is_deepspeed_zero3_enabled() or accelerator.distributed_type == accelerate.DistributedType.FSDP
    # All ranks take part in gathering sharded weights; the rest is done by rank 0.
    state = accelerator.get_state_dict(trainer.model_wrapped) if sharded or accelerator.is_main_process else {}
    if not accelerator.is_main_process:
        return
    state = {name.removeprefix(prefix): weight for name, weight in state.items() if name.startswith(prefix)}
    unset_hf_deepspeed_config()  # under ZeRO-3 transformers would shard the model over all ranks as it loads it
    trained = accelerator.unwrap_model(trainer.model)
    if config := getattr(trained, "peft_config", None):
        from peft import get_peft_model_state_dict

        weights = get_peft_model_state_dict(trained, state, save_embedding_layers=False)
        folder = run.work / "adapters" if run.saved_dtype else run.out
        adapters.write(folder, run.start, before.sha256, config["default"].to_dict(), weights)
        model = load(folder) if run.saved_dtype else None
    else:
        model = load(run.start)
        model.load_state_dict(state)
    if model:
        model.to(loading.compute_dtype(run.saved_dtype or "float32"))
        loading.write_checkpoint(model, run.start, run.out)
    policy_dir.seal(run.out, name=f"{before.name}+{stage}", base=before.base or before.name, revision=before.revision)


def copy(start: Path, out: Path) -> None:
    """Copy the policy in `start` to `out`; of several ranks the first does."""
    if os.environ.get("RANK", "0") != "0":
        return
    shutil.copytree(start, out, dirs_exist_ok=True, ignore=shutil.ignore_patterns("provenance.json"))
    if first := policy_dir.start_of(start):
        policy_dir.write_start(out, first.folder, first.sha256)
