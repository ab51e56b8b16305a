"""Reference log-probs as a stage: the numbers of training itself, found again for whatever a pair is made of."""

import math
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file
from stages import corridor
from train.key_door import CUT, paired, scored, sources, trained
from train.settings import WITH_DROPOUT

from coevolve.chat.chat_template import Renderer, TokenizedTrajectory
from coevolve.pipeline.stages import reference as stage
from coevolve.pipeline.stages.parts.training import tokenize
from coevolve.policies import loading
from coevolve.records.episodes import Trajectory
from coevolve.records.pairs import PairKind, PreferencePair
from coevolve.storage import jsonl
from coevolve.train import dpo, policy_io, reference_logps
from coevolve.train.dataset import TokenizedPair

ROWS = st.lists(st.lists(st.sampled_from([0, 1, 255, 256, 70_000]), min_size=2, max_size=6), max_size=12)


@given(ROWS)
def test_every_beginning_of_a_row_is_found_and_nothing_else(rows):
    kept = reference_logps.without_prefixes(rows)
    logps = [torch.tensor(row[1:]) for row in kept]
    scores = reference_logps.ReferenceLogps([reference_logps._key(row) for row in kept], logps)
    begins = {tuple(row[:length]) for row in rows for length in range(2, len(row) + 1)}
    for row in begins:
        assert scores.lookup(row).tolist() == list(row[1:])
    assert not any(other[: len(row)] == row for row in kept for other in kept if other is not row)
    for row in {(*row, 7) for row in begins} | {(7, 7)}:
        assert scores.lookup(row) is None


@pytest.mark.parametrize("family", ["llama", "qwen"])
def test_a_row_is_scored_as_a_plain_forward_pass_says(family, request, tmp_path):
    model = policy_io.load(request.getfixturevalue(family)).double()
    rows = reference_logps.without_prefixes([[5, 9, 280, 17, 6], [5, 9, 280], [8, 7, 6, 5, 4, 3, 2]])
    told = []
    found = reference_logps.score(model, rows, lambda done, total: told.append((done, total)))
    for row, logps in zip(rows, found, strict=True):
        whole = torch.log_softmax(model(torch.tensor([row])).logits[0], dim=-1)
        torch.testing.assert_close(logps, whole[:-1][range(len(row) - 1), row[1:]].float(), rtol=1e-6, atol=0)
    assert len(rows) == 2 and told == [(1, 2), (2, 2)]
    reference_logps.write(tmp_path / "scores.safetensors", rows, found)
    read = reference_logps.read(tmp_path / "scores.safetensors")
    torch.testing.assert_close(read.lookup([5, 9, 280]), found[0][:2], rtol=0, atol=0)


def test_where_there_is_a_gpu_rows_are_scored_there(monkeypatch):
    """The model is moved first; here it cannot be."""

    def moved(device):
        raise ConnectionAbortedError(device.type)

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    model = SimpleNamespace(device=torch.device("cpu"), to=moved)
    with pytest.raises(ConnectionAbortedError, match="cuda"):
        reference_logps.score(model, [[1, 2]], print)


def test_no_row_is_a_file_too(tmp_path, llama):
    assert reference_logps.score(policy_io.load(llama), [], print) == []
    reference_logps.write(tmp_path / "scores.safetensors", [], [])
    assert reference_logps.read(tmp_path / "scores.safetensors").lookup([1, 2]) is None


@pytest.mark.parametrize(("held_to", "lora"), [("policy", None), ("other", None), ("other", WITH_DROPOUT)])
def test_training_is_that_with_the_reference_on_the_fly(base, tmp_path, held_to, lora):
    """Also where the rejected side is a trajectory cut short."""
    pairs, policy = paired(base), base / held_to / "policy.json"
    assert [len(pair.rejected_token_ids) for pair in jsonl.read(pairs, PreferencePair)] == [5, 5, 5]
    scores = scored(tmp_path, policy, **sources(base))
    before = trained(tmp_path, base, "before", lora=lora, pairs=pairs, scores=scores)
    on_the_fly = trained(tmp_path, base, "on_the_fly", lora=lora, pairs=pairs, reference=policy)
    assert before.first_loss == pytest.approx(on_the_fly.first_loss, rel=1e-6)
    assert before.last_loss == pytest.approx(on_the_fly.last_loss, rel=1e-6)
    assert (before.first_loss == pytest.approx(math.log(2), rel=1e-6)) == (held_to == "policy")
    assert on_the_fly.gold.before is None and on_the_fly.gold.after == pytest.approx(before.gold.after, rel=1e-6)


