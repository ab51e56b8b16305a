"""How rows lie in a batch, and that a token's log-prob does not depend on it."""

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import AutoConfig, AutoModelForCausalLM

from coevolve.chat.chat_template import TokenizedTrajectory
from coevolve.errors import UserError
from coevolve.policies import loading
from coevolve.records.pairs import PairKind
from coevolve.train import varlen_attention
from coevolve.train.collate import IGNORED, PairCollator, collate, token_logps
from coevolve.train.dataset import EMPTY_SLOT, TokenizedPair

LONG, SHORT = TokenizedTrajectory((5, 6, 7, 8), (0, 1, 0, 1)), TokenizedTrajectory((9, 8), (0, 1))
PAIR = TokenizedPair(PairKind.EXPERT_TARGET, LONG, SHORT, 0.5, 0.25)
LAYOUTS = ("padded", "flat", "shared")


def test_what_a_pair_begins_with_alike_lies_there_once():
    """All but its last token, which is followed by something else."""
    chosen = TokenizedTrajectory((5, 6, 7, 8, 1), (0, 0, 1, 0, 1))
    rejected = TokenizedTrajectory((5, 6, 7, 9), (0, 1, 0, 1))
    pair = TokenizedPair(PairKind.EXPERT_TARGET, chosen, rejected, 0.5, 0.5)
    batch = PairCollator([pair], "shared")([0])
    assert batch["input_ids"].tolist() == [[5, 6, 7, 8, 1, 7, 9]]
    assert batch["position_ids"].tolist() == [[0, 1, 2, 3, 4, 2, 3]]
    assert batch["shift_labels"].tolist() == [[6, 7, IGNORED, 1, IGNORED, 9, IGNORED]]
    assert batch["prediction_index"].tolist() == [[0, 1, 2, 3], [0, 1, 5, 0]]
    assert batch["action_mask"].tolist() == [[False, True, False, True], [True, False, True, False]]
    assert batch["segments"]["cu_seq_lens_q"].tolist() == [0, 5, 7]
    assert batch["segments"]["cu_seq_lens_k"].tolist() == [0, 5, 9]
    assert batch["segments"]["key_index"].tolist() == [0, 1, 2, 3, 4, 0, 1, 5, 6]
    assert (batch["segments"]["max_length_q"], batch["segments"]["max_length_k"]) == (5, 5)


def test_pairs_carry_weights_kinds_and_references():
    known = TokenizedPair(PAIR.kind, LONG, SHORT, 0.3, 0.1, (torch.ones(3), torch.full((1,), 2.0)))
    batch = PairCollator([known], "padded")([0, EMPTY_SLOT])
    assert batch["input_ids"].tolist() == [[5, 6, 7, 8], [9, 8, 0, 0]]
    assert (batch["lambda_dpo"].tolist(), batch["lambda_sft"].tolist()) == ([0.3], [0.1])
    assert batch["kinds"] == ["expert_target"]
    assert batch["reference_logps"].tolist() == [[1, 1, 1], [2, 0, 0]]
    assert "reference_logps" in PairCollator([known], "shared")([EMPTY_SLOT])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_an_empty_micro_batch_has_no_target_and_no_weight(layout, llama):
    batch = PairCollator([PAIR], layout)([EMPTY_SLOT])
    assert (batch["shift_labels"] == IGNORED).all() and not batch["action_mask"].any()
    assert batch["kinds"] == [] and batch["lambda_dpo"].tolist() == [0.0]
    model = reading(llama, layout, torch.float32)
    token_logps(model, batch, tiled=False).sum().backward()
    assert all(weight.grad is not None and not weight.grad.any() for weight in model.parameters())


def reading(path, layout, dtype=torch.float64):
    model = loading.load_model(path, dtype=dtype)
    return model if layout == "padded" else varlen_attention.enable(model)


def some_row(rng, beginning=()):
    own = rng.integers(5, 300, int(rng.integers(2, 20)))
    ids = (*beginning, *own.tolist())
    return TokenizedTrajectory(ids, tuple(rng.integers(0, 2, len(ids)).tolist()))


