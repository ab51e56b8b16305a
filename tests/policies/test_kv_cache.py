"""Forward passes: the right numbers, and the same bits whatever the batch."""

import itertools

import pytest
import torch
from templates.models import llama, qwen3
from transformers import Qwen3Config, Qwen3ForCausalLM

from coevolve.errors import UserError
from coevolve.policies.attention_spans import exact_spans, shortest
from coevolve.policies.kv_cache import CHUNK, PREFILL_ROWS, CachedDecoder, Prefill

MODELS = {"llama": llama(), "qwen3": qwen3()}
NARROW = {"llama in bfloat16": llama().bfloat16(), "qwen3 in bfloat16": qwen3().bfloat16()}


@pytest.fixture(autouse=True)
def no_gradients():
    with torch.inference_mode():
        yield
    torch.set_num_threads(1)


def grouped(heads, kv_heads):
    """A Qwen3 with this many query heads and key heads."""
    sizes = {"num_attention_heads": heads, "num_key_value_heads": kv_heads, "head_dim": 16, "hidden_size": 64}
    torch.manual_seed(0)
    shape = {"vocab_size": 400, "intermediate_size": 128, "num_hidden_layers": 2, "max_position_embeddings": 512}
    return Qwen3ForCausalLM(Qwen3Config(initializer_range=0.2, **shape, **sizes)).eval()


def ids_of(length, seed):
    return tuple(torch.randint(0, 400, (length,), generator=torch.Generator().manual_seed(seed)).tolist())


def decoder_of(name="llama", slots=3, batch=2, context=400):
    return CachedDecoder((MODELS | NARROW)[name], slots=slots, batch=batch, context=context)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("length", [1, CHUNK - 1, CHUNK, CHUNK + 1, PREFILL_ROWS * CHUNK + 3])
def test_logits_are_those_of_the_model(name, length):
    decoder = decoder_of(name)
    ids, tail = ids_of(length, seed=0), ids_of(4, seed=9)
    logits = [decoder.prefill([Prefill(2, 0, ids_of(5, seed=1)), Prefill(1, 0, ids)])[1]]
    for offset, token in enumerate(tail):
        logits.append(decoder.decode({1: (length + offset, token)})[1])
    whole = MODELS[name](torch.tensor([ids + tail])).logits[0, length - 1 :]
    assert torch.allclose(torch.stack(logits), whole, atol=2e-4)


def bits(name, slots, batch, row, slot, batched, pieces):
    """The bits of one conversation's logits: read in `pieces`, then three steps, the others doing likewise."""
    ids, decoder = ids_of(150, seed=0), decoder_of(name, slots, batch, context=512)
    others = [other for other in range(slots) if other != slot][: batch - 1] if batched else []
    neighbours = [Prefill(other, 0, ids_of(1 + (137 * other) % 490, seed=other + 1)) for other in others]
    row = min(row, len(neighbours))
    for start, end in itertools.pairwise([0, *pieces]):
        decoder.prefill([*neighbours[:row], Prefill(slot, start, ids[start:end]), *neighbours[row:]])
    logits = decoder.prefill([*neighbours[:row], Prefill(slot, pieces[-1], ids[pieces[-1] :]), *neighbours[row:]])
    seen = [logits[row].float().numpy().tobytes()]
    rows = [*neighbours[:row], *neighbours[:1], *neighbours[row:]]
    active = {i: (len(prefill.ids), 7) for i, prefill in enumerate(rows) if i != row}
    for offset, token in enumerate(ids_of(3, seed=9)):
        seen.append(decoder.decode({row: (len(ids) + offset, token), **active})[row].float().numpy().tobytes())
    return seen


@pytest.mark.parametrize("name", [*MODELS, *NARROW])
@pytest.mark.parametrize(("slots", "batch"), [(1, 1), (5, 3), (16, 8), (16, 16)])
def test_bits_do_not_depend_on_slot_row_neighbours_or_what_was_cached(name, slots, batch):
    alone = bits(name, slots, batch, row=0, slot=0, batched=False, pieces=[120])
    for slot in {0, slots // 2, slots - 1}:
        for row in {0, batch - 1}:
            assert bits(name, slots, batch, row, slot, batched=True, pieces=[120]) == alone
            assert bits(name, slots, batch, row, slot, batched=True, pieces=[40, 41, 149]) == alone


def test_decoding_leaves_the_prefill_cache_unchanged():
    ids, decoder = ids_of(90, seed=0), decoder_of()
    fresh = decoder.prefill([Prefill(0, 0, ids)])[0].clone()
    decoder.prefill([Prefill(1, 0, ids[:50])])
    for offset, token in enumerate(ids_of(30, seed=4)):
        decoder.decode({0: (50 + offset, token)})
    assert torch.equal(decoder.prefill([Prefill(1, 50, ids[50:])])[0], fresh)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("heads", [(4, 4), (4, 2), (8, 2), (6, 2), (8, 1)])
def test_bits_do_not_depend_on_how_far_attention_spans(heads, threads, monkeypatch):
    """The number of query heads per key head decides the shape of the products, and so which spans are exact."""
    model = grouped(*heads)
    ids = ids_of(500, seed=0)
    torch.set_num_threads(threads)
    narrow, wide = (CachedDecoder(model, slots=3, batch=2, context=512) for _ in range(2))
    for cache in (narrow._prefill_cache, narrow._decode_cache):
        assert len(cache.spans) > 1, "no shorter span is exact on this machine"
    for cache in (wide._prefill_cache, wide._decode_cache):
        monkeypatch.setattr(cache, "spans", [512])
    for start, end in itertools.pairwise([0, 30, 60, 70, 150, 220, 300, 370, 440, 490]):
        prefill = Prefill(1, start, ids[start:end])
        assert torch.equal(narrow.prefill([prefill])[0], wide.prefill([prefill])[0])
        assert torch.equal(narrow.decode({0: (end, 7)})[0], wide.decode({0: (end, 7)})[0])


def test_spans_end_with_the_width_and_need_no_bits_off_the_cpu():
    attention = MODELS["qwen3"].base_model.layers[0].self_attn
    for width in (32, 64, 400, 4096):
        for queries in (1, 32):
            shape = {"cache_shape": (2, 2, width, 16), "queries": queries, "dtype": torch.float32}
            spans = exact_spans(attention, device=torch.device("cpu"), **shape)
            everywhere = exact_spans(attention, device=torch.device("meta"), **shape)
            assert spans == sorted(spans) and spans[-1] == everywhere[-1] == width
            assert set(spans) <= set(everywhere) and len(everywhere) <= 16
            assert all(shortest(spans, length) >= length for length in range(1, width + 1))


def test_models_that_are_not_supported_are_refused():
    model = llama()
    with pytest.raises(UserError, match="exceeds the model's 512 positions"):
        CachedDecoder(model, slots=1, batch=1, context=513)
    model.config.model_type = "mamba"
    with pytest.raises(UserError, match="`mamba` is not supported"):
        CachedDecoder(model, slots=1, batch=1, context=10)
