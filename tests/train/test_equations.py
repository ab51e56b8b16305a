"""The trainers against the equations, written out once more with plain loops in float64."""

import functools

import numpy as np
import pytest
import torch
from train.equations import (
    CONTEXT,
    STEPS,
    all_logps,
    equation_5,
    equation_9,
    knowing,
    load,
    observe,
    random_pairs,
    random_row,
)
from train.plain_objectives import reference_losses
from train.settings import ADAPTERS, dpo_config, sft_config
from trl.trainer.utils import add_fused_lm_head

from coevolve.policies import loading
from coevolve.train import dpo, sft, varlen_attention
from coevolve.train.collate import collate, token_logps
from coevolve.train.dataset import EMPTY_SLOT, cut_to_context, slot_order
from coevolve.train.losses import TokenLogps
from coevolve.train.policy_io import TrainingRun

pytestmark = pytest.mark.usefixtures("exact_norms")

TOLERANCE = 1e-9


def assert_equal_gradients(steps, batches, fresh, loss_of):
    """Each step's loss and gradients against the reference's, at the weights the step began with."""
    assert len(steps) == len(batches)
    for step, batch in zip(steps, batches, strict=True):
        fresh.load_state_dict(step.weights)
        fresh.zero_grad()
        loss = loss_of(fresh, batch)
        loss.backward()
        assert step.loss == pytest.approx(loss.item(), rel=TOLERANCE)
        expected = {name: p.grad for name, p in fresh.named_parameters() if p.requires_grad}
        assert step.gradients.keys() == expected.keys()
        scale = max(gradient.abs().max() for gradient in expected.values())
        assert scale > 1e-4
        for name, gradient in expected.items():
            assert (step.gradients[name] - gradient).abs().max() <= TOLERANCE * scale, name


def batches_of(rows, order, size):
    steps = [order[start : start + size] for start in range(0, len(order), size)]
    return [[rows[index] for index in step if index != EMPTY_SLOT] for step in steps]


def observe_dpo(path, reference, pairs, config, lora, iteration, work):
    training_set = cut_to_context(pairs, CONTEXT)
    assert 0 < training_set.truncated < len(training_set.examples)
    order = slot_order(len(training_set.examples), config.batch_size, config.epochs, seed=5)
    trainer = dpo.PreferenceTrainer(
        training_set.examples,
        order,
        model=load(path),
        reference=load(reference) if reference else None,
        config=config,
        iteration=iteration,
        run=TrainingRun(path, work / "out", work, 5, lora),
    )
    return observe(trainer, work), batches_of(training_set.examples, order, config.batch_size)


