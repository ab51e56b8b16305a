"""The trainers against the equations, written out once more with plain loops in float64."""

import itertools

import numpy as np
import pytest
import torch
from train.equations import (
    CONTEXT,
    STEPS,
    equation_5,
    equation_9,
    knowing,
    load,
    observe,
    random_pairs,
    random_row,
)
from train.settings import ADAPTERS, dpo_config, sft_config
from trl.trainer.utils import add_fused_lm_head

from coevolve.chat.chat_template import TokenizedTrajectory
from coevolve.policies import loading
from coevolve.train import dpo, sft, varlen_attention
from coevolve.train.collate import collate, token_logps
from coevolve.train.dataset import EMPTY_SLOT, cut_to_context, slot_order
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


@pytest.mark.parametrize(("micro", "layout"), [(1, "flat"), (4, "flat"), (4, "padded")])
@pytest.mark.parametrize(("model", "lora"), [("llama", None), ("llama", ADAPTERS), ("qwen", None)])
def test_supervised_training_is_equation_5(model, lora, micro, layout, request, tmp_path):
    path = request.getfixturevalue(model)
    rng = np.random.default_rng(1)
    training_set = cut_to_context([random_row(rng, 10, 40) for _ in range(7)], CONTEXT)
    assert training_set.truncated > 0
    config = sft_config(micro_batch=micro, layout=layout, max_grad_norm=1e9)
    order = slot_order(7, 4, 1.0, seed=5)
    run = TrainingRun(path, tmp_path / "out", tmp_path, 5, lora)
    trainer = sft.SupervisedTrainer(training_set.examples, order, model=load(path), config=config, run=run)
    steps = observe(trainer, tmp_path)
    assert_equal_gradients(steps, batches_of(training_set.examples, order, 4), load(path, lora), equation_5)


def turns_of(row):
    """The places of the row's action tokens, turn by turn."""
    runs = itertools.groupby(range(1, len(row.input_ids)), key=lambda k: row.action_mask[k])
    return [list(run) for acted, run in runs if acted]


def action_logps(model, row):
    """Log-probs of the row's action tokens by their place, in one pass: the norms' float32 sums depend on it."""
    logits = model(input_ids=torch.tensor([row.input_ids])).logits[0]
    places = [k for k in range(1, len(row.input_ids)) if row.action_mask[k]]
    return {k: torch.log_softmax(logits[k - 1], dim=-1)[row.input_ids[k]] for k in places}


def weighed(logps, row, weigh):
    """The sum of the row's log-probs with a weight for each turn; `weigh` maps the turns to their weights."""
    turns = turns_of(row)
    return sum(factor * logps[k] for turn, factor in zip(turns, weigh(turns), strict=True) for k in turn)


def mean_weights(turns):
    return [1 / sum(map(len, turns))] * len(turns)


def dmpo_weights(turns):
    steps = [0.7**k for k in range(len(turns))]
    return [sum(steps[t:]) / sum(steps) for t in range(len(turns))]


@pytest.mark.parametrize("precompute", [True, False])
@pytest.mark.parametrize(
    ("section", "weigh"),
    [
        ({"name": "dpo_length"}, mean_weights),
        ({"name": "dmpo", "discount": 0.7}, dmpo_weights),
        ({"name": "simpo", "margin": 0.3}, mean_weights),
    ],
    ids=["dpo_length", "dmpo", "simpo"],
)
def test_preference_training_with_another_objective(section, weigh, precompute, llama, other, tmp_path):
    config = dpo_config(**STEPS, objective=section)
    free, margin = "margin" in section, section.get("margin", 0.0)
    pairs = knowing(random_pairs(), other) if precompute and not free else random_pairs()
    # What needs no reference gets none, as run_dpo has it.
    steps, batches = observe_dpo(llama, None if free or precompute else other, pairs, config, None, 1, tmp_path)
    fixed = load(other)

    def loss_of(model, pairs):
        total = torch.zeros((), dtype=torch.float64)
        for pair in pairs:
            rows = (pair.chosen, pair.rejected)
            logps = [action_logps(model, row) for row in rows]
            with torch.no_grad():
                under = [0.0 if free else weighed(action_logps(fixed, row), row, weigh) for row in rows]
            chosen, rejected = (weighed(own, row, weigh) for own, row in zip(logps, rows, strict=True))
            gap = 0.1 * (chosen - under[0] - rejected + under[1]) - margin
            nll = -sum(logps[0].values()) / len(logps[0])
            total = total - pair.lambda_dpo * torch.log(1 / (1 + torch.exp(-gap))) + pair.lambda_sft * nll
        return total / len(pairs)

    assert_equal_gradients(steps, batches, load(llama), loss_of)


def test_only_action_tokens_are_learned(llama, tmp_path):
    """The last token is input to nothing: unless it is an action, its id does not change a bit of the gradient."""
    row = random_row(np.random.default_rng(2), 20, 24)

    def gradients(last, acted):
        changed = TokenizedTrajectory((*row.input_ids[:-1], last), (*row.action_mask[:-1], acted))
        trainer = sft.SupervisedTrainer(
            [changed],
            [0],
            model=load(llama),
            config=sft_config(batch_size=1, micro_batch=1),
            run=TrainingRun(llama, tmp_path / "out", tmp_path, 5),
        )
        return observe(trainer, tmp_path)[0].gradients.values()

    assert all(torch.equal(a, b) for a, b in zip(gradients(7, 0), gradients(9, 0), strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(gradients(7, 1), gradients(9, 1), strict=True))


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
