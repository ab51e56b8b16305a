"""Slots of the KV cache: how many fit into memory."""

import logging
import re

import pytest
import torch
from policies.talk import GREEDY, MODEL, opening, play, policy
from transformers import LlamaConfig, LlamaForCausalLM

from coevolve.errors import UserError
from coevolve.policies import hf
from coevolve.policies.hf import GPU_SHARE, affordable_slots, free_bytes
from coevolve.policies.kv_cache import cache_bytes


@pytest.mark.parametrize("slots", [1, 2, 3, 8, 63])
def test_as_many_slots_as_fit_and_never_none(slots):
    budget = cache_bytes(MODEL, slots=slots, context=256)
    assert affordable_slots(MODEL, 64, 256, budget) == slots
    assert affordable_slots(MODEL, 64, 256, budget - 1) == max(1, slots - 1)
    assert affordable_slots(MODEL, slots, 256, 10 * budget) == slots
    assert affordable_slots(MODEL, 64, 256, 0) == 1


def test_a_model_of_7b_beside_its_weights_on_80_gb():
    """Without grouped heads a conversation of 4,096 tokens takes 2.1 GB."""
    with torch.device("meta"):
        shape = {"hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "intermediate_size": 11008}
        model = LlamaForCausalLM(LlamaConfig(**shape, dtype="bfloat16")).to(torch.bfloat16)
    budget = int(GPU_SHARE * (80e9 - sum(weight.nbytes for weight in model.parameters())))
    slots = affordable_slots(model, 64, 4096, budget)
    assert slots == 23
    assert 47e9 < cache_bytes(model, slots=slots, context=4096) <= budget


def test_a_policy_takes_as_many_slots_as_there_is_memory_for(monkeypatch, caplog):
    assert policy(slots=8).slots == 8
    monkeypatch.setattr(hf, "CPU_SHARE", 8e6 / free_bytes(torch.device("cpu")))
    with caplog.at_level(logging.INFO):
        tight = policy(slots=64)
    assert 1 < tight.slots < 20
    assert f"KV cache for {tight.slots} of 64 conversations" in caplog.text
    conversations = [opening(number) for number in range(9)]
    assert play(tight, conversations, GREEDY) == play(policy(slots=64), conversations, GREEDY)
    monkeypatch.setattr(hf, "CPU_SHARE", 0.0)
    assert policy(slots=64).slots == 1


def test_a_context_that_does_not_fit_is_a_sentence_with_one_that_does():
    free = free_bytes(torch.device("cpu"))
    with pytest.raises(
        UserError, match=r"of 1099511627776 tokens takes .* GB are free; set the model's `context`"
    ) as no:
        policy(slots=8, context=2**40)
    largest = int(re.search(r"to at most (\d+)\.$", str(no.value))[1])
    assert 0.2 * free < cache_bytes(MODEL, slots=1, context=largest) < 0.8 * free


def test_what_control_groups_leave_counts(tmp_path):
    job = tmp_path / "sys" / "slurm" / "job"
    job.mkdir(parents=True)
    cgroup_file = tmp_path / "cgroup"
    cgroup_file.write_text("0::/slurm/job\n")
    for folder, limit, current in ((job, "max", 5), (job.parent, "1000", 400), (tmp_path / "sys", "9000", 1)):
        (folder / "memory.max").write_text(f"{limit}\n")
        (folder / "memory.current").write_text(f"{current}\n")
    assert list(hf._cgroup_free_bytes(cgroup_file, tmp_path / "sys")) == [600, 8999]
    (job.parent / "memory.stat").write_text("anon 90\nfile 250\ninactive_file 150\nactive_file 50\nslab 7\n")
    assert list(hf._cgroup_free_bytes(cgroup_file, tmp_path / "sys")) == [800, 8999]  # kept files can be given up
    assert list(hf._cgroup_free_bytes(tmp_path / "none", tmp_path / "sys")) == []
