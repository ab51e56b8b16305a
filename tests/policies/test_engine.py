"""Forward passes: the right numbers, and the same bits whoever takes part."""

import pytest
import torch
from templates.models import llama, qwen3

from coevolve.errors import UserError
from coevolve.policies.engine import CHUNK, Engine, Passage

MODELS = {"llama": llama(), "qwen3": qwen3()}


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    with torch.inference_mode():
        yield
    torch.set_num_threads(before)


def ids_of(length, seed):
    return tuple(torch.randint(0, 400, (length,), generator=torch.Generator().manual_seed(seed)).tolist())


def crowd(slots, but):
    """Neighbours of different lengths in all slots except one."""
    return [Passage(slot, 0, ids_of(1 + (37 * slot) % 190, seed=slot + 1)) for slot in range(slots) if slot != but]


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("length", [1, CHUNK - 1, CHUNK, CHUNK + 1, 5 * CHUNK + 3])
def test_logits_are_those_of_the_model(name, length):
    engine = Engine(MODELS[name], slots=3, context=400)
    ids, tail = ids_of(length, seed=0), ids_of(4, seed=9)
    found = [engine.read([Passage(1, 0, ids)])[1]]
    for offset, token in enumerate(tail):
        found.append(engine.step({1: (length + offset, token)})[1])
    whole = MODELS[name](torch.tensor([ids + tail])).logits[0, length - 1 :]
    assert torch.allclose(torch.stack(found), whole, atol=2e-4)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("slots", [1, 5, 16])
def test_bits_do_not_depend_on_slot_neighbours_or_what_was_cached(name, slots):
    ids, tokens = ids_of(150, seed=0), ids_of(3, seed=9)

    def bits(slot, neighbours, pieces):
        engine = Engine(MODELS[name], slots, context=256)
        logits = engine.read([*neighbours, Passage(slot, 0, ids[: pieces[0]])])
        for start, end in zip(pieces, [*pieces[1:], len(ids)], strict=True):
            if start < end:
                logits = engine.read([Passage(slot, start, ids[start:end])])
        seen = [logits[slot].numpy().tobytes()]
        others = {passage.slot: (len(passage.ids), 7) for passage in neighbours}
        for offset, token in enumerate(tokens):
            seen.append(engine.step({slot: (len(ids) + offset, token), **others})[slot].numpy().tobytes())
        return seen

    alone = bits(0, [], [150])
    for slot in {0, slots // 2, slots - 1}:
        assert bits(slot, [], [150]) == alone
        assert bits(slot, crowd(slots, but=slot), [150]) == alone
        assert bits(slot, crowd(slots, but=slot)[::-1], [40, 41, 120]) == alone


def test_what_was_stepped_through_leaves_no_trace():
    ids = ids_of(90, seed=0)
    engine = Engine(MODELS["llama"], 2, context=256)
    fresh = engine.read([Passage(0, 0, ids)])[0].clone()
    engine.read([Passage(1, 0, ids[:50])])
    for offset, token in enumerate(ids_of(30, seed=4)):
        engine.step({1: (50 + offset, token)})
    assert torch.equal(engine.read([Passage(1, 50, ids[50:])])[1], fresh)


def test_attention_may_span_only_what_is_used(monkeypatch):
    ids, context = ids_of(300, seed=0), 512
    whole = Engine(MODELS["qwen3"], 2, context)
    growing = Engine(MODELS["qwen3"], 2, context)
    monkeypatch.setattr(growing, "_bitwise", False)
    for passage in (Passage(1, 0, ids[:100]), Passage(1, 100, ids[100:])):
        assert torch.allclose(whole.read([passage])[1], growing.read([passage])[1], atol=1e-4)


def test_models_that_are_not_supported_are_refused():
    model = llama()
    with pytest.raises(UserError, match="exceeds the model's 512 positions"):
        Engine(model, slots=1, context=513)
    model.config.model_type = "mamba"
    with pytest.raises(UserError, match="`mamba` is not supported"):
        Engine(model, slots=1, context=10)