@pytest.mark.usefixtures("exact_norms")
@pytest.mark.parametrize("policy", ["llama", "qwen"])
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(seed=st.integers(0, 10_000))
def test_log_probs_do_not_depend_on_the_layout(policy, request, seed):
    """Each against the model's own logits of one row alone, in float64, gradients included."""
    path = request.getfixturevalue(policy)
    rng = np.random.default_rng(seed)
    groups = []
    for _ in range(int(rng.integers(1, 4))):
        begin = tuple(rng.integers(5, 300, int(rng.integers(0, 12))).tolist())
        groups.append([some_row(rng, begin), some_row(rng, begin)])
    rows = [row for side in zip(*groups, strict=True) for row in side]
    plain = loading.load_model(path, dtype=torch.float64)
    width = max(map(len, (row.input_ids for row in rows))) - 1
    expected = torch.zeros(len(rows), width, dtype=torch.float64)
    for number, row in enumerate(rows):
        logps = torch.log_softmax(plain(input_ids=torch.tensor([row.input_ids])).logits[0, :-1], dim=-1)
        learned = [k for k in range(1, len(row.input_ids)) if row.action_mask[k]]
        for k in learned:
            expected[number, k - 1] = logps[k - 1, row.input_ids[k]]
    weigh = torch.rand(expected.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    gradients = of_sum(plain, expected, weigh)
    for layout in LAYOUTS:
        model = reading(path, layout)
        found = token_logps(model, collate(groups, layout), tiled=False)
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
        for ours, theirs in zip(of_sum(model, found, weigh), gradients, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)


def of_sum(model, logps, weigh):
    if not logps.requires_grad:
        return [torch.zeros_like(weight) for weight in model.parameters()]
    return torch.autograd.grad((logps * weigh).sum(), list(model.parameters()))


def test_the_head_sees_learned_places_alone(llama):
    model, seen = reading(llama, "shared"), []
    model.lm_head.register_forward_hook(lambda module, args, out: seen.append(out.shape))
    token_logps(model, collate([[LONG, SHORT]], "shared"), tiled=False)
    assert [shape[:2] for shape in seen] == [(1, 3)]


def test_what_cannot_be_read_end_to_end_is_refused(qwen, llama):
    model = loading.load_model(qwen)
    model.config.layer_types = ["full_attention", "sliding_attention"]
    with pytest.raises(UserError, match="layout: padded"):
        varlen_attention.enable(model)
    model = loading.load_model(llama)
    model.config.sliding_window = 8  # as Mistral has it, without a list of layers
    with pytest.raises(UserError, match="layout: padded"):
        varlen_attention.enable(model)
    model = loading.load_model(llama)
    model.config.attention_dropout = 0.1
    with pytest.raises(UserError, match="attention_dropout"):
        varlen_attention.enable(model)


def of_type(kind):
    """A random model of a type of transformers."""
    sizes = {"vocab_size": 320, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    config = AutoConfig.for_model(kind, num_attention_heads=4, num_key_value_heads=4, **sizes)
    return AutoModelForCausalLM.from_config(config, attn_implementation="sdpa").eval()


@pytest.mark.parametrize("kind", ["stablelm", "nemotron"])
@pytest.mark.parametrize("layout", ["flat", "shared"])
def test_a_model_whose_layers_drop_the_segments_is_refused_in_its_first_pass(kind, layout):
    """Its attention would see a packed row as one sequence."""
    model, groups = of_type(kind), [[LONG, SHORT], [SHORT, LONG]]
    before = token_logps(model, collate(groups, "padded"), tiled=False)
    with pytest.raises(UserError, match=r"Attention is not given the segments of packed rows; set `layout: padded`"):
        token_logps(varlen_attention.enable(model), collate(groups, layout), tiled=False)
    torch.testing.assert_close(token_logps(model, collate(groups, "padded"), tiled=False), before)


def test_a_model_whose_attention_cannot_be_replaced_is_refused(llama):
    with pytest.raises(UserError, match="cannot be replaced; set `layout: padded`"):
        varlen_attention.enable(of_type("falcon"))
    with pytest.raises(UserError, match="The model's attention is not given the segments"):
        token_logps(loading.load_model(llama), collate([[LONG, SHORT]], "flat"), tiled=False)
