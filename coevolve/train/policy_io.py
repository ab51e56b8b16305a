"""Policies in and out of training: read in float32, written whole, with the stages of training in their name."""

import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from coevolve.errors import UserError
from coevolve.policies import loading
from coevolve.policies.checkpoint import read_config
from coevolve.records.episodes import PolicyRef
from coevolve.storage import policy_dir
from coevolve.train.settings import LoraConfig


@dataclass(frozen=True)
class TrainingRun:
    """One training: from the policy in `start` to the policy directory `out`.

    `work` holds checkpoints: a killed training that is started again resumes there. `context` is the longest sequence
    in tokens, None: the context of the model. `dtype`: that of the passes (:func:`loading.compute_dtype`).
    """

    start: Path
    out: Path
    work: Path
    seed: int
    lora: LoraConfig | None = None
    context: int | None = None
    dtype: str | None = None

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


def load(path: Path) -> Any:
    """The model of a policy directory with float32 weights, whatever its files hold."""
    from transformers import GenerationConfig  # after `loading`, which keeps optional packages away from transformers

    model = loading.load_model(path, torch.float32)
    # Some published generation configs contradict themselves, and transformers refuses to save those in checkpoints.
    model.generation_config = GenerationConfig()
    return model


def load_checked(path: Path) -> Any:
    """`load`, for a policy that nothing else has described: raises `UserError` unless its files are those it names."""
    policy_dir.describe(path)
    return load(path)


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
    """Raises `UserError` if any weight is narrower than float32.

    At the paper's learning rates a step is smaller than the spacing of bfloat16 numbers: 0.6 % of the weights changed
    in 20 steps, against 89 % in float32.
    """
    for name, parameter in model.named_parameters():
        if parameter.is_floating_point() and parameter.dtype not in (torch.float32, torch.float64):
            raise UserError(f"weight `{name}` is {parameter.dtype}; load the policy in float32 to train it.")


def write(trainer: Any, run: TrainingRun, before: PolicyRef, stage: str, prefix: str = "") -> None:
    """Write the trained policy to the folder `run.out`: float32 weights, or adapters beside the start policy's name.

    The config stays that of the start policy; its tokenizer and generation config are copied byte for byte. `stage` is
    appended to the name of the start policy (`before`). `prefix`: of the names of the policy's weights in the trainer's
    module.
    """
    import accelerate  # type: ignore[import-untyped]
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
        loading.write_adapters(run.out, run.start, before.sha256, config["default"].to_dict(), weights)
    else:
        model = load(run.start)
        model.load_state_dict(state)
        loading.write_checkpoint(model, run.start, run.out)
    policy_dir.seal(run.out, name=f"{before.name}+{stage}", base=before.base or before.name, revision=before.revision)


def copy(start: Path, out: Path) -> None:
    """Copy the policy in `start` to `out`; of several ranks the first does."""
    if os.environ.get("RANK", "0") != "0":
        return
    shutil.copytree(start, out, dirs_exist_ok=True, ignore=shutil.ignore_patterns("provenance.json"))
    if first := policy_dir.start_of(start):
        policy_dir.write_start(out, first.folder, first.sha256)
