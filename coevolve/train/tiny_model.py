"""Tiny policies: a byte-level BPE trained on given texts, and a small Llama with random weights."""

import re
from collections.abc import Sequence
from pathlib import Path

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from transformers.utils import logging as transformers_logging

from coevolve import seeds
from coevolve.errors import UserError
from coevolve.records.episodes import PolicyRef
from coevolve.storage import policy_dir
from coevolve.train.settings import TinyArchitecture

PAD, END = "<|pad|>", "<|end|>"
SPECIAL_TOKENS = [PAD, END, "<|system|>", "<|user|>", "<|assistant|>"]
#: What byte-level BPE takes for a word: letters, digits or other signs after at most one blank, or white space.
BYTE_LEVEL_WORD = r"'(?:[stmd]|re|ve|ll)| ?[\p{L}]+| ?[\p{N}]+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"

#: Each message is the token of its role, its text and the end token.
CHAT_TEMPLATE = (
    "{%- for message in messages -%}"
    "{{ '<|' + message['role'] + '|>' + message['content'] | trim + '<|end|>' }}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{ '<|assistant|>' }}{%- endif -%}"
)


def build(
    architecture: TinyArchitecture, *, context: int, texts: Sequence[str], seed: int, out: Path, name: str
) -> PolicyRef:
    """Write a randomly initialised policy with a context of `context` tokens as the policy directory `out`.

    The tokenizer depends on `texts` alone, the weights on `seed` alone. Raises `UserError` if the texts yield fewer
    tokens than `architecture.vocab_size`.
    """
    tokenizer = train_tokenizer(texts, architecture.vocab_size, architecture.words)
    transformers_logging.disable_progress_bar()
    random_llama(architecture, context, tokenizer, seed).save_pretrained(out)
    tokenizer.save_pretrained(out)
    return policy_dir.seal(out, name=name, base="", revision="")


def train_tokenizer(texts: Sequence[str], vocab_size: int, words: Sequence[str] = ()) -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer with exactly `vocab_size` tokens, special tokens first, then the 256 bytes.

    Tokens do not span several words; each of `words` counts as one.
    """
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    least = len(SPECIAL_TOKENS) + len(alphabet)
    if vocab_size < least:
        raise UserError(f"`tiny.vocab_size` is {vocab_size}; bytes and special tokens alone are {least}: raise it.")
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = _pre_tokenizer(words)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size, special_tokens=SPECIAL_TOKENS, initial_alphabet=sorted(alphabet), show_progress=False
    )
    bpe.train_from_iterator(texts, trainer)
    if bpe.get_vocab_size() < vocab_size:
        raise UserError(
            f"`tiny.vocab_size` is {vocab_size}, but the text gives only {bpe.get_vocab_size()} tokens: lower it."
        )
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        pad_token=PAD,
        eos_token=END,
        additional_special_tokens=SPECIAL_TOKENS[2:],
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
    )


def _pre_tokenizer(words: Sequence[str]) -> pre_tokenizers.PreTokenizer:
    """Divides a text into words, and those into bytes."""
    if not words:
        return pre_tokenizers.ByteLevel(add_prefix_space=False)
    longest_first = map(re.escape, sorted(words, key=len, reverse=True))
    word = Regex("|".join([*longest_first, BYTE_LEVEL_WORD]))
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return pre_tokenizers.Sequence([pre_tokenizers.Split(word, behavior="isolated"), to_bytes])


def random_llama(
    architecture: TinyArchitecture, context: int, tokenizer: PreTrainedTokenizerFast, seed: int
) -> LlamaForCausalLM:
    """A Llama with tied embeddings and random weights in float32; equal seeds give equal weights."""
    config = LlamaConfig(
        vocab_size=architecture.vocab_size,
        hidden_size=architecture.hidden_size,
        intermediate_size=architecture.intermediate_size,
        num_hidden_layers=architecture.layers,
        num_attention_heads=architecture.heads,
        max_position_embeddings=context,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        dtype="float32",
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seeds.derive(seed, "weights"))
        return LlamaForCausalLM(config)
