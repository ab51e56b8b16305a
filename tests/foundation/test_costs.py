import json
from pathlib import Path

import pytest

from coevolve import config, costs
from coevolve.plan import Plan


@pytest.fixture
def machine(root):
    return config.load_machine(root / "configs/machines/h100.yaml")


@pytest.fixture
def plan(root, machine, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # what was downloaded here counts as done
    return Plan(config.load(root / "configs/paper.yaml"), root=str(tmp_path), shards=machine.shards)


WILDCARDS = {"model": "llama2-7b-chat", "env": "webshop", "branch": "base/seed0", "agent": "target"}


def test_fine_tuning_is_six_operations_a_weight_token_and_epoch(plan, machine):
    """FINDINGS reckons 0.3 GPU-hours for WebShop at 40 % utilisation."""
    found = costs.cost(plan, machine, "sft", WILDCARDS)
    learning = (found.seconds - machine.costs.startup_seconds) * 8 / 3600
    assert learning == pytest.approx(6 * 6.74e9 * 1823 * 2000 * 3 / (9.89e14 * 0.4) / 3600)
    assert 0.25 < learning < 0.35
    assert found.gpu_hours == pytest.approx(found.seconds * 8 / 3600)
    assert found.bytes == pytest.approx(6.74e9 * 4)


def test_parts_cost_together_what_the_whole_costs_but_for_their_starts(root, plan, machine):
    whole = Plan(plan.suite, root=plan.root)
    names = {key: value for key, value in WILDCARDS.items() if key != "agent"}
    alone = costs.cost(whole, machine, "shard", {**names, "whole": "rollout/target", "part": "1of1"})
    part = costs.cost(plan, machine, "shard", {**names, "whole": "rollout/target", "part": "1of4"})
    start = machine.costs.startup_seconds
    assert 4 * (part.seconds - start) == pytest.approx(alone.seconds - start)
    assert costs.cost(plan, machine, "rollout", WILDCARDS).gpu_hours == 0, "putting them together is no work"


def test_more_pair_kinds_cost_more_training(plan, machine):
    eto, coevolve = (
        costs.cost(plan, machine, "train", {**WILDCARDS, "branch": f"{method}/seed0/iter1"})
        for method in ("eto", "coevolve")
    )
    assert coevolve.seconds > 1.5 * eto.seconds


def test_what_was_measured_stands_beside_what_was_predicted_for_it(plan, machine):
    folder = plan.folder("sft", WILDCARDS)
    Path(folder).mkdir(parents=True)
    Path(folder, "provenance.json").write_text(json.dumps({"seconds": 7200.0}))
    rows = {row.name: row for row in costs.lines((stage, cost) for stage, _, cost in costs.jobs(plan, machine))}
    assert rows["sft"].done == rows["all"].done == 1
    assert rows["sft"].done_measured_hours == 2.0
    assert rows["all"].jobs == sum(row.jobs for row in rows.values()) - rows["all"].jobs
    assert rows["all"].gpu_hours == pytest.approx(sum(r.gpu_hours for n, r in rows.items() if n != "all"))
    assert "| sft" in costs.text("stage", list(rows.values()))
