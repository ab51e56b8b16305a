"""Sections of short trainings, with defaults for what a test does not look at."""

from transformers import TrainingArguments

from coevolve.train.settings import DpoConfig, LoraConfig, SftConfig

OPTIMISER = {
    "epochs": 1, "batch_size": 4, "micro_batch": 2, "warmup": 0.0, "schedule": "constant", "weight_decay": 0.0,
    "max_grad_norm": 1.0, "save_steps": 1000, "layout": "flat",
}  # fmt: skip
PREFERENCES = {
    "layout": "shared", "learning_rate": [1e-2], "beta": [0.1], "reference": "previous", "nll": "mean",
    "objective": {"name": "dpo"}, "precompute_reference": True,
}  # fmt: skip
ADAPTERS = LoraConfig(rank=2, alpha=4, dropout=0.0, target_modules="all-linear")
WITH_DROPOUT = ADAPTERS.model_copy(update={"dropout": 0.1})


def sft_config(**settings) -> SftConfig:
    """The section of supervised fine-tuning; its padding-free layout is `flat`."""
    return SftConfig(**OPTIMISER | {"learning_rate": 1e-2} | settings)


def dpo_config(**settings) -> DpoConfig:
    """The section of preference training; its padding-free layout is `shared`."""
    return DpoConfig(**OPTIMISER | PREFERENCES | settings)


def see_two_gpus(monkeypatch):
    """From now on settings of a training find two GPUs, for which transformers would take twice as many examples."""
    prepare = TrainingArguments.__post_init__

    def prepare_two(args):
        prepare(args)
        args._n_gpu = 2

    monkeypatch.setattr(TrainingArguments, "__post_init__", prepare_two)