@pytest.mark.parametrize("lora", [None, WITH_DROPOUT], ids=["full", "lora"])
def test_log_probs_before_and_after_are_those_of_experts_and_explored_episodes(base, tmp_path, lora):
    start = base / "policy/policy.json"
    scores = scored(tmp_path, start, **sources(base))
    report = trained(tmp_path, base, "both", lora=lora, pairs=paired(base), scores=scores)
    for measured, sides in ((report.gold, rendered(base, "chosen")), (report.explored, rendered(base, "rejected"))):
        masks = [torch.tensor(side.action_mask[1:], dtype=torch.bool) for side in sides]
        ends = []
        for folder in (start.parent, tmp_path / "both"):
            rows = reference_logps.score(policy_io.load(folder), [side.input_ids for side in sides], lambda *_: None)
            ends.append(sum(float(row[mask].sum()) for row, mask in zip(rows, masks, strict=True)) / len(sides))
        assert measured.trajectories == len(sides) == 3
        assert measured.action_tokens == pytest.approx(sum(int(mask.sum()) for mask in masks) / 3)
        assert [measured.before, measured.after] == pytest.approx(ends, rel=1e-6)
    assert report.gold.after > report.gold.before + 0.01 and report.explored.after < report.explored.before - 0.01


def test_the_failure_agents_episodes_are_not_among_the_explored(base):
    """Nor are the chosen sides of failure pairs among the experts, nor experts that the target beat among either."""
    expert, target, failure, beaten, better = (TokenizedTrajectory((n, 7, 8), (0, 1, 1)) for n in range(5))
    pairs = [
        TokenizedPair(PairKind.EXPERT_TARGET, expert, target, 0.5, 0.5, gold=True),
        TokenizedPair(PairKind.EXPERT_TARGET, better, beaten, 0.5, 0.5),
        TokenizedPair(PairKind.EXPERT_FAILURE, expert, failure, 0.5, 0.5, gold=True),
        TokenizedPair(PairKind.FAILURE_FAILURE, target, failure, 1.0, 0.0),
    ]
    assert dpo.experts_of(pairs) == {expert: None} and dpo.explored_by_target(pairs) == {target: None}


def rendered(base, side):
    """A side of the pairs as token ids."""
    renderer = Renderer(loading.load_tokenizer(base / "policy"))
    pairs = jsonl.read(base / "pairs.jsonl", PreferencePair)
    return [renderer.render(pair.prompt, getattr(pair, side), getattr(pair, f"{side}_token_ids")) for pair in pairs]


def test_trainings_with_the_same_trajectories_measure_the_same_sample(base, tmp_path, monkeypatch):
    """Whatever the order of their pairs."""
    monkeypatch.setattr(dpo, "SCORED_TRAJECTORIES", 1)
    scores = scored(tmp_path, base / "policy/policy.json", **sources(base))
    pairs = jsonl.read(paired(base), PreferencePair)
    befores = set()
    for name, order in (("forwards", pairs), ("backwards", pairs[::-1])):
        jsonl.write(tmp_path / f"{name}.jsonl", order)
        report = trained(tmp_path, base, name, pairs=tmp_path / f"{name}.jsonl", scores=scores)
        assert report.gold.trajectories == report.explored.trajectories == 1
        befores.add((report.gold.before, report.explored.before))
    assert len(befores) == 1


def test_levels_of_the_reference_are_means_over_the_action_tokens_of_the_pairs_sides(base, tmp_path):
    """With rejected sides cut short, and with another policy than the one that is trained."""
    other = base / "other/policy.json"
    report = trained(tmp_path, base, "levels", pairs=paired(base), scores=scored(tmp_path, other, **sources(base)))
    model = policy_io.load(other.parent)
    ((kind, levels),) = report.reference.items()
    assert (kind, levels.pairs) == (PairKind.EXPERT_TARGET, 3)
    for side in ("chosen", "rejected"):
        sequences = rendered(base, side)
        rows = reference_logps.score(model, [sequence.input_ids for sequence in sequences], lambda *_: None)
        masks = [torch.tensor(sequence.action_mask[1:], dtype=torch.bool) for sequence in sequences]
        actions = torch.cat([row[mask] for row, mask in zip(rows, masks, strict=True)])
        assert getattr(levels, side) == pytest.approx(float(actions.mean()), rel=1e-5)
    assert levels.chosen != pytest.approx(levels.rejected, rel=1e-3)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_first_loss_is_ln_2_in_either_type(base, tmp_path, dtype):
    """With scores computed before and with a reference model in every step; the weights are float32 in either."""
    pairs, policy = paired(base), base / "policy/policy.json"
    scores = scored(tmp_path, policy, dtype=dtype, **sources(base))
    before = trained(tmp_path, base, "before", dtype, pairs=pairs, scores=scores)
    on_the_fly = trained(tmp_path, base, "on_the_fly", dtype, pairs=pairs, reference=policy)
    for report in (before, on_the_fly):
        assert report.first_loss == pytest.approx(math.log(2), abs=1e-3)
    plain = scored(tmp_path, policy, "plain", **sources(base))
    same = torch.equal(load_file(scores)["logps"], load_file(plain)["logps"])
    assert same == (dtype != "bfloat16")
    weights = load_file(tmp_path / "before/model.safetensors")
    assert {weight.dtype for weight in weights.values()} == {torch.float32}
    start = load_file(base / "policy/model.safetensors")
    # A step of 1e-3 changes every weight by less than the spacing of bfloat16 numbers around 1, where norms are.
    moved = {name: (weight - start[name]).abs() for name, weight in weights.items()}
    assert all(0 < change.max() < 2e-3 for change in moved.values())
    assert 0 < moved["model.norm.weight"].min() < 2**-8


