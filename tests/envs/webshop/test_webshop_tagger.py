import importlib.util
import json
from pathlib import Path

import pytest
from envs.webshop.spacy_tokenizer import recorded_tagger, tokenize

from coevolve.envs.webshop.tagger import MODEL, load_tagger
from coevolve.errors import UserError

TOKENS = json.loads((Path(__file__).parent / "recorded" / "tokens.json").read_text())


@pytest.mark.parametrize("row", TOKENS, ids=range(len(TOKENS)))
def test_tokens_equal_spacys(row: dict[str, list[str]]):
    found = tokenize(row["text"])
    assert [token.text for token in found] == row["tokens"]
    assert recorded_tagger().nouns(row["text"]) == row["nouns"]


@pytest.mark.parametrize("traces", ["traces_human_goals.jsonl", "traces_synthetic_goals.jsonl"])
def test_the_tagger_of_the_recorded_traces_finds_their_nouns(upstream: Path, traces: str):
    lines = (upstream / "webshop" / traces).read_text(encoding="utf-8").split("\n")
    rows = [json.loads(line) for line in lines if '"kind": "nouns"' in line]
    assert len(rows) == 200
    assert [recorded_tagger().nouns(row["title"]) for row in rows] == [row["nouns"] for row in rows]


@pytest.mark.parametrize(
    "text", ["", " ", "a  b", " a ", "\t\n a\u00a0 b", "he's (co.) foo.com e.g. 5-in-1", "\u3000x"]
)
def test_tokens_put_together_are_the_text(text: str):
    assert "".join(token.text + " " * token.spaced for token in tokenize(text)) == text


def test_the_approximate_tagger_leaves_out_function_words_and_adjectives():
    title = "Washable cotton picnic blanket for the whole family, lightweight and foldable, 2 pack"
    assert load_tagger("approximate").nouns(title) == [
        *("cotton", "picnic", "blanket", "whole", "family", "lightweight", "pack")
    ]


def test_the_approximate_tagger_says_what_it_is():
    one = load_tagger("approximate")
    assert one.id == "approximate" and one.version and not one.exact


def test_upstreams_tagger():
    if importlib.util.find_spec("spacy") is None or importlib.util.find_spec(MODEL) is None:
        with pytest.raises(UserError, match=f"spacy and its model {MODEL}"):
            load_tagger("spacy")
    else:
        assert load_tagger("spacy").exact
        assert "cup" in load_tagger("spacy").nouns("Plum cup for tea")
