"""vLLM as the sampler: its digest, the error if it is missing, and its cache."""

import gc
import importlib
import sys
import weakref

import pytest
import torch
from rollout.keydoor import KeyDoor, tasks
from rollout.playing import content, play
from templates.models import llama, tokenizer

from coevolve.chat.prompts import prompt_messages
from coevolve.config.loading import load_suite
from coevolve.config.restriction import as_dict
from coevolve.errors import UserError
from coevolve.pipeline.registry import STAGES
from coevolve.policies.base import Conversation, EngineSettings
from coevolve.policies.hf import TransformersPolicy
from coevolve.policies.settings import VllmDevices
from coevolve.policies.vllm import VllmPolicy
from coevolve.records.episodes import Sampling, Turn
from coevolve.storage import policy_dir

ROOM = VllmDevices(gpu_memory_utilization=0.1, max_num_seqs=16)
SAMPLED = Sampling(temperature=1.0, max_new_tokens=8)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A policy directory whose heads vLLM's CPU kernels take."""
    path = tmp_path_factory.mktemp("policy")
    llama(num_attention_heads=2).save_pretrained(path)
    tokenizer("tiny").save_pretrained(path)
    policy_dir.seal(path, "tiny", "", "")
    return path


@pytest.fixture
def here(monkeypatch):
    """Skips where vLLM cannot run."""
    try:
        platform = importlib.import_module("vllm.platforms").current_platform
    except ImportError as error:
        pytest.skip(f"vLLM cannot be imported here: {error}")
    if not platform.is_cpu() and not torch.cuda.is_available():
        pytest.skip("this vLLM is made for GPUs, and there is none")
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "1")  # GiB


def load(path, context=384):
    return VllmPolicy.load(path, EngineSettings(context, "end", workers=8, usage=path, devices=ROOM))


def conversation(number, turns=()):
    prompt = prompt_messages("You see a red door, a stove and a key. " * 12 + f"Find key {number}.")
    return Conversation(f"task{number}#0", number, prompt, turns)


def test_where_it_is_missing_one_sentence_names_the_image_and_the_key(saved, monkeypatch):
    monkeypatch.setitem(sys.modules, "vllm", None)
    with pytest.raises(UserError) as refused:
        load(saved, context=128)
    sentence = str(refused.value)
    assert "image `sample`" in sentence and "sampler.engine=transformers" in sentence and "\n" not in sentence


def test_a_directory_that_was_changed_is_refused_before_anything_is_loaded(saved, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "vllm", None)
    for file in saved.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(UserError, match="rerun the stage"):
        load(tmp_path, context=128)


def read(root, *overrides):
    """The section as digests see it."""
    return as_dict(load_suite(root / "configs/suites/smoke.yaml", overrides))["sampler"]


def test_the_engine_counts_in_the_digests_of_what_plays(root):
    assert read(root) == {"engine": "transformers"}
    assert read(root, "sampler.engine=vllm") != read(root)
    assert load_suite(root / "configs/suites/paper.yaml").sampler.engine == "vllm"
    plays = {"shard", "rollout", "steps", "explore_tasks", "evaluate", "ppo", "grpo", "grpo_round"}
    assert {name for name, stage in STAGES.items() if "sampler" in stage.reads} == plays


def test_turns_and_episodes_share_what_was_read(here, saved, monkeypatch):
    policy = load(saved)
    answers, step = [], policy._engine.step

    def watched():
        answers.extend(outputs := step())
        return outputs

    monkeypatch.setattr(policy._engine, "step", watched)
    first = policy.complete([conversation(0)], SAMPLED)[0]
    turn = Turn(text=first.text, action=None, observation="Nothing.", token_ids=first.token_ids)
    policy.complete([conversation(0, (turn,)), conversation(1)], SAMPLED)
    opening, later, other = (
        answer.num_cached_tokens for answer in sorted(answers, key=lambda answer: answer.request_id)
    )
    assert opening == 0 < min(later, other)  # whole blocks: of 128 tokens on a CPU


def test_hundreds_in_one_call_wait_for_each_other(here, saved):
    policy = load(saved)
    many = [conversation(number) for number in range(300)]
    together = policy.complete(many, SAMPLED)
    assert len({completion.token_ids for completion in together}) > 250
    assert [policy.complete([many[number]], SAMPLED)[0] for number in (0, 150, 299)] == together[:300:150] + together[
        -1:
    ]


def test_a_rollout_has_the_built_in_engines_episodes_and_its_requests_finish_on_their_own(here, saved, tmp_path):
    """Greedily in float32, also if only a part of the conversations is held."""
    policy, flights = load(saved), []
    holding_few = VllmPolicy(policy._llm, tokenizer("tiny"), policy.ref, context=384, long_prompt="end")
    holding_few._cache_tokens = 160
    step = policy._engine.step

    def watched():
        flights.append((policy._engine.get_num_unfinished_requests(), len(ended := step())))
        return ended

    policy._engine.step = watched
    built_in = TransformersPolicy.load(saved, slots=8, context=384, long_prompt="end", device="cpu")
    games, sampling = tasks(24), Sampling(temperature=0.0, max_new_tokens=24)
    episodes, most = [], []
    for number, player in enumerate((built_in, policy, holding_few)):
        flights.clear()
        envs = [KeyDoor() for _ in range(8)]
        episodes.append(content(play(tmp_path / f"{number}.jsonl", envs, games, player, sampling=sampling)))
        most.append(max((running for running, _ in flights), default=0))
        assert player is built_in or any(0 < ended < running for running, ended in flights)
    assert episodes[0] == episodes[1] == episodes[2]
    assert 1 < most[2] < most[1], most


def test_an_engine_that_is_let_go_makes_room_for_the_next(here, saved):
    first = load(saved)
    completions, engine = first.complete([conversation(0)], SAMPLED), weakref.ref(first._llm)
    del first
    second = load(saved)
    assert engine() is None
    assert second.complete([conversation(0)], SAMPLED) == completions
    del second
    gc.collect()


def test_what_vllm_refuses_is_one_sentence(here, saved):
    with pytest.raises(UserError, match="a key of the machine's `vllm`") as refused:
        load(saved, context=4096)
    assert "\n" not in str(refused.value)
