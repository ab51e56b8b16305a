"""What checkpoints of the hub bring with them: shards, narrow files, tied and padded embeddings, no pad token."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from templates.models import llama, qwen3, tokenizer
from train.settings import ADAPTERS, dpo_config, sft_config

from coevolve.chat.chat_template import Renderer
from coevolve.errors import UserError
from coevolve.policies import loading
from coevolve.policies.base import Conversation
from coevolve.policies.hf import TransformersPolicy
from coevolve.records.episodes import Message, Sampling
from coevolve.records.pairs import PairKind
from coevolve.storage import files, policy_dir
from coevolve.train import dpo, policy_io, sft
from coevolve.train import trainer as training
from coevolve.train.dataset import TokenizedPair
from coevolve.train.policy_io import TrainingRun

SFT = sft_config(epochs=4, learning_rate=1e-3, save_steps=3)
DPO = dpo_config(epochs=4, precompute_reference=False)
FAMILIES = {"llama2": llama, "qwen3": qwen3}
#: What some published ones say, and what transformers refuses to write where it was changed.
GENERATION = {"do_sample": False, "temperature": 0.9, "top_p": 0.6, "pad_token_id": 0}
WORDS = ("Action: open door", "Action: take key", "Thought: look.\nAction: go to the kitchen")


def checkpoint(folder, family, dtype=torch.bfloat16, **save):
    """A checkpoint as one of the hub: bfloat16 in several files, more embeddings than tokens, a generation config."""
    model = FAMILIES[family]().to(dtype)
    assert len(tokenizer(family)) < model.config.vocab_size
    model.save_pretrained(folder, **{"max_shard_size": "60KB", **save})
    tokenizer(family).save_pretrained(folder)
    (folder / "generation_config.json").write_text(json.dumps(GENERATION))
    policy_dir.seal(folder, name=family, base=f"hub/{family}", revision="")
    return folder


@pytest.fixture(scope="module", params=FAMILIES)
def start(request, tmp_path_factory):
    torch.set_num_threads(1)
    return checkpoint(tmp_path_factory.mktemp(request.param) / request.param, request.param)


def talk(path, *answers):
    renderer = Renderer(loading.load_tokenizer(path))
    prompt = [Message(role="user", content="Find the key.")]
    said = [Message(role="assistant", content=answers[0])]
    for answer in answers[1:]:
        said += [Message(role="user", content="Done."), Message(role="assistant", content=answer)]
    return renderer.render(prompt, said)


def rows(path):
    return [talk(path, first, second) for first in WORDS for second in WORDS]


def run_sft(start, folder, lora=None):
    sft.run_sft(rows(start), SFT, TrainingRun(start, folder / "out", folder / "work", 1, lora))
    return folder / "out"


def answers(path, temperature=0.0, texts=("Find the key.",) * 4, tokens=16):
    policy = TransformersPolicy.load(path, slots=1, context=256, long_prompt="end", device="cpu")
    prompts = [(Message(role="user", content=text),) for text in texts]
    asked = [Conversation(key=f"a#{seed}", seed=seed, prompt=prompt, turns=()) for seed, prompt in enumerate(prompts)]
    return policy.complete(asked, Sampling(temperature=temperature, max_new_tokens=tokens))


def tensors(path):
    return {name: tensor for file in path.glob("*.safetensors") for name, tensor in load_file(file).items()}


def test_a_checkpoint_in_several_files_is_named_trained_and_asked(start, tmp_path):
    """What it brings beside its weights stays, such as a tokenizer without a pad token."""
    assert len(list(start.glob("model-*.safetensors"))) > 2
    assert (start / "model.safetensors.index.json").exists()
    assert tokenizer(start.name).pad_token is None
    before, out = tensors(start), run_sft(start, tmp_path)
    assert policy_dir.describe(out).name == f"{start.name}+sft"
    after = tensors(out)
    assert after.keys() == before.keys()
    assert {tensor.dtype for tensor in before.values()} == {torch.bfloat16}
    assert {tensor.dtype for tensor in after.values()} == {torch.float32}
    assert all((after[name] != before[name].float()).any() for name in before)
    assert answers(out) != answers(start)
    for file in start.glob("tokenizer*"):
        assert (out / file.name).read_bytes() == file.read_bytes()
    assert loading.load_tokenizer(out).pad_token is None
    assert json.loads((out / "generation_config.json").read_text()) == GENERATION


def test_every_file_of_the_weights_counts_in_the_name(start, tmp_path):
    copy = shutil.copytree(start, tmp_path / "copy")
    changed = sorted(copy.glob("model-*.safetensors"))[-1]
    content = bytearray(changed.read_bytes())
    content[-1] ^= 1
    files.write_bytes(changed, bytes(content))
    with pytest.raises(UserError, match="its files hash to"):
        policy_dir.describe(copy)


@pytest.mark.parametrize("lora", [None, ADAPTERS], ids=["full", "lora"])
@pytest.mark.parametrize("twice", [False, True], ids=["once", "twice"])
def test_tied_embeddings_stay_tied(tmp_path, lora, twice):
    """Also those of Qwen3-0.6B and 1.7B, whose files hold the head a second time."""
    start = checkpoint(tmp_path / "qwen3", "qwen3", max_shard_size="5GB")
    if twice:
        held = tensors(start)
        save_file({**held, "lm_head.weight": held["model.embed_tokens.weight"].clone()}, start / "model.safetensors")
        policy_dir.seal(start, name="qwen3", base="", revision="")
    out = run_sft(start, tmp_path, lora)
    assert "lm_head.weight" not in tensors(out)
    model, before = policy_io.load(out), policy_io.load(start)
    assert model.lm_head.weight is model.model.embed_tokens.weight
    moved = not torch.equal(model.lm_head.weight, before.lm_head.weight)
    assert moved == (lora is None)


@pytest.fixture(scope="module")
def smollm2(tmp_path_factory):
    """A small policy of the pretrained model's architecture, with its tokenizer: tied embeddings, grouped heads."""
    folder = tmp_path_factory.mktemp("smollm2") / "smollm2"
    own = tokenizer("smollm2")
    llama(vocab_size=len(own), num_key_value_heads=2, tie_word_embeddings=True).save_pretrained(folder)
    own.save_pretrained(folder)
    policy_dir.seal(folder, name="smollm2", base="", revision="")
    return folder


