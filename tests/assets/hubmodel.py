"""The model of `hubserver`: a tiny Llama."""

from coevolve.pipeline.stages.parts.training import texts
from coevolve.records.episodes import Trajectory
from coevolve.storage import jsonl
from coevolve.train import tiny_model
from coevolve.train.settings import TinyArchitecture

ARCHITECTURE = TinyArchitecture(vocab_size=420, hidden_size=32, layers=1, heads=2, intermediate_size=64)


def write_model(folder, gold):
    """The model's files, with a tokenizer of the first episodes in `gold`."""
    corpus = texts(jsonl.read(gold, Trajectory)[:40])
    tiny_model.build(ARCHITECTURE, context=512, texts=corpus, seed=0, out=folder, name="tiny")
