"""One class of equivalence: however a training is computed, the same data give the same curve.

Loss and gradient norm of every step agree with those of the plainest way (padded rows, one micro-batch, a reference
model asked in every step) to `TOLERANCE`, the weights at the end to `WEIGHTS`. Several processes belong to the class
too (tests/run/test_launch.py), and so do trainings that were killed (tests/train/test_train_resume.py).
"""

from dataclasses import replace

import numpy as np
import pytest

from coevolve.chat.chat_template import TokenizedTrajectory
from coevolve.records.pairs import PairKind
from coevolve.train import dpo, policy_io, reference_logps, sft
from coevolve.train import trainer as training
from coevolve.train.dataset import TokenizedPair
from coevolve.train.policy_io import TrainingRun
from coevolve.train.settings import DpoConfig, LoraConfig, SftConfig

TOLERANCE, WEIGHTS = 2e-5, 2e-5
OPTIMISER = {
    "epochs": 3, "batch_size": 4, "micro_batch": 4, "warmup": 0.1, "schedule": "cosine", "weight_decay": 0.01,
    "max_grad_norm": 1.0, "save_steps": 1000, "layout": "padded",
}  # fmt: skip
DPO = DpoConfig(
    **OPTIMISER,
    learning_rate=[2e-3],
    beta=[0.1],
    reference="previous",
    nll="mean",
    objective={"name": "dpo"},
    precompute_reference=True,
)
SFT = SftConfig(**OPTIMISER, learning_rate=2e-3)
ADAPTERS = LoraConfig(rank=2, alpha=4, dropout=0.0, target_modules="all-linear")


def some_pairs(count=10):
    """Several turns each; both sides begin alike, for half of their tokens at the most."""
    rng, pairs = np.random.default_rng(0), []
    kinds = [(PairKind.EXPERT_TARGET, 0.5, 0.5), (PairKind.FAILURE_FAILURE, 1.0, 0.0)]
    for number in range(count):
        alike = rng.integers(5, 300, int(rng.integers(1, 20))).tolist()
        sides = []
        for _ in range(2):
            ids = (*alike, *rng.integers(5, 300, int(rng.integers(6, 24))).tolist())
            sides.append(TokenizedTrajectory(ids, tuple(int(k > 3 and k % 5 > 1) for k in range(len(ids)))))
        kind, lambda_dpo, lambda_sft = kinds[number % 2]
        pairs.append(TokenizedPair(kind, *sides, lambda_dpo, lambda_sft))
    return pairs


PAIRS = some_pairs()


def scored(path, folder):
    """The pairs with what the stage `reference` finds."""
    rows = reference_logps.without_prefixes(side.input_ids for pair in PAIRS for side in (pair.chosen, pair.rejected))
    reference_logps.write(folder / "scores", rows, reference_logps.score(policy_io.load(path), rows, lambda *_: None))
    scores = reference_logps.read(folder / "scores")
    known = ((scores.lookup(pair.chosen.input_ids), scores.lookup(pair.rejected.input_ids)) for pair in PAIRS)
    return [replace(pair, reference_logps=sides) for pair, sides in zip(PAIRS, known, strict=True)]


@pytest.fixture
def machinery(monkeypatch):
    """Turns on what no key of a suite does."""

    def turn_on(names):
        if "recomputed" in names:
            monkeypatch.setattr(training, "RECOMPUTE_ABOVE", 0)
        if "tiled" in names:
            monkeypatch.setattr(training, "uses_tiled_head", lambda: True)

    return turn_on


def pair_curve(path, folder, config, lora=None, pairs=PAIRS):
    folder.mkdir()
    run = TrainingRun(path, folder / "out", folder / "work", 7, lora)
    report = dpo.run_dpo(pairs, config, run, iteration=1, reference=None)
    return report.history, policy_io.load(folder / "out").state_dict()


def row_curve(path, folder, config, lora=None):
    run = TrainingRun(path, folder / "out", folder / "work", 7, lora)
    report = sft.run_sft([pair.chosen for pair in PAIRS], config, run)
    return report.history, policy_io.load(folder / "out").state_dict()


def assert_same(found, expected):
    assert len(found[0]) == len(expected[0]) > 6
    for ours, theirs in zip(found[0], expected[0], strict=True):
        assert ours.keys() == theirs.keys()
        # Whether a margin is above 0 is decided by rounding where it is 0, as it is in the first step.
        for name, value in ((name, value) for name, value in theirs.items() if not name.endswith("accuracies")):
            assert ours[name] == pytest.approx(value, rel=TOLERANCE, abs=TOLERANCE), (name, theirs["step"])
    assert max((found[1][name] - weight).abs().max().item() for name, weight in expected[1].items()) < WEIGHTS


PAIR_VARIANTS = {
    "flat": ({"layout": "flat"}, ()),
    "shared": ({"layout": "shared"}, ()),
    "one pair a micro-batch": ({"micro_batch": 1}, ()),
    "shared, two pairs a micro-batch": ({"micro_batch": 2, "layout": "shared"}, ()),
    "scored before": ({}, ("scored",)),
    "scored before, shared": ({"layout": "shared"}, ("scored",)),
    "activations recomputed": ({}, ("recomputed",)),
    "activations recomputed, shared": ({"layout": "shared"}, ("recomputed",)),
    "tiled head": ({}, ("tiled",)),
    "all at once": ({"micro_batch": 1, "layout": "shared"}, ("scored", "recomputed", "tiled")),
}
ROW_VARIANTS = {
    "flat": ({"layout": "flat"}, ()),
    "one row a micro-batch": ({"micro_batch": 1}, ()),
    "activations recomputed, flat": ({"layout": "flat"}, ("recomputed",)),
    "tiled head, flat": ({"layout": "flat"}, ("tiled",)),
}


@pytest.fixture(scope="module", params=["llama", "qwen", "llama with adapters"])
def plain_pairs(request, tmp_path_factory):
    """A policy, its adapters, and the curve of the plainest preference training."""
    path = request.getfixturevalue(request.param.split()[0])
    lora = ADAPTERS if "adapters" in request.param else None
    return path, lora, pair_curve(path, tmp_path_factory.mktemp("plain") / "pairs", DPO, lora)


@pytest.mark.parametrize("variant", PAIR_VARIANTS.values(), ids=PAIR_VARIANTS)
def test_preference_training(variant, plain_pairs, machinery, tmp_path):
    path, lora, expected = plain_pairs
    settings, turned_on = variant
    machinery(turned_on)
    pairs = scored(path, tmp_path) if "scored" in turned_on else PAIRS
    config = DPO.model_copy(update=settings)
    assert_same(pair_curve(path, tmp_path / "own", config, lora, pairs), expected)


@pytest.fixture(scope="module")
def plain_rows(llama, tmp_path_factory):
    """The curve of the plainest supervised training."""
    return row_curve(llama, tmp_path_factory.mktemp("plain_rows"), SFT)


@pytest.mark.parametrize("variant", ROW_VARIANTS.values(), ids=ROW_VARIANTS)
def test_supervised_training(variant, llama, plain_rows, machinery, tmp_path):
    settings, turned_on = variant
    machinery(turned_on)
    assert_same(row_curve(llama, tmp_path, SFT.model_copy(update=settings)), plain_rows)
