"""What WebShop itself answered, replayed: on the catalogue in `recorded/`, and on the larger one in `tests/data`."""

from collections import Counter
from pathlib import Path

import pytest
from envs.webshop.recorded_traces import read_traces, replay

RECORDED = Path(__file__).parent / "recorded"


@pytest.mark.parametrize(
    ("folder", "traces", "counts"),
    [
        (None, "human", {"observations": 115, "details": 7}),
        (None, "synthetic", {"observations": 86, "details": 5}),
        ("webshop", "traces_human_goals", {"observations": 1134, "rankings": 60, "nouns": 200}),
        ("webshop", "traces_synthetic_goals", {"observations": 1166, "rankings": 214, "nouns": 200}),
    ],
)
def test_recorded_answers_are_ours(upstream, folder, traces, counts):
    catalogue = upstream / folder if folder else RECORDED
    answers = list(replay(catalogue, read_traces(catalogue / f"{traces}.jsonl")))
    assert not [answer for answer in answers if answer.upstream != answer.ours]
    kinds = {"prices", "goals", "observations", "clickables", "rewards", "endings", "details", "rankings", "nouns"}
    compared = Counter(answer.kind for answer in answers)
    assert set(compared) == kinds and counts.items() <= compared.items()
