"""What a run is expected to decide (the rules themselves: test_estimation.py), and the noise that it expects."""

import pytest

from coevolve.config.loading import load_suite
from coevolve.pipeline.machine import load_machine
from coevolve.pipeline.plan import Plan
from coevolve.pipeline.suite_files import paths_of
from coevolve.report import claims as paper
from coevolve.report import power
from coevolve.watch import estimates
from tools import noise

CLAIMS = paper.load("configs/claims.yaml")
NOISE = power.load_noise(noise.FILE)


def test_the_noise_is_that_of_committed_results():
    assert noise.FILE.read_text() == noise.text(), "run `python -m tools.noise`"


def test_the_claims_of_the_paper_are_sorted_by_what_can_judge_them(coevolve):
    command = ("power", "--suite", "paper", "--set", "seeds=[0, 1, 2, 3, 4]", "--machine", "h100")
    status, printed, _ = coevolve(*command)
    rows = {row[1].strip(): [cell.strip() for cell in row[2:-1]] for row in (
        line.split("|") for line in printed.splitlines() if line.startswith("| ")
    )}  # fmt: skip
    assert status == 0 and "noise of configs/noise.yaml, intervals of 95.00%" in printed
    assert float(rows["coevolve_webshop"][0]) == 5.5 and rows["coevolve_webshop"][-2] == "none"
    assert float(rows["sciworld_unseen_better"][-1]) > 1  # GPU-hours
    assert "coevolve_mean" not in rows and "not IPR's split: sft_intercode_sql, sft_mean" in printed
    assert rows["WebShop"][0] == "200"
    found = power.Expectations.from_json(coevolve(*command, "--json")[1])
    (claim,) = (each for each in found.claims if each.claim == "coevolve_webshop")
    seeds = [4, 5, 6, 8]
    assert [*claim.half_widths] == [*claim.power] == seeds
    titles = [*(f"+-, {n} seeds" for n in seeds), *(f"decided, {n}" for n in seeds), "seeds for 80%"]
    assert rows["claim"] == ["told apart, points", *titles, "GPU-hours a seed"]
    cells = [claim.gap, *claim.half_widths.values(), *(100 * power for power in claim.power.values())]
    assert [float(cell.rstrip("%")) for cell in rows[claim.claim][:9]] == pytest.approx(cells, abs=0.51)
    machine = load_machine("h100")
    plan = Plan(load_suite("paper", [command[4]]), shards=machine.shards)
    jobs = estimates.jobs(plan, machine, paths_of(plan.records(["coevolve"], every_model=True)))
    hours = sum(cost.gpu_hours for *_, cost in jobs) / 5
    assert claim.gpu_hours == pytest.approx(hours) and float(rows[claim.claim][-1]) == pytest.approx(hours, rel=0.01)
    assert found.gpu_hours > hours
    assert found.differences[0].seeds == 5 and "sft_mean" in sum(found.out_of_reach.values(), ())


def test_a_small_suite_counts_the_claims_that_it_cannot_judge(coevolve):
    status, printed, _ = coevolve("power", "--suite", "science")
    found = power.Expectations.from_json(coevolve("power", "--suite", "science", "--json")[1])
    names = [name for each in found.out_of_reach.values() for name in each]
    assert status == 0 and f"\n\nNone of {len(names)} claims can be judged in this suite; " in printed
    assert "ScienceWorld" in printed and not any(name in printed for name in names)


def test_a_plan_says_what_its_seeds_decide(coevolve):
    _, printed, _ = coevolve("plan", "--suite", "paper", "--machine", "h100")
    assert "With 1 seed, 0 of the 25 claims in reach are expected to be decided in 80% of runs" in printed
