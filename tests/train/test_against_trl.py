"""Where TRL can express a training, the kit's is the same: single-turn pairs and completions, one global batch a step.

Each step's loss and gradients are compared, and the weights follow from those. TRL's head computes in float32, also for
a model in float64, which bounds the tolerance.
"""

import copy

import pytest
from datasets import Dataset
from train.equations import load, observe
from train.settings import dpo_config, sft_config
from trl import DPOConfig as TrlDpoConfig
from trl import DPOTrainer, SFTTrainer
from trl import SFTConfig as TrlSftConfig

from coevolve.chat.chat_template import TokenizedTrajectory
from coevolve.policies import loading
from coevolve.records.pairs import PairKind
from coevolve.train import dpo, sft
from coevolve.train.dataset import TokenizedPair
from coevolve.train.policy_io import TrainingRun

pytestmark = pytest.mark.usefixtures("exact_norms")
TOLERANCE = 1e-5
BATCH, STEPS, RATE = 4, 2, 1e-2
UNCLIPPED = {"batch_size": BATCH, "micro_batch": BATCH, "max_grad_norm": 1e9}
PROMPT = tuple(range(20, 27))


def single_turn(number, length):
    """A prompt and one action; the prompts of two numbers differ."""
    action = tuple((7 * number + 3 * k) % 290 + 5 for k in range(length))
    return TokenizedTrajectory((number + 5, *PROMPT, *action), (0,) * 8 + (1,) * length)


def pairs():
    """Both sides of a pair have the same prompt."""
    found = []
    for number in range(BATCH * STEPS):
        chosen, rejected = single_turn(number, 4 + number), single_turn(number, 9)
        other = TokenizedTrajectory((*rejected.input_ids[:8], *range(40, 49)), rejected.action_mask)
        found.append(TokenizedPair(PairKind.EXPERT_TARGET, chosen, other, 1.0, 0.0))
    return found


def trl_settings(work):
    """TRL's arguments for the training of the kit's settings."""
    return {
        "output_dir": str(work), "max_steps": STEPS, "per_device_train_batch_size": BATCH, "learning_rate": RATE,
        "lr_scheduler_type": "constant", "max_grad_norm": 1e9, "optim": "adamw_torch_fused", "bf16": False,
        "train_sampling_strategy": "sequential", "gradient_checkpointing": False, "max_length": None,
        "logging_steps": 1, "save_strategy": "no", "report_to": "none", "disable_tqdm": True,
    }  # fmt: skip


class TokenizedDpoTrainer(DPOTrainer):
    """TRL's trainer on token ids; its data preparation takes text."""

    def _prepare_dataset(self, dataset, *_):
        return dataset


def assert_same_steps(ours, theirs):
    assert len(ours) == len(theirs) == STEPS
    for step, expected in zip(ours, theirs, strict=True):
        assert step.loss == pytest.approx(expected.loss, rel=TOLERANCE)
        assert step.gradients.keys() == expected.gradients.keys()
        scale = max(gradient.abs().max() for gradient in expected.gradients.values())
        assert scale > 1e-4
        for name, gradient in expected.gradients.items():
            assert (step.gradients[name] - gradient).abs().max() <= TOLERANCE * scale, name
    assert ours[1].loss != pytest.approx(ours[0].loss, rel=1e-3), "the second step starts from other weights"


@pytest.mark.parametrize("layout", ["padded", "shared"])
def test_preference_training_on_single_turns_is_trls(layout, llama, other, tmp_path):
    reference = load(other)
    trl = TokenizedDpoTrainer(
        model=load(llama),
        ref_model=copy.deepcopy(reference),
        args=TrlDpoConfig(**trl_settings(tmp_path / "trl"), beta=0.1, disable_dropout=False),
        train_dataset=Dataset.from_list(
            [
                {
                    "prompt_ids": list(pair.chosen.input_ids[:8]),
                    "chosen_ids": list(pair.chosen.input_ids[8:]),
                    "rejected_ids": list(pair.rejected.input_ids[8:]),
                }
                for pair in pairs()
            ]
        ),
        processing_class=loading.load_tokenizer(llama),
    )
    config = dpo_config(**UNCLIPPED, layout=layout, learning_rate=[RATE], precompute_reference=False)
    ours = dpo.PreferenceTrainer(
        pairs(), list(range(BATCH * STEPS)), model=load(llama), reference=reference, config=config, iteration=1,
        run=TrainingRun(llama, tmp_path / "out", tmp_path / "ours", 5),
    )  # fmt: skip
    assert_same_steps(observe(ours, tmp_path / "ours"), observe(trl, tmp_path / "trl"))


@pytest.mark.parametrize("layout", ["padded", "flat"])
def test_supervised_training_on_single_turns_is_trls(layout, llama, tmp_path):
    trajectories = [single_turn(number, 4 + number) for number in range(BATCH * STEPS)]
    trl = SFTTrainer(
        model=load(llama),
        args=TrlSftConfig(
            **trl_settings(tmp_path / "trl"),
            dataset_kwargs={"skip_prepare_dataset": True},
        ),
        train_dataset=Dataset.from_list(
            [
                {"input_ids": list(trajectory.input_ids), "labels": [-100] * 8 + list(trajectory.input_ids[8:])}
                for trajectory in trajectories
            ]
        ),
        processing_class=loading.load_tokenizer(llama),
    )
    config = sft_config(**UNCLIPPED, layout=layout, learning_rate=RATE)
    ours = sft.SupervisedTrainer(
        trajectories, list(range(BATCH * STEPS)), model=load(llama), config=config,
        run=TrainingRun(llama, tmp_path / "out", tmp_path / "ours", 5),
    )  # fmt: skip
    assert_same_steps(observe(ours, tmp_path / "ours"), observe(trl, tmp_path / "trl"))
