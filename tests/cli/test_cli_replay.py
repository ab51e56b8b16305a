"""`coevolve replay` tells by its exit status whether an environment answers as it was recorded."""

import json

import pytest


@pytest.mark.parametrize(("step", "status"), [(1, 0), (-1, 1)])
def test_the_order_of_human_goals_is_checked_against_upstreams_list(root, coevolve, tmp_path, step, status):
    recorded, published = root / "tests/envs/webshop/recorded", tmp_path / "human_goals.json"
    meta = json.loads((recorded / "human.jsonl").read_text(encoding="utf-8").splitlines()[0])
    texts = [goal["instruction_text"].split(", and price lower than")[0] for goal in meta["goals"]]
    published.write_text(json.dumps(texts[::step]), encoding="utf-8")
    assert coevolve("replay", "webshop", "--catalogue", recorded, "--goals", published)[0] == status
