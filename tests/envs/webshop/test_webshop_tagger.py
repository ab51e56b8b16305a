import importlib.util

import pytest

from coevolve.envs.webshop.tagger import MODEL, load_tagger
from coevolve.errors import UserError


def test_the_approximate_tagger_leaves_out_function_words_and_adjectives():
    title = "Washable cotton picnic blanket for the whole family, lightweight and foldable, 2 pack"
    assert load_tagger("approximate").nouns(title) == [
        *("cotton", "picnic", "blanket", "whole", "family", "lightweight", "pack")
    ]


def test_upstreams_tagger():
    if importlib.util.find_spec("spacy") is None or importlib.util.find_spec(MODEL) is None:
        with pytest.raises(UserError, match=f"spacy and its model {MODEL}"):
            load_tagger("spacy")
    else:
        assert load_tagger("spacy").exact
        assert "cup" in load_tagger("spacy").nouns("Plum cup for tea")
