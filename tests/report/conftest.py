import pytest

from coevolve.config.sections import ReportConfig
from coevolve.records.episodes import StopReason
from coevolve.records.evaluation import EvalRecord
from coevolve.report.measurement import Measurement


def measurement(
    method, env, split, rewards_by_task, *, iteration=0, protocol="fixed", suite="micro", model="tiny", environment=""
):
    """One record per task and seed; task names are the keys, seeds the places in the lists."""
    records = tuple(
        EvalRecord(
            task_id=task,
            split=split,
            seed=seed,
            environment=environment,
            reward=reward,
            success=reward == 1.0,
            stop=StopReason.DONE,
            turns=4,
            trajectory_id=f"{method}-{task}-{seed}",
        )
        for task, rewards in rewards_by_task.items()
        for seed, reward in enumerate(rewards)
    )
    source = f"results/{suite}/{method}/{env}/{split}/{iteration}.jsonl"
    return Measurement(suite, model, protocol, method, env, split, iteration, records, (source,))


@pytest.fixture
def measure():
    return measurement


@pytest.fixture
def report():
    return ReportConfig(bootstrap=200, confidence=0.95)


@pytest.fixture
def labels():
    return {"sft": "SFT", "eto": "ETO", "coevolve": "Co-evolving", "odd": "50 % odd_method & more"}
