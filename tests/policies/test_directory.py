"""Policies on disk."""

import shutil

import pytest
import torch
from templates.models import llama, tokenizer

from coevolve.chat.prompts import prompt_messages
from coevolve.errors import UserError
from coevolve.policies import loading
from coevolve.policies.base import Conversation
from coevolve.policies.hf import TransformersPolicy
from coevolve.records.episodes import Sampling
from coevolve.storage import policy_dir


@pytest.fixture
def saved(tmp_path):
    path = tmp_path / "policy"
    llama().save_pretrained(path)
    tokenizer("tiny").save_pretrained(path)
    return path


def test_a_sealed_policy_is_described_and_loaded(saved):
    ref = policy_dir.seal(saved, name="tiny", base="none", revision="1")
    assert policy_dir.describe(saved) == ref
    assert torch.equal(loading.load_model(saved).lm_head.weight, llama().lm_head.weight)
    assert loading.load_tokenizer(saved).chat_template == tokenizer("tiny").chat_template
    loaded = TransformersPolicy.load(saved, slots=2, context=128, long_prompt="end", device="cpu")
    built = TransformersPolicy(llama(), tokenizer("tiny"), ref, slots=2, context=128, long_prompt="end")
    conversation = Conversation("a#0", 1, prompt_messages("Find the key."), ())
    sampling = Sampling(temperature=1.0, max_new_tokens=8)
    assert loaded.ref == ref
    assert loaded.complete([conversation], sampling) == built.complete([conversation], sampling)


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "tokenizer.json", "chat_template.jinja"])
def test_what_the_policy_says_is_hashed_and_nothing_else(saved, name):
    ref = policy_dir.seal(saved, name="tiny", base="", revision="")
    for other in ("provenance.json", "optimizer.pt"):
        (saved / other).write_text("{}")
    copy = shutil.copytree(saved, saved.parent / "copy")
    assert policy_dir.describe(copy) == ref
    with (copy / name).open("ab") as file:
        file.write(b" ")
    with pytest.raises(UserError, match=r"policy\.json has"):
        policy_dir.describe(copy)
    assert policy_dir.seal(saved, name="other", base="", revision="").sha256 == ref.sha256
    assert policy_dir.seal(copy, name="tiny", base="", revision="").sha256 != ref.sha256


def test_missing_parts_are_named(saved):
    with pytest.raises(UserError, match=r"policy\.json: missing or unreadable"):
        policy_dir.describe(saved)
    (saved / "model.safetensors").unlink()
    with pytest.raises(UserError, match="policy directory without weights; put"):
        policy_dir.describe(saved)
