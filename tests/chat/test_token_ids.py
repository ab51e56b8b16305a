"""Seven tokenizers under seven chat templates: ids of a conversation are those of its text, or it is refused."""

import itertools
import json
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from templates.models import TEXT
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from coevolve.chat.chat_template import Renderer
from coevolve.errors import UserError
from coevolve.records.episodes import Message

LLAMA_3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SPLITS = {
    "bytes": pre_tokenizers.ByteLevel(add_prefix_space=False),
    "bytes, blank in front": pre_tokenizers.ByteLevel(add_prefix_space=True),
    "bytes, Llama 3": pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(LLAMA_3), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    ),
    "pieces, always": pre_tokenizers.Metaspace(prepend_scheme="always"),
    "pieces, first": pre_tokenizers.Metaspace(prepend_scheme="first"),
    "pieces, never": pre_tokenizers.Metaspace(prepend_scheme="never"),
    "pieces, normalised": None,
}
#: Three templates take no system message.
ALONE = "{%- if messages[0]['role'] == 'system' -%}{{ raise_exception('no system message') }}{%- endif -%}"
LOOP = "{%%- for m in messages -%%}{{%s}}{%%- endfor -%%}"
USER = "if m['role'] == 'user' else"
TEMPLATES = {
    "tiny": LOOP % " '<|' + m['role'] + '|>' + m['content'] + '<|im_end|>' "
    + "{% if add_generation_prompt %}<|assistant|>{% endif %}",
    "chatml": LOOP % r" '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' "
    + r"{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}",
    "zephyr": LOOP % r" '<|' + m['role'] + '|>\n' + m['content'] + '</s>\n' "
    + r"{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}",
    "llama3": LOOP % r" '<|start_header_id|>' + m['role'] + '<|end_header_id|>\n\n' + m['content'] + '<|eot_id|>' "
    + r"{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}",
    "llama2": ALONE
    + LOOP % f" ('<s>[INST] ' + m['content'] + ' [/INST]') {USER} (' ' + m['content'] + ' </s>') ",
    "mistral": ALONE + LOOP % f" ('[INST]' + m['content'] + '[/INST]') {USER} (m['content'] + '</s>') ",
    "plain": ALONE
    + LOOP % rf" ('User: ' + m['content'] + '\nAgent:') {USER} (' ' + m['content'] + '</s>\n') ",
}  # fmt: skip
SPECIALS = {
    "tiny": "<|system|> <|user|> <|assistant|> <|im_end|>",
    "chatml": "<|im_start|> <|im_end|>",
    "zephyr": "<|system|> <|user|> <|assistant|> </s>",
    "llama3": "<|start_header_id|> <|end_header_id|> <|eot_id|>",
    "llama2": "<s> </s>",
    "mistral": "[INST] [/INST] </s>",
    "plain": "</s>",
}
#: A tokenizer that adds a blank after each special token, or in front of a text, gives a content other ids in the
#: middle of a conversation than alone; Llama 3's joins a full stop and the line break after it.
REFUSED = {
    *itertools.product(["bytes, blank in front"], ["chatml", "zephyr", "llama3", "plain"]),
    *itertools.product(["pieces, always", "pieces, normalised"], ["tiny", "chatml", "zephyr", "mistral", "plain"]),
    ("bytes, Llama 3", "plain"),
    ("pieces, first", "plain"),
}


def tokenizer(kind, specials):
    """A trained BPE; pieces have single bytes as text, which a trainer would make special tokens."""
    trained, whole_words = Tokenizer(models.BPE()), kind.startswith("pieces")
    trained.pre_tokenizer = SPLITS[kind] or SPLITS["pieces, always"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    single = ["<unk>", *(f"<0x{value:02X}>" for value in range(256))]
    initial = {"special_tokens": single} if whole_words else {"initial_alphabet": alphabet}
    # SentencePiece keeps line breaks apart.
    texts = [text.replace("\n", " ") for text in TEXT] if whole_words else TEXT
    trained.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=400, show_progress=False, **initial))
    learned = json.loads(trained.to_str())["model"]
    merges = [tuple(pair) for pair in learned["merges"]]
    unknown = {"unk_token": "<unk>", "fuse_unk": True, "byte_fallback": True} if whole_words else {}
    backend = Tokenizer(models.BPE(vocab=learned["vocab"], merges=merges, **unknown))
    if SPLITS[kind]:
        backend.pre_tokenizer = SPLITS[kind]
    else:
        backend.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    pieces = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    backend.decoder = decoders.Sequence(pieces) if whole_words else decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in specials.split()])
    first = specials.split()[0]  # which it puts before a text, unless it is told not to
    backend.post_processor = processors.TemplateProcessing(f"{first} $A", None, [(first, backend.token_to_id(first))])
    return backend


@cache
def renderer(kind, template):
    """The renderer, or the sentence that refuses it."""
    own = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer(kind, SPECIALS[template]), name_or_path=kind, eos_token="</s>", bos_token="<s>"
    )
    own.chat_template = TEMPLATES[template]
    try:
        return Renderer(own), own
    except UserError as error:
        return str(error), own


CONTENT = st.lists(
    st.sampled_from([*TEXT, "a", " ", "\n", "\n\n", "\t", ".", "12", "é", "'s", "(", '"', "Action: go"]),
    min_size=1,
    max_size=6,
)


@pytest.mark.parametrize(("kind", "template"), [*itertools.product(SPLITS, TEMPLATES)])
@settings(max_examples=25)
@given(contents=st.tuples(*[CONTENT.map("".join).map(str.strip).filter(bool)] * 3))
def test_ids_are_those_of_the_whole_text(kind, template, contents):
    made, own = renderer(kind, template)
    if isinstance(made, str):
        assert "of a conversation it has" in made and "where its parts give" in made
        if (kind, template) == ("pieces, always", "tiny"):  # three tokens of each
            assert "after 1 tokens of a conversation it has ' Loo' where its parts give 'Look'; use the chat" in made
        return
    prompt = [
        Message(role=role, content=text) for role, text in zip(("user", "assistant", "user"), contents, strict=True)
    ]
    text = own.apply_chat_template([m.model_dump() for m in prompt], tokenize=False, add_generation_prompt=True)
    assert made.prompt_ids(prompt) == tuple(own(text, add_special_tokens=False)["input_ids"])


def test_which_are_refused():
    refused = {pair for pair in itertools.product(SPLITS, TEMPLATES) if isinstance(renderer(*pair)[0], str)}
    assert refused == REFUSED
