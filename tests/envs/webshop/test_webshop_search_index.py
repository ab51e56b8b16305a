"""Rankings are Lucene's: the hash below is of what anserini 0.14.3 answers on the same documents and queries."""

import hashlib
import json
import math
import random
import subprocess
import sys
from collections import Counter

import numpy as np
import psutil
import pytest

from coevolve.envs.webshop import lucene_analyzer, search_index
from coevolve.envs.webshop.search_index import SearchIndex
from coevolve.storage import files

SYLLABLES = ("ba", "co", "di", "fu", "ga", "he", "li", "mo", "nu", "pa", "ro", "tion", "ness", "ing", "ed", "s", "ly")
K1, B = np.float32(0.9), np.float32(0.4)
ODD = ["women\u2019s", "7.5", "the", "for", "\u65e5\u672c\u8a9e", "\U0001f44d\U0001f3fd", "x" * 300, "don't"]


def vocabulary(rng, size):
    return ["".join(rng.choice(SYLLABLES) for _ in range(rng.randrange(1, 4))) for _ in range(size)] + ODD


def catalogue(rng, words, size):
    """Texts of no word to thousands, some of them twice."""
    texts: list[str] = []
    for _ in range(size):
        kind = rng.random()
        if kind < 0.1 and texts:
            texts.append(rng.choice(texts))
        else:
            longest = 4000 if kind < 0.12 else 60
            texts.append(" ".join(frequent(rng, words) for _ in range(rng.randrange(longest))))
    return texts


def queries(rng, words, size):
    """Queries of no word to 900, some with repeated words."""
    found = ["", "the for", "unheardof", " ".join(dict.fromkeys(words))[:6000]]
    while len(found) < size:
        query = [frequent(rng, words) if rng.random() < 0.5 else rng.choice(words) for _ in range(rng.randrange(1, 9))]
        found.append(" ".join(query * rng.choice([1, 1, 1, 2, 3])))
    return found


def frequent(rng, words):
    """A word, the first ones more often than the last ones."""
    return words[int(len(words) * rng.random() ** 3)]


def small():
    rng = random.Random(5)
    words = vocabulary(rng, 300)
    return catalogue(rng, words, 1500), queries(rng, words, 400)


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    texts, asked = small()
    folder = tmp_path_factory.mktemp("search") / "index"
    search_index.build(texts, folder)
    return SearchIndex(folder), texts, asked


def reference(counts, query):
    """BM25 document by document, every step in the precision that Lucene takes it in; documents in order of score."""
    filled = [count.total() for count in counts if count]
    average = np.float32(sum(filled) / len(filled))
    weights = {}
    for term, times in Counter(lucene_analyzer.index_terms(query)).items():
        having = sum(1 for count in counts if term in count)
        weights[term] = np.float32(times) * np.float32(math.log(1 + (len(filled) - having + 0.5) / (having + 0.5)))
    scores = {}
    for number, count in enumerate(counts):
        length = count.total()
        cut = max((length - 24).bit_length() - 4, 0)  # a length is kept as one byte
        kept = length if length < 24 else 24 + ((length - 24) >> cut << cut)
        norm = 1 / (K1 * ((1 - B) + B * np.float32(kept) / average))
        found = [(weight, np.float32(count[term])) for term, weight in weights.items() if term in count]
        if found:
            scores[number] = float(np.float32(sum(float(weight - weight / (1 + tf * norm)) for weight, tf in found)))
    return sorted(scores, key=lambda number: (-scores[number], number))


def test_rankings_are_lucenes(built):
    searched, _, asked = built
    rankings = json.dumps([searched.search(query) for query in asked]).encode()
    digest = "3da708497d77d3a80754c095a67a759d762f7ab498581dbdcc90d2fc608607f7"
    assert hashlib.sha256(rankings).hexdigest() == digest


def test_rankings_are_the_formulas_to_the_last_document(built):
    searched, texts, asked = built
    counts = [Counter(lucene_analyzer.index_terms(text)) for text in texts]
    for query in asked[:100]:
        assert searched.search(query, len(texts)) == reference(counts, query), query


def test_more_terms_than_lucene_takes_are_searched_as_well(built):
    searched, _, asked = built
    unheard = " ".join(f"unheard{number}" for number in range(2000))
    assert searched.search(f"{asked[5]} {unheard}") == searched.search(asked[5]) != []


def test_workers_and_blocks_change_nothing(built, tmp_path, monkeypatch):
    _, texts, _ = built
    monkeypatch.setattr(search_index, "BLOCK_SIZE", 100)
    search_index.build(iter(texts), tmp_path / "three", workers=3)
    monkeypatch.undo()
    search_index.build(texts, tmp_path / "one")
    assert files.sha256(tmp_path / "three") == files.sha256(tmp_path / "one")


@pytest.mark.parametrize("texts", [[], [""], ["the of", "!"]], ids=["no document", "empty", "no term"])
def test_nothing_to_find(texts, tmp_path):
    search_index.build(texts, tmp_path / "index")
    searched = SearchIndex(tmp_path / "index")
    assert len(searched) == len(texts)
    assert searched.search("red the") == []


KILLED = """
import sys
from pathlib import Path
from coevolve.envs.webshop import lucene_analyzer, search_index

def texts():
    yield from ["red lamp"] * 3 * search_index.BLOCK_SIZE
    print("half", flush=True)
    sys.stdin.read()

search_index.build(texts(), Path(sys.argv[1]), workers=2)
"""


def test_a_killed_build_leaves_no_worker(tmp_path):
    command = [sys.executable, "-c", KILLED, str(tmp_path / "index")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as builder:
        assert builder.stdout.readline() == "half\n"
        workers = psutil.Process(builder.pid).children()
        assert len(workers) == 2
        builder.kill()
    psutil.wait_procs(workers)  # at last the test's time limit


def test_ties_at_the_bound_of_a_group_are_kept(tmp_path, monkeypatch):
    """Of more groups than hits each has the same highest score: the bound is a score of the results."""
    monkeypatch.setattr(search_index, "GROUP_SIZE", 2)
    search_index.build(["red lamp", "a lamp shade of linen"] * 20, tmp_path / "index")
    assert SearchIndex(tmp_path / "index").search("lamp", 3) == [0, 2, 4]
    search_index.build(["red lamp"] * 2000, tmp_path / "equal")
    assert SearchIndex(tmp_path / "equal").search("lamp") == list(range(50))