CASES = {
    "llama, padded": {"micro": 2, "precompute": True, "layout": "padded"},
    "llama, padded, on the fly": {"micro": 4, "precompute": False, "layout": "padded"},
    "llama, flat": {"micro": 4, "precompute": True, "layout": "flat"},
    "qwen3, flat, on the fly": {"micro": 2, "precompute": False, "model": "qwen", "layout": "flat"},
    "qwen3, padded": {"micro": 4, "precompute": True, "model": "qwen", "layout": "padded"},
    "llama, one pair a micro-batch": {"micro": 1, "precompute": True},
    "llama, on the fly": {"micro": 2, "precompute": False},
    "llama, whole batch": {"micro": 4, "precompute": True, "iteration": 2},
    "llama, summed nll": {"micro": 2, "precompute": True, "nll": "sum"},
    "llama, lora, precomputed": {"micro": 2, "precompute": True, "lora": ADAPTERS},
    "llama, lora, adapters off": {"micro": 2, "precompute": False, "lora": ADAPTERS},
    "llama, lora, another reference": {"micro": 4, "precompute": False, "lora": ADAPTERS, "reference": "other"},
    "llama, another reference": {"micro": 2, "precompute": True, "reference": "other"},
    "qwen3, precomputed": {"micro": 2, "precompute": True, "model": "qwen"},
    "qwen3, on the fly": {"micro": 4, "precompute": False, "model": "qwen"},
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_preference_training_is_equation_9(case, request, tmp_path):
    path = request.getfixturevalue(case.get("model", "llama"))
    lora, iteration, nll = case.get("lora"), case.get("iteration", 1), case.get("nll", "mean")
    reference = request.getfixturevalue(case["reference"]) if "reference" in case else None
    config = dpo_config(**STEPS, micro_batch=case["micro"], nll=nll, layout=case.get("layout", "shared"))
    pairs = random_pairs()
    if case["precompute"]:
        pairs, given = knowing(pairs, reference or path), None
    else:
        # Without adapters and without log-probs, the reference is a second model, which run_dpo loads.
        given = reference or (None if lora else path)
    steps, batches = observe_dpo(path, given, pairs, config, lora, iteration, tmp_path)
    assert [len(batch) for batch in batches] == [4, 3], "the last batch must be uneven"
    beta, fixed = config.beta[iteration - 1], load(reference or path)
    assert_equal_gradients(
        steps, batches, load(path, lora), lambda model, batch: equation_9(model, fixed, batch, beta, nll)
    )


@pytest.mark.parametrize(
    ("micro", "layout", "nll"), [(1, "flat", None), (4, "flat", None), (4, "padded", None), (1, "flat", "sum")]
)
@pytest.mark.parametrize(("model", "lora"), [("llama", None), ("llama", ADAPTERS), ("qwen", None)])
def test_supervised_training_is_equation_5(model, lora, micro, layout, nll, request, tmp_path):
    path = request.getfixturevalue(model)
    rng = np.random.default_rng(1)
    training_set = cut_to_context([random_row(rng, 10, 40) for _ in range(7)], CONTEXT)
    assert training_set.truncated > 0
    config = sft_config(micro_batch=micro, layout=layout, nll=nll, max_grad_norm=1e9)
    order = slot_order(7, 4, 1.0, seed=5)
    run = TrainingRun(path, tmp_path / "out", tmp_path, 5, lora)
    trainer = sft.SupervisedTrainer(training_set.examples, order, model=load(path), config=config, run=run)
    steps = observe(trainer, tmp_path)
    batches, loss = batches_of(training_set.examples, order, 4), functools.partial(equation_5, nll=nll)
    assert_equal_gradients(steps, batches, load(path, lora), loss)


@pytest.mark.parametrize("precompute", [True, False])
@pytest.mark.parametrize(
    "section",
    [{"name": "dpo_length"}, {"name": "dmpo", "discount": 0.7}, {"name": "simpo", "margin": 0.3}, {"name": "ipo"}],
    ids=lambda section: section["name"],
)
def test_preference_training_with_another_objective(section, precompute, llama, other, tmp_path):
    config, fixed = dpo_config(**STEPS, objective=section), load(other)
    name, parameters = section["name"], {key: value for key, value in section.items() if key != "name"}
    free = name == "simpo"  # what needs no reference gets none, as run_dpo has it
    pairs = knowing(random_pairs(), other) if precompute and not free else random_pairs()
    steps, batches = observe_dpo(llama, None if free or precompute else other, pairs, config, None, 1, tmp_path)

    def loss_of(model, pairs):
        total = torch.zeros((), dtype=torch.float64)
        for pair in pairs:
            sides = [
                TokenLogps(
                    all_logps(model, row)[None],
                    all_logps(fixed, row)[None].detach(),
                    torch.tensor([row.action_mask[1:]]).bool(),
                )
                for row in (pair.chosen, pair.rejected)
            ]
            (loss,) = reference_losses(name, *sides, 0.1, parameters)
            nll = -sides[0].policy[sides[0].action_mask].mean()
            total = total + pair.lambda_dpo * loss + pair.lambda_sft * nll
        return total / len(pairs)

    assert_equal_gradients(steps, batches, load(llama), loss_of)


@pytest.mark.parametrize("layout", ["padded", "shared"])
def test_the_tiled_head_agrees_with_the_plain_one(qwen, layout):
    model = loading.load_model(qwen, dtype=torch.float32)
    batch = collate([[pair.chosen, pair.rejected] for pair in random_pairs()], layout)
    if layout == "shared":
        varlen_attention.enable(model)
    plain = token_logps(model, batch, tiled=False)
    add_fused_lm_head(model)
    tiled = token_logps(model, batch, tiled=True)
    torch.testing.assert_close(tiled, plain, rtol=1e-5, atol=1e-5)
    assert torch.equal(plain != 0, batch["action_mask"])
