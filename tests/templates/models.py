"""Tokenizers, one for each chat template beside this file: of SmolLM2 the real one, the others built from nothing."""

import json
import lzma
from functools import cache
from pathlib import Path

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

NAMES = ("tiny", "llama2", "qwen3", "smollm2")
SPECIALS = {
    "tiny": ("<|end|>", "<|system|>", "<|user|>", "<|assistant|>"),
    "llama2": ("</s>", "<s>"),
    "qwen3": ("<|im_end|>", "<|im_start|>", "<|endoftext|>"),
    "smollm2": ("<|im_end|>", "<|im_start|>", "<|endoftext|>"),
}
#: Added tokens that the tokenizer does not call special, as Qwen3's has them.
CONTROLS = ("<tool_call>", "</tool_call>", "<think>", "</think>")
TEXT = (
    "Thought: the door is closed.\nAction: open door to the kitchen",
    "This room is called the kitchen. In it you see: a stove, a cup of water, a key.\n\nYou also see a red door.",
    "Your task is to find the key and open the red door. You have 10 steps. Action: take key",
)


@cache
def tokenizer(name: str) -> PreTrainedTokenizerFast:
    """A trained tokenizer: SentencePiece-like for llama2, SmolLM2's own, byte-level for the others."""
    if name == "smollm2":
        return _smollm2()
    backend = _sentencepiece_like() if name == "llama2" else _byte_level()
    backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIALS[name]])
    if name == "qwen3":
        backend.add_tokens([AddedToken(token, special=False, normalized=False) for token in CONTROLS])
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=backend, name_or_path=name, eos_token=SPECIALS[name][0], bos_token=SPECIALS[name][1]
    )
    wrapped.chat_template = (Path(__file__).parent / f"{name}.jinja").read_text()
    return wrapped


def llama(seed: int = 0, vocab_size: int = 400, **sizes: int) -> LlamaForCausalLM:
    """A random Llama of about 100 k parameters."""
    torch.manual_seed(seed)
    shape = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, **sizes}
    config = LlamaConfig(vocab_size=vocab_size, max_position_embeddings=512, initializer_range=0.2, **shape)
    return LlamaForCausalLM(config).eval()


def qwen3(seed: int = 0, vocab_size: int = 400, **sizes: int) -> Qwen3ForCausalLM:
    """A random Qwen3: grouped heads, norms on queries and keys, tied embeddings."""
    torch.manual_seed(seed)
    shape = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "max_position_embeddings": 512}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, **sizes}
    config = Qwen3Config(vocab_size=vocab_size, initializer_range=0.2, tie_word_embeddings=True, **{**shape, **heads})
    return Qwen3ForCausalLM(config).eval()


def _smollm2() -> PreTrainedTokenizerFast:
    folder = Path(__file__).parent
    text = lzma.decompress((folder / "smollm2/tokenizer.json.xz").read_bytes()).decode()
    end, start, none = SPECIALS["smollm2"]
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(text),
        name_or_path="smollm2",
        eos_token=end,
        bos_token=start,
        unk_token=none,
        pad_token=end,
    )
    wrapped.chat_template = (folder / "smollm2.jinja").read_text()
    return wrapped


def _byte_level() -> Tokenizer:
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    backend.train_from_iterator(
        TEXT, trainers.BpeTrainer(vocab_size=380, initial_alphabet=alphabet, show_progress=False)
    )
    return backend


def _sentencepiece_like() -> Tokenizer:
    """Llama 2's pipeline: a blank before each piece of text, blanks as U+2581, unknown characters as bytes."""
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    single_bytes = ["<unk>", *(f"<0x{value:02X}>" for value in range(256))]
    trainer = trainers.BpeTrainer(vocab_size=380, special_tokens=single_bytes, show_progress=False)
    trained.train_from_iterator([text.replace("\n", " ") for text in TEXT], trainer)
    learned = json.loads(trained.to_str())["model"]
    merges = [tuple(pair) for pair in learned["merges"]]
    backend = Tokenizer(
        models.BPE(vocab=learned["vocab"], merges=merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    )
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    backend.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return backend
