import hashlib
import subprocess
import sys

import pytest
import torch

from coevolve.errors import UserError
from coevolve.policies import loading
from coevolve.storage import files
from coevolve.train import tiny_model
from coevolve.train.settings import TinyArchitecture

TEXTS = [
    f"{verb} the {noun} in the {place}, naïvely"
    for verb in ("open", "take", "focus on")
    for noun in ("door", "red apple", "jar")
    for place in ("kitchen", "hall")
]
ARCHITECTURE = TinyArchitecture(vocab_size=300, hidden_size=16, layers=1, heads=2, intermediate_size=32)


def build(out, seed=1, texts=TEXTS, architecture=ARCHITECTURE):
    return tiny_model.build(architecture, context=64, texts=texts, seed=seed, out=out, name="tiny")


def test_equal_seeds_give_equal_bytes_whatever_the_global_generator_draws(tmp_path):
    torch.manual_seed(5)
    before = torch.random.get_rng_state()
    first = build(tmp_path / "a")
    assert torch.equal(before, torch.random.get_rng_state()), "which is left alone"
    torch.rand(1)
    assert first == build(tmp_path / "b") != build(tmp_path / "c", seed=2)
    assert files.sha256(tmp_path / "a") == files.sha256(tmp_path / "b")
    assert (tmp_path / "a" / "tokenizer.json").read_bytes() == (tmp_path / "c" / "tokenizer.json").read_bytes()
    assert {*loading.load_tokenizer(tmp_path / "a").all_special_tokens} == {*tiny_model.SPECIAL_TOKENS}


@pytest.mark.slow
def test_the_vocabulary_is_the_same_in_another_process(tmp_path):
    build(tmp_path)
    code = (
        "import sys; from coevolve.train import tiny_model\n"
        "tokenizer = tiny_model.train_tokenizer(sys.argv[1:], 300)\n"
        "tokenizer.save_pretrained(sys.stdin.read())"
    )
    command = [sys.executable, "-c", code, *TEXTS]
    subprocess.run(command, input=str(tmp_path / "again"), text=True, check=True, capture_output=True)
    ours, theirs = (hashlib.sha256((path / "tokenizer.json").read_bytes()) for path in (tmp_path, tmp_path / "again"))
    assert ours.hexdigest() == theirs.hexdigest()


def test_the_policy_speaks_its_own_template(tmp_path):
    build(tmp_path)
    tokenizer, model = loading.load_tokenizer(tmp_path), loading.load_model(tmp_path)
    assert len(tokenizer) == model.config.vocab_size == 300
    assert model.config.max_position_embeddings == 64
    assert (tokenizer.pad_token, tokenizer.eos_token) == ("<|pad|>", "<|end|>")
    assert model.generation_config.eos_token_id == tokenizer.eos_token_id
    chat = [{"role": role, "content": f" {role} text "} for role in ("system", "user", "assistant")]
    text = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    assert text == "<|system|>system text<|end|><|user|>user text<|end|><|assistant|>assistant text<|end|><|assistant|>"
    assert tokenizer(text)["input_ids"].count(tokenizer.eos_token_id) == 3


@pytest.mark.parametrize("text", ["naïve 火  two  blanks\n\ttab", "<|end|> said the user"])
def test_any_text_survives(tmp_path, text):
    build(tmp_path)
    tokenizer = loading.load_tokenizer(tmp_path)
    ids = tokenizer(text, add_special_tokens=False, split_special_tokens=True)["input_ids"]
    assert tokenizer.decode(ids) == text
    assert tokenizer.eos_token_id not in ids


def test_a_word_of_the_config_becomes_one_token_and_all_else_stays(tmp_path):
    texts = [f"{text} [SEP] Back to Search [SEP] (0.5)" for text in TEXTS]
    words = [" [SEP]", " [SEP] Back to Search [SEP]"]
    plain, joined = (tiny_model.train_tokenizer(texts, 320, given) for given in ((), words))
    tokens = [tokenizer.convert_ids_to_tokens(tokenizer(texts[0])["input_ids"]) for tokenizer in (plain, joined)]
    assert "ĠBack" in tokens[0]
    assert "Ġ[SEP]ĠBackĠtoĠSearchĠ[SEP]" in tokens[1]
    assert joined.decode(joined(texts[0])["input_ids"]) == texts[0]


@pytest.mark.parametrize("text", ["I'm 3 o'clock's, they'll;  two\n\n blanks \t", "naïve 火 (12ab) _x_", "   lead  "])
def test_without_words_of_its_own_a_tokenizer_divides_texts_as_byte_level_bpe_does(text):
    absent = tiny_model.train_tokenizer(TEXTS, 300, ["no such text"]).backend_tokenizer.pre_tokenizer
    byte_level = tiny_model.train_tokenizer(TEXTS, 300).backend_tokenizer.pre_tokenizer
    assert absent.pre_tokenize_str(text) == byte_level.pre_tokenize_str(text)


@pytest.mark.parametrize(
    ("tokens", "sentence"), [(2000, r"2000, but the text gives only \d+ tokens"), (100, "100; .* are 261")]
)
def test_more_tokens_than_the_text_gives_or_fewer_than_bytes(tmp_path, tokens, sentence):
    with pytest.raises(UserError, match=f"`tiny.vocab_size` is {sentence}"):
        build(tmp_path, architecture=ARCHITECTURE.model_copy(update={"vocab_size": tokens}))