def adapted(start, stage, work):
    """A trainer with adapters on a policy of `smollm2`."""
    run = TrainingRun(start, work / "out", work, 1, ADAPTERS)
    common = {"model": policy_io.load(start), "run": run}
    examples, order = rows(start), [*range(8)] * 2
    if stage == "sft":
        return sft.SupervisedTrainer(examples, order, config=SFT.model_copy(update={"learning_rate": 2e-2}), **common)
    pairs = [
        TokenizedPair(PairKind.EXPERT_TARGET, chosen, rejected, 1.0, 1.0)
        for chosen, rejected in zip(examples, [*examples[1:], examples[0]], strict=True)
    ]
    return dpo.PreferenceTrainer(pairs, order, config=DPO, reference=None, iteration=1, **common)


@pytest.mark.parametrize("stage", ["sft", "dpo"])
def test_merged_adapters_sample_as_they_were_trained(stage, smollm2, tmp_path):
    """Greedy decoding in float32: transformers with the adapters beside the weights, the kit with the merged policy."""
    trained = adapted(smollm2, stage, tmp_path / "work")
    training.train(trained, tmp_path / "work")
    run = TrainingRun(smollm2, tmp_path / "merged", tmp_path / "work", 1, ADAPTERS)
    policy_io.write(trained, run, policy_dir.describe(smollm2), stage)
    renderer, unmerged = Renderer(tokenizer("smollm2")), trained.model.eval()
    assert unmerged.peft_config and (tmp_path / "merged/adapter_config.json").exists()
    texts = ("Find the key.", "Open the red door.", "Look.")
    ids = [renderer.prompt_ids([Message(role="user", content=text)]) for text in texts]
    limits = {"do_sample": False, "max_new_tokens": 12, "eos_token_id": renderer.end_of_turn, "pad_token_id": 0}
    with torch.no_grad():
        expected = [tuple(unmerged.generate(torch.tensor([row]), **limits)[0, len(row) :].tolist()) for row in ids]
    merged, before = (answers(path, texts=texts, tokens=12) for path in (tmp_path / "merged", smollm2))
    assert [turn.token_ids for turn in merged] == expected
    assert merged != before and len(set(expected)) > 1


def test_what_a_generation_config_says_does_not_decide_what_is_sampled(start, tmp_path):
    other = shutil.copytree(start, tmp_path / "other")
    said = {**GENERATION, "eos_token_id": 5, "max_length": 3, "repetition_penalty": 3.0}
    (other / "generation_config.json").write_text(json.dumps(said))
    policy_dir.seal(other, name="other", base="", revision="")
    assert answers(other) == answers(start)


def test_an_id_beyond_the_tokenizer_is_kept_and_says_nothing(start):
    """Qwen3 has 151,936 rows of embeddings and 151,669 tokens."""
    known, said = len(tokenizer(start.name)), answers(start, temperature=1e4)
    assert any(token >= known for answer in said for token in answer.token_ids)
    for answer in said:
        within = [token for token in answer.token_ids if token < known]
        assert answer.text == Renderer(tokenizer(start.name)).decode(within)
