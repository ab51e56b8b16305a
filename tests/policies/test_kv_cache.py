"""Forward passes: the right numbers, and the same bits whatever the batch."""

import itertools

import pytest
import torch
from templates.models import llama, qwen3
from transformers import LlamaConfig, LlamaForCausalLM

from coevolve.errors import UserError
from coevolve.policies.exact_shapes import ROWS, cancelling, exact_rows, exact_spans, shortest
from coevolve.policies.kv_cache import CHUNK, PREFILL_TOKENS, CachedDecoder, Prefill, shared_runs
from coevolve.policies.loading import transpose_weights

MODELS = {"llama": llama(), "qwen3": qwen3()}
COLUMNS = {"llama in columns": llama(), "qwen3 in columns": qwen3()}
for model in COLUMNS.values():
    transpose_weights(model)
NARROW = {"llama in bfloat16": llama().bfloat16(), "qwen3 in bfloat16": qwen3().bfloat16()}


@pytest.fixture(autouse=True)
def no_gradients():
    with torch.inference_mode():
        yield
    torch.set_num_threads(1)


def ids_of(length, seed):
    return tuple(torch.randint(0, 400, (length,), generator=torch.Generator().manual_seed(seed)).tolist())


def decoder_of(name="llama", slots=3, context=400, exact=True):
    return CachedDecoder((MODELS | NARROW | COLUMNS)[name], slots=slots, context=context, exact=exact)


def own(slot, ids, start=0):
    """The prefill of a slot that holds the first `start` of these ids itself."""
    return Prefill(slot, slot, start, ids)


@pytest.mark.parametrize("name", [*MODELS, *COLUMNS])
@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("length", [1, CHUNK - 1, CHUNK, CHUNK + 1, PREFILL_TOKENS + 3])
def test_logits_are_those_of_the_model(name, length, exact):
    """Also by the passes of a GPU, whose chunks are longer and attend at once."""
    decoder = decoder_of(name, exact=exact)
    ids, tail = ids_of(length, seed=0), ids_of(4, seed=9)
    logits = [decoder.prefill([own(2, ids_of(5, seed=1)), own(1, ids)])[1]]
    for offset, token in enumerate(tail):
        logits.append(decoder.decode({1: (length + offset, token)})[0])
    whole = MODELS[name.split()[0]](torch.tensor([ids + tail])).logits[0, length - 1 :]
    assert torch.allclose(torch.stack(logits), whole, atol=2e-4)


def bits(name, slots, batch, row, slot, batched, pieces):
    """The bits of one conversation's logits: read in `pieces`, then three steps beside ever fewer others."""
    ids, decoder = ids_of(150, seed=0), decoder_of(name, slots, context=512)
    others = [other for other in range(slots) if other != slot][: batch - 1] if batched else []
    neighbours = [own(other, ids_of(1 + (137 * other) % 490, seed=other + 1)) for other in others]
    row = min(row, len(neighbours))
    for start, end in itertools.pairwise([0, *pieces]):
        decoder.prefill([*neighbours[:row], own(slot, ids[:end], start), *neighbours[row:]])
    logits = decoder.prefill([*neighbours[:row], own(slot, ids, pieces[-1]), *neighbours[row:]])
    seen = [logits[row].float().numpy().tobytes()]
    for offset, token in enumerate(ids_of(3, seed=9)):
        before, after = (
            [(n.slot, (len(n.ids) + offset, 7)) for n in part] for part in (neighbours[:row], neighbours[row:])
        )
        before, after = before[offset:], after[2 * offset :]
        logits = decoder.decode(dict([*before, (slot, (len(ids) + offset, token)), *after]))
        seen.append(logits[len(before)].float().numpy().tobytes())
    return seen


@pytest.mark.parametrize(
    ("name", "slots", "batch"),
    [
        *((name, *sizes) for name in MODELS for sizes in [(1, 1), (5, 3), (16, 8), (16, 16)]),
        *((name, 9, 9) for name in (*NARROW, *COLUMNS)),
    ],
)
def test_bits_do_not_depend_on_slot_row_neighbours_or_what_was_cached(name, slots, batch):
    alone = bits(name, slots, batch, row=0, slot=0, batched=False, pieces=[120])
    for slot in {0, slots // 2, slots - 1}:
        for row in {0, batch - 1}:
            assert bits(name, slots, batch, row, slot, batched=True, pieces=[120]) == alone
            assert bits(name, slots, batch, row, slot, batched=True, pieces=[40, 41, 149]) == alone


@pytest.mark.parametrize("columns", [False, True])
def test_logits_do_not_depend_on_the_number_of_slots(columns):
    """Which is that of workers, or what memory allows, neither of which may change a result."""
    torch.manual_seed(0)
    shape = {"hidden_size": 576, "intermediate_size": 64, "num_attention_heads": 9, "num_key_value_heads": 3}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=4096, num_hidden_layers=1, **shape)).eval()
    if columns:
        transpose_weights(model)
    ids = ids_of(40, seed=0)
    logits = [CachedDecoder(model, slots=slots, context=64).prefill([own(0, ids)]) for slots in (1, 2, 8, 16, 48)]
    assert all(torch.equal(each, logits[0]) for each in logits)


