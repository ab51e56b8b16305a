"""Real policies, as small as they come."""

from pathlib import Path

import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM
from transformers.models.llama.modeling_llama import LlamaRMSNorm
from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm

from coevolve.policies import loading
from coevolve.storage import policy_dir
from coevolve.train import tiny_model
from coevolve.train.settings import TinyArchitecture

TEXTS = ["look around", "open the door to the kitchen", "pick up the red apple", "focus on the blue box"] * 3
CONTEXT = 48


@pytest.fixture(scope="session", autouse=True)
def one_thread():
    """Tiny matrices gain nothing from a second thread."""
    torch.set_num_threads(1)


@pytest.fixture
def exact_norms(monkeypatch):
    """Norms in the model's own precision: transformers' compute in float32 inside, also those of a float64 model."""

    def forward(self, states):
        return self.weight * states * torch.rsqrt(states.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)

    for norm in (LlamaRMSNorm, Qwen3RMSNorm):
        monkeypatch.setattr(norm, "forward", forward)


@pytest.fixture(scope="session")
def llama(tmp_path_factory) -> Path:
    """A tiny Llama, made by the kit."""
    out = tmp_path_factory.mktemp("llama")
    architecture = TinyArchitecture(vocab_size=300, hidden_size=16, layers=2, heads=2, intermediate_size=32)
    tiny_model.build(architecture, context=CONTEXT, texts=TEXTS, seed=1, out=out, name="tiny")
    return out


@pytest.fixture(scope="session")
def other(tmp_path_factory) -> Path:
    """The same with other weights."""
    out = tmp_path_factory.mktemp("other")
    architecture = TinyArchitecture(vocab_size=300, hidden_size=16, layers=2, heads=2, intermediate_size=32)
    tiny_model.build(architecture, context=CONTEXT, texts=TEXTS, seed=2, out=out, name="tiny")
    return out


@pytest.fixture(scope="session")
def qwen(llama, tmp_path_factory) -> Path:
    """A tiny Qwen3 with untied embeddings and grouped heads."""
    out = tmp_path_factory.mktemp("qwen")
    config = Qwen3Config(
        vocab_size=300,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=False,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        Qwen3ForCausalLM(config).save_pretrained(out)
    loading.load_tokenizer(llama).save_pretrained(out)
    policy_dir.seal(out, name="qwen", base="", revision="")
    return out
