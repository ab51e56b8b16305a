"""The time left of a run: the cost model's estimates, corrected by the time that passed."""

import pytest

from coevolve.config.loading import load_suite
from coevolve.config.machine import job_resources
from coevolve.pipeline.machine import load_machine
from coevolve.pipeline.plan import Plan
from coevolve.watch import job_text
from coevolve.watch.forecast import Forecast

A, B, C, D = "abcd"
#: `d` waits for `b` and `c`, which wait for `a`.
DIAMOND = {A: set(), B: {A}, C: {A}, D: {B, C}}


def diamond(slots, width=1):
    return Forecast({A: 1000, B: 2000, C: 3000, D: 500}, DIAMOND, dict.fromkeys(DIAMOND, width), slots)


@pytest.mark.parametrize(
    ("slots", "width", "seconds"), [(1, 1, 6500), (2, 1, 4500), (9, 1, 4500), (2, 2, 6500), (1, 4, 6500)]
)
def test_the_estimate_is_all_work_over_the_slots_or_the_longest_chain(slots, width, seconds):
    assert diamond(slots, width).whole == seconds


def test_half_of_the_cost_in_some_seconds_leaves_as_many():
    forecast = Forecast({A: 3000, B: 3000}, {A: set(), B: {A}}, {A: 1, B: 1}, 1)
    assert forecast.remaining(0, {}, {A, B}) == forecast.whole == 6000
    for seconds in (1500, 3000, 6000):
        assert forecast.remaining(seconds, {}, {B}) == pytest.approx(seconds, rel=0.2)


def test_the_rest_is_corrected_by_the_time_that_passed():
    forecast = diamond(2)
    assert forecast.remaining(1000, {}, {B, C, D}) == 3500
    assert 1.5 * 3500 < forecast.remaining(2000, {}, {B, C, D}) < 2 * 3500
    assert 0.5 * 3500 < forecast.remaining(500, {}, {B, C, D}) < 0.7 * 3500
    assert forecast.remaining(2500, {B: 1500, C: 1500}, {D}) == 2000
    assert forecast.remaining(4500, {}, set()) == 0
    assert forecast.remaining(60, {}, {A, B, C, D}) < 1.2 * 4500, "the first job waits in the queue"


def test_what_waits_for_a_failed_job_is_blocked():
    assert diamond(2).blocked([B]) == {B, D} and diamond(2).blocked([]) == set()


@pytest.mark.parametrize("suite", ["smoke", "paper"])
def test_every_job_of_a_suite_has_a_name_and_an_estimate(suite):
    machine = load_machine("h100")
    plan = Plan(load_suite(suite), shards=machine.shards)
    jobs = plan.jobs()
    names = [job_text.job_label(plan.suite, job) for job in jobs]
    assert len(set(names)) == len(names) == len({job.key for job in jobs})
    forecast = Forecast.of(plan, machine, jobs, 64, cluster=True)
    assert max(forecast.seconds.values()) <= forecast.whole < sum(forecast.seconds.values())


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "5 s"), (12, "10 s"), (54, "50 s"), (55, "1 min"), (3540, "59 min"), (3600, "1 h 0 min"), (8e3, "2 h 10 min")],
)
def test_estimated_durations_are_rounded(seconds, text):
    assert job_text.about(seconds) == f"about {text}"


@pytest.mark.parametrize(
    ("log", "sentence"),
    [
        ("12:00:00 epoch 1\ncoevolve: a.yaml: key `b` is wrong.\n", "a.yaml: key `b` is wrong."),
        ("Traceback (most recent call last):\n  File x\nValueError: no\n", "ValueError: no"),
        ("12:00:00 epoch 1\n", None),
        ("coevolve: \x1b[2Jtext\n", "\\u001b[2Jtext"),
    ],
)
def test_the_error_of_a_log(tmp_path, log, sentence):
    path = tmp_path / "log"
    path.write_text(log)
    assert job_text.failure(path) == sentence
    assert job_text.failure(tmp_path / "missing") is None


def test_jobs_on_the_only_gpu_are_forecast_one_after_the_other():
    machine, plan = load_machine("one-gpu"), Plan(load_suite("reviewer"))
    jobs = plan.jobs()
    forecast = Forecast.of(plan, machine, jobs, 8, cluster=False)
    widths = {job.stage.name: forecast.width[job.key] for job in jobs}
    assert widths["train"] == widths["rollout"] == 8 and widths["pairs"] == job_resources(machine, "pairs").cpus == 2
    gpu_seconds = sum(forecast.seconds[job.key] for job in jobs if job_resources(machine, job.stage.name).gpus)
    assert forecast.whole >= gpu_seconds
