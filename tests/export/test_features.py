"""What a card states of a file's columns, read by `datasets` itself."""

import json

import pytest
import yaml
from datasets import Dataset, load_dataset
from pyarrow import ArrowInvalid

from coevolve.export import cards
from coevolve.export.cards import features

EMPTY = {"id": "a", "kind": None, "ids": [], "turns": [{"text": "", "tokens": []}], "data": {"x": None}, "reward": 0}
FULL = {"id": "b", "kind": "k", "ids": [[1], []], "turns": [], "data": {"x": True}, "reward": 0.5}


def test_features_are_those_that_datasets_finds_in_all_rows():
    rows = [EMPTY, FULL, EMPTY | {"turns": [{"text": "t", "tokens": [7]}]}]
    assert features(rows) == Dataset.from_list(rows).features._to_yaml_list()
    with pytest.raises(ArrowInvalid):
        features([{"a": "x"}, {"a": 1}])


@pytest.mark.parametrize("order", [1, -1])
def test_a_large_file_whose_first_rows_are_empty_loads_in_either_order(tmp_path, order):
    """A reader that sees the first ten megabytes takes the columns of empty rows for columns without values."""
    rows = [*[EMPTY | {"id": "x" * 2_000}] * 6_000, FULL][::order]
    (tmp_path / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    assert (tmp_path / "rows.jsonl").stat().st_size > 10_000_000
    config = {"config_name": "rows", "data_files": [{"split": "train", "path": "rows.jsonl"}]}
    info = {"config_name": "rows", "features": features(rows)}
    (tmp_path / "README.md").write_text(cards.card({"configs": [config], "dataset_info": [info]}, "Rows", {}))
    assert yaml.safe_load((tmp_path / "README.md").read_text().split("---")[1])["dataset_info"][0]["features"]
    loaded = load_dataset(str(tmp_path), "rows", cache_dir=tmp_path / "cache")["train"]
    assert len(loaded) == 6_001 and loaded[0 if order < 0 else 6_000]["ids"] == [[1], []]
