"""bfloat16 is autocast's business alone, whatever launches a training: what the launchers make of TRL's settings."""

from types import SimpleNamespace

import pytest
import torch
from accelerate.utils import DeepSpeedPlugin, FullyShardedDataParallelPlugin
from train.doors import PPO
from transformers import LlamaConfig
from transformers.trainer import propagate_args_to_deepspeed

from coevolve.train import ppo
from coevolve.train import trainer as training


def settings(**own):
    """The settings of a training on a GPU that DeepSpeed or FSDP reads."""
    plain = {
        "bf16": True, "bf16_full_eval": False, "fp16": False, "fp16_full_eval": False, "world_size": 8,
        "per_device_train_batch_size": 4, "gradient_accumulation_steps": 1, "max_grad_norm": 1.0,
        "learning_rate": 1e-6, "adam_beta1": 0.9, "adam_beta2": 0.999, "adam_epsilon": 1e-8, "weight_decay": 0.0,
        "save_on_each_node": False, "get_warmup_steps": lambda steps: 1, "fsdp_plugin_args": None,
        "deepspeed_plugin": None,
    }  # fmt: skip
    return SimpleNamespace(**plain | own)


@pytest.mark.parametrize("stage", ["2", "3"])
def test_deepspeed_and_transformers_are_of_one_mind(monkeypatch, stage):
    monkeypatch.setenv("ACCELERATE_DEEPSPEED_ZERO_STAGE", stage)
    plugin = DeepSpeedPlugin()
    args = training.full_precision(settings(deepspeed_plugin=plugin), mixed=True)
    propagate_args_to_deepspeed(SimpleNamespace(state=SimpleNamespace(deepspeed_plugin=plugin)), args)
    plugin.hf_ds_config.trainer_config_finalize(args, SimpleNamespace(config=LlamaConfig()), 10)
    found = plugin.deepspeed_config
    assert found["torch_autocast"] == {"enabled": True, "dtype": "bfloat16"}
    assert not found["bf16"]["enabled"]


def test_fsdp_rounds_nothing(monkeypatch):
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    args = training.full_precision(settings(), mixed=True)
    plugin = FullyShardedDataParallelPlugin(fsdp_version=2, **args.fsdp_plugin_args)
    plugin.set_mixed_precision("bf16")  # as the accelerator does
    policy = plugin.mixed_precision_policy
    assert {policy.param_dtype, policy.reduce_dtype, policy.output_dtype} == {torch.float32}
    assert args.bf16, "autocast stays"
    given = {}  # PPO makes its accelerator itself
    monkeypatch.setenv("FSDP_VERSION", "2")  # as the launcher does
    monkeypatch.setattr(ppo, "Accelerator", given.update)
    ppo.accelerator(PPO, mixed=True)
    assert given["fsdp_plugin"].mixed_precision_policy == plugin.mixed_precision_policy
    assert given["mixed_precision"] == "bf16"


def test_alone_nothing_changes():
    args = settings()
    before = dict(vars(args))
    assert vars(training.full_precision(args, mixed=True)) == before