def test_pairs_that_begin_in_the_middle_are_scored_themselves(base, tmp_path):
    """As IPR's are: what was done before is prompt, tokenised from its text."""
    step = [
        pair.model_copy(
            update={
                "prompt": (*pair.prompt, pair.rejected[0], pair.rejected[1]),
                "chosen": pair.chosen[2:],
                "rejected": pair.rejected[2:],
                "chosen_token_ids": pair.chosen_token_ids[1:],
                "rejected_token_ids": pair.rejected_token_ids[1:],
            }
        )
        for pair in jsonl.read(paired(base, CUT.model_copy(update={"max_extra_turns": None})), PreferencePair)
    ]
    pairs, policy = tmp_path / "steps.jsonl", base / "policy/policy.json"
    jsonl.write(pairs, step)
    whole = scored(tmp_path, policy, "whole", **sources(base))
    with pytest.raises(RuntimeError, match=f"no sequence starts with the tokens of {step[0].chosen_id}"):
        trained(tmp_path, base, "mismatch", pairs=pairs, scores=whole)
    scores = scored(tmp_path, policy, pairs=pairs)
    notes = trained(tmp_path, base, "steps", pairs=pairs, scores=scores)
    assert notes.first_loss == pytest.approx(math.log(2), rel=1e-6)


def test_an_example_that_pairs_lack_is_lacking_in_what_is_scored(base, tmp_path):
    """Quirk 11."""
    shown = jsonl.read(base / "experts.jsonl", Trajectory)[0]
    jsonl.write(tmp_path / "experts.jsonl", jsonl.read(base / "experts.jsonl", Trajectory))
    jsonl.write(tmp_path / "example.json", [shown])
    example = (shown.prompt[-1], *shown.completion)
    with_example = [
        episode.model_copy(update={"prompt": (*episode.prompt[:-1], *example, episode.prompt[-1])})
        for episode in jsonl.read(base / "target.jsonl", Trajectory)
    ]
    jsonl.write(tmp_path / "target.jsonl", with_example)
    pairs = paired(tmp_path, excluded_example=example)
    inputs = sources(tmp_path) | {"policy": base / "policy/policy.json"}
    scores = scored(tmp_path, **inputs, excluded_example=tmp_path / "example.json")
    notes = trained(tmp_path, base, "trained", pairs=pairs, scores=scores)
    assert notes.first_loss == pytest.approx(math.log(2), rel=1e-6)
    with pytest.raises(RuntimeError, match="no sequence starts with the tokens of"):
        trained(tmp_path, base, "mismatch", pairs=pairs, scores=scored(tmp_path, name="with", **inputs))


def test_what_can_be_paired_is_scored_once_and_cut_to_the_context(base, tmp_path):
    """Not an episode without an action, nor a task on which everybody earned the same."""
    experts, target = (jsonl.read(path, Trajectory) for path in sources(base).values())
    tie = target[1].model_copy(update={"reward": experts[1].reward})
    empty = target[2].model_copy(update={"turns": ()})
    jsonl.write(tmp_path / "target.jsonl", [target[0], target[0], tie, empty])
    sections = corridor.suite()
    renderer = Renderer(loading.load_tokenizer(base / "policy"))
    context = sections.models["tiny"].context = len(renderer.prompt_ids(experts[0].prompt)) + 8
    inputs = {"policy": base / "policy/policy.json", **sources(base), "target": tmp_path / "target.jsonl"}
    notes = stage.run(corridor.job("reference", tmp_path / "job", sections, **inputs), tmp_path)
    assert notes == {"rows": 2, "tokens": 2 * context}
    scores = reference_logps.read(tmp_path / "scores.safetensors")
    assert all(
        scores.lookup(row.input_ids[:context]) is not None for row in tokenize([experts[0], target[0]], renderer)
    )