def test_decoded_tokens_leave_no_trace_in_what_is_prefilled():
    ids, decoder = ids_of(90, seed=0), decoder_of()
    fresh = decoder.prefill([own(0, ids)])[0].clone()
    decoder.prefill([own(1, ids[:50])])
    for offset, token in enumerate(ids_of(30, seed=4)):
        decoder.decode({0: (50 + offset, token)})
        decoder.decode({1: (50 + offset, token)})
    assert torch.equal(decoder.prefill([own(1, ids, 50)])[0], fresh)


@pytest.mark.parametrize("name", MODELS)
def test_a_common_beginning_is_computed_once_and_changes_no_bit(name):
    """A tree of prompts: two pairs that part late, one prompt inside another, one twice, one that shares nothing."""
    trunk = ids_of(70, seed=0)
    left, right = trunk + ids_of(40, seed=1), trunk[:45] + ids_of(90, seed=2)
    prompts = [left, left + ids_of(9, seed=3), right, right[:100] + ids_of(3, seed=4), left, trunk, ids_of(50, seed=5)]
    alone = torch.stack([decoder_of(name, 7).prefill([own(0, ids)])[0] for ids in prompts])
    decoder, prefills = decoder_of(name, 7), [own(slot, ids) for slot, ids in enumerate(prompts)]
    runs = list(shared_runs(prefills))
    assert sum(len(run.ids) for run in runs) == len({ids[:n] for ids in prompts for n in range(1, len(ids) + 1)})
    assert torch.equal(decoder.prefill(prefills), alone)
    # What the slots hold is right, too: each goes on by itself, and from copies.
    tail = ids_of(20, seed=6)
    longer = torch.stack([decoder_of(name, 7).prefill([own(0, ids + tail)])[0] for ids in prompts])
    onward = [own(slot, ids + tail, len(ids)) for slot, ids in enumerate(prompts)]
    assert torch.equal(decoder.prefill(onward[3:]), longer[3:])
    copied = Prefill(3, 1, 110, left + tail), Prefill(1, 2, 45, right + tail), Prefill(2, 0, 70, trunk + tail)
    assert torch.equal(decoder.prefill(copied), longer[[0, 2, 5]])
    # Equal tokens behind different beginnings are not shared.
    changed = (*trunk[:4], (trunk[4] + 1) % 400, *trunk[5:])
    apart = shared_runs([own(0, trunk + tail, 70), own(1, changed + tail, 70)])
    assert [(run.slots, run.ids) for run in apart] == [((0,), tail), ((1,), tail)]


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("heads", [(4, 4), (4, 2), (8, 2), (6, 2), (8, 1)])
def test_bits_do_not_depend_on_how_far_attention_spans(heads, threads, monkeypatch):
    """The number of query heads per key head decides the shape of the products, and so which spans are exact."""
    model = qwen3(num_attention_heads=heads[0], num_key_value_heads=heads[1])
    ids = ids_of(500, seed=0)
    torch.set_num_threads(threads)
    narrow, wide = (CachedDecoder(model, slots=3, context=512) for _ in range(2))
    assert len(narrow.spans) > 1, "no shorter span is exact on this machine"
    monkeypatch.setattr(wide, "spans", [512])
    for start, end in itertools.pairwise([0, 30, 60, 70, 150, 220, 300, 370, 440, 490]):
        prefill = own(1, ids[:end], start)
        assert torch.equal(narrow.prefill([prefill])[0], wide.prefill([prefill])[0])
        assert torch.equal(narrow.decode({1: (end, 7)})[0], wide.decode({1: (end, 7)})[0])


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("columns", [False, True])
def test_bits_do_not_depend_on_the_number_of_tokens_of_a_pass(threads, dtype, columns):
    """Each token alone, and among others in passes of every size; the sizes in between are no pass of an engine."""
    torch.set_num_threads(threads)
    model = qwen3(num_attention_heads=6).to(dtype)
    if columns:
        transpose_weights(model)
    decoder = CachedDecoder(model, slots=3, context=512)
    assert len(decoder.rows) > 1, "no smaller number of rows is exact on this machine"
    ids = ids_of(200, seed=0)
    whole = decoder.prefill([own(0, ids)])[0]
    for pieces in ([0, 199], [0, 1, 2, 5, 90, 197], list(range(0, 200, 9))):
        for start, end in itertools.pairwise([*pieces, 200]):
            last = decoder.prefill([own(1, ids[:end], start)])[0]
        assert torch.equal(last, whole)


