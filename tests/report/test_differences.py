import pytest

from coevolve.config.suite import load_suite
from coevolve.report import differences
from coevolve.report.labels import ReportLabels
from coevolve.report.measurement import Measurement
from coevolve.types import EvalRecord, StopReason


def measurement(method, split, rewards):
    records = tuple(
        EvalRecord(
            task_id=f"{split}{number}",
            split=split,
            seed=0,
            reward=reward,
            success=reward == 1.0,
            stop=StopReason.DONE,
            turns=1,
            trajectory_id="x",
        )
        for number, reward in enumerate(rewards)
    )
    return Measurement("s", "m", "fixed", method, "sciworld", split, 1, records)


def test_differences_are_paired_by_task_over_all_splits(root):
    report = load_suite(root / "configs/smoke.yaml").report
    final = [
        measurement("eto", "seen", [0.0, 0.5]),
        measurement("eto", "unseen", [0.25]),
        measurement("coevolve", "seen", [0.5, 1.0]),
        measurement("coevolve", "unseen", [0.75]),
    ]
    (found,) = differences.paired(final, report, seed=0)
    assert (found.better, found.than) == ("coevolve", "eto")
    # Every task differs by 0.5, so the interval has no width however far the rewards lie apart.
    assert (found.estimate.mean, found.estimate.low, found.estimate.high) == pytest.approx((0.5, 0.5, 0.5))
    assert found.estimate.n_tasks == 3
    table = differences.markdown(
        [found], ReportLabels({"eto": "ETO", "coevolve": "Co-evolving"}, {"sciworld": "ScienceWorld"})
    )
    assert "| ScienceWorld | Co-evolving - ETO | 50.0 [50.0, 50.0] | 3 |" in " ".join(table.split())
