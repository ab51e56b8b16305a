"""SmolLM2 from its GGUF file: the bytes of the conversion, and the tokenizer against the rules that the file names."""

import lzma

import pytest
import regex
from templates.models import NAMES, tokenizer

from coevolve.assets import downloads, hub
from coevolve.assets.settings import Source
from coevolve.chat.chat_template import Renderer
from coevolve.cli import main
from coevolve.errors import UserError
from coevolve.records.episodes import Message
from coevolve.settings.yaml_files import read_yaml
from coevolve.train import gguf_model

MODEL = "smollm2-135m"
#: The rule `smollm` of llama.cpp: each digit stands alone, then GPT-2's rule. Written here from its documentation.
SMOLLM = (r"\p{N}", r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+")
TEXTS = (
    "In 2024 it cost $1,299.50 (12% off), didn't it?",
    "find-animal 12  tabs\tand\n\nlines   ",
    "SELECT AVG(T1.age) FROM pets AS T1 WHERE T1.weight >= 10.5;",
    "Größe: ½ kg, Ⅻ, 三十 and ٣٤ and 🙂🙂7",
    "Thought: I need 3 items.\nAction: search[size 10 shoes]",
)


@pytest.fixture(scope="module")
def gguf(root, tmp_path_factory):
    """The pinned file: that of `make smoke`, else fetched as the stage `download` does."""
    source = Source(**read_yaml(root / "configs/parts/sources.yaml")["sources"]["smollm2"])
    fetched = root / "data/mirror/smollm2" / source.file
    if not fetched.exists():
        fetched = tmp_path_factory.mktemp("smollm2") / source.file
        downloads.fetch(source, fetched, downloads.mirror(), fetched.with_name("work"))
    return fetched


def split(text):
    """The pieces of a text under the rule, as llama.cpp applies its expressions one after another."""
    pieces = [text]
    for expression in SMOLLM:
        pieces = [part for piece in pieces for part in _split(expression, piece)]
    return pieces


def _split(expression, piece):
    end = 0
    for match in regex.finditer(expression, piece):
        if match.start() > end:
            yield piece[end : match.start()]
        yield match.group()
        end = match.end()
    if end < len(piece):
        yield piece[end:]


@pytest.mark.parametrize("text", TEXTS)
def test_the_tokenizer_splits_text_by_the_rule_that_the_file_names(text):
    backend = tokenizer("smollm2").backend_tokenizer
    places = [place for _, place in backend.pre_tokenizer.pre_tokenize_str(text)]
    assert [text[start:end] for start, end in places] == split(text)
    assert tokenizer("smollm2").decode(tokenizer("smollm2")(text)["input_ids"]) == text


def test_a_prompt_without_a_system_message_gets_the_templates_own():
    tokens = tokenizer("smollm2")
    task = [Message(role="user", content="Find a living thing.")]
    ids = Renderer(tokens).prompt_ids(task)
    plain = [message.model_dump() for message in task]
    assert list(ids) == tokens.apply_chat_template(plain, add_generation_prompt=True, return_dict=False)
    assert tokens.decode(ids).startswith("<|im_start|>system\nYou are a helpful AI assistant named SmolLM")


def test_the_committed_tokenizer_is_the_one_in_the_file(gguf, root, tmp_path):
    assert "smollm2" in NAMES
    gguf_model.load_tokenizer(gguf).save_pretrained(tmp_path)
    committed = root / "tests/templates"
    assert (tmp_path / "tokenizer.json").read_bytes() == lzma.decompress(
        (committed / "smollm2/tokenizer.json.xz").read_bytes()
    )
    assert (tmp_path / "chat_template.jinja").read_text() == (committed / "smollm2.jinja").read_text()


def test_versions_that_convert_otherwise_are_refused(tmp_path, monkeypatch):
    """5.17 adds a normaliser and another decoder, and takes the first token of a turn for its last."""
    monkeypatch.setattr("transformers.__version__", "5.17.0")
    with pytest.raises(UserError, match=r"transformers 5\.17\.0 converts .*; install the version of requirements"):
        gguf_model.load_tokenizer(tmp_path / "model.gguf")


def test_a_file_that_is_not_gguf_is_refused(tmp_path):
    path = tmp_path / "model.gguf"
    path.write_bytes(b"not a model")
    with pytest.raises(UserError, match="not a GGUF file"):
        gguf_model.load_tokenizer(path)


SUITE = """
extends: [{0}/parts/hyperparameters.yaml, {0}/envs/webshop-small.yaml, {0}/models/smollm2-135m.yaml]
suite: real
protocol: fixed
seeds: [0]
methods: [sft]
"""


@pytest.mark.slow
def test_the_stage_gives_the_pinned_bytes_from_the_file_alone(gguf, root, tmp_path, monkeypatch):
    """Once into each of two folders: equal bytes, and the weights' sha256 is the config's, or the stage fails."""
    suite = tmp_path / "real.yaml"
    suite.write_text(SUITE.format(root / "configs"))
    monkeypatch.chdir(tmp_path)
    for out in ("one", "two"):
        on = ["--on", f"model={MODEL}", f"gguf={gguf}"]
        with pytest.raises(SystemExit, match="0"):
            main(["stage", "convert", "--suite", str(suite), "--out", out, *on])
    one, two = (hub.verify(tmp_path / out / hub.MANIFEST) for out in ("one", "two"))
    assert one == two
    assert {file.name for file in one.files} >= {"model.safetensors", "tokenizer.json", "config.json"}