def test_spans_end_with_the_width_and_need_no_bits_off_the_cpu():
    cpu, other = (torch.zeros(0, device=device) for device in ("cpu", "meta"))
    for width in (32, 64, 400, 4096):
        for queries in (1, 32):
            spans, everywhere = (exact_spans((4, 2), 16, width, queries, 0.25, like) for like in (cpu, other))
            assert spans == sorted(spans) and spans[-1] == everywhere[-1] == width
            assert set(spans) <= set(everywhere) and len(everywhere) <= 16
            assert all(shortest(spans, length) >= length for length in range(1, width + 1))


def test_numbers_of_rows_with_other_bits_are_left_out():
    """A function that is off by a bit for less than ten rows, and one for late rows among less than 40."""
    like = torch.zeros(0)

    def few(rows):
        return rows * (1 + torch.finfo().eps) if len(rows) < 10 else rows

    def late(rows):
        return torch.cat([rows[:20], rows[20:] * (1 + torch.finfo().eps)]) if len(rows) < 40 else rows

    linear = torch.nn.Linear(16, 8)
    everything = list(ROWS[: ROWS.index(64) + 1])
    assert exact_rows([(lambda rows: rows, 16)], 60, like) == everything
    assert exact_rows([(few, 16)], 60, like) == [n for n in everything if n >= 10]
    assert exact_rows([(late, 16)], 60, like) == [n for n in everything if n <= 20 or n >= 40]
    assert exact_rows([(linear, 16), (few, 16)], 1, torch.zeros(0, device="meta")) == [1]
    assert exact_rows([], 1000, like)[-1] >= 1000


def test_another_order_of_additions_is_noticed_though_results_are_rounded_to_bfloat16():
    """A kernel for few rows that adds the first hundred products and the others by themselves."""
    layer = torch.nn.Linear(512, 64, bias=False).bfloat16()
    weight = cancelling(layer)(torch.eye(512, dtype=torch.bfloat16)).T.float()
    assert weight.shape == (64, 512) and weight.count_nonzero() == weight.numel()

    def kernel(rows):
        ends = [0, 512] if len(rows) >= 10 else [0, 100, 512]
        return sum(rows[:, a:b].float() @ weight[:, a:b].T for a, b in itertools.pairwise(ends)).bfloat16()

    like = torch.zeros(0, dtype=torch.bfloat16)
    assert exact_rows([(kernel, 512)], 60, like) == [n for n in ROWS if 10 <= n <= 64]


def test_models_that_are_not_supported_are_refused():
    model = llama()
    with pytest.raises(UserError, match="exceeds the model's 512 positions"):
        CachedDecoder(model, slots=1, context=513)
    scaling = {"rope_type": "longrope", "original_max_position_embeddings": 128, "factor": 4.0}
    long = llama(rope_parameters=scaling | dict.fromkeys(("short_factor", "long_factor"), [1.0] * 8))
    with pytest.raises(UserError, match="with `longrope`, `context` is at most 128, not 129"):
        CachedDecoder(long, slots=1, context=129)
    assert CachedDecoder(long, slots=1, context=128).decode({0: (0, 5)}).shape == (1, 400)
    model.config.model_type = "mamba"
    with pytest.raises(UserError, match="`mamba` is not supported"):
        CachedDecoder(model, slots=1, context=10)


@pytest.mark.parametrize("name", MODELS)
def test_passes_of_a_gpu_are_right_for_many_conversations_at_once(name):
    """Prompts of different lengths with common beginnings, then tokens at different positions."""
    trunk = ids_of(300, seed=0)
    prompts = [trunk, trunk[:270] + ids_of(9, seed=1), ids_of(1, seed=2), ids_of(31, seed=3)]
    prefills = [own(slot, ids) for slot, ids in enumerate(prompts)]
    exact, long = (decoder_of(name, 4, exact=exact) for exact in (True, False))
    assert torch.allclose(long.prefill(prefills), exact.prefill(prefills), atol=2e-4)
    for offset, token in enumerate(ids_of(3, seed=4)):
        tokens = {slot: (len(ids) + offset, token) for slot, ids in enumerate(prompts) if slot >= offset}
        assert torch.allclose(long.decode(tokens), exact.decode(tokens), atol=2e-4)
