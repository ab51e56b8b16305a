"""The checks of a suite's regime: each passes and fails at its threshold, and what was not measured is said."""

import dataclasses

import pytest
from report.explored import explored, provenance, train_report

from coevolve.config.loading import load_suite
from coevolve.config.suite import iterations_of, with_model
from coevolve.pipeline.stages.parts import regime_evidence
from coevolve.pipeline.suite_files import SuiteFiles, paths_of
from coevolve.records.episodes import StopReason
from coevolve.records.pairs import DropReason, KindCount, PairingSummary, PairKind, TrajectoryCount
from coevolve.report import regime
from coevolve.report.labels import ReportLabels
from coevolve.report.learnability import Score
from coevolve.storage import jsonl
from coevolve.storage.files import write_bytes
from coevolve.watch import on_disk

LABELS = ReportLabels({"sft": "SFT", "sft_all": "SFT, all experts", "grpo": "GRPO"}, {"sciworld": "ScienceWorld"})

LIMITS = load_suite("smoke").regime
REWARDS = [0.1, 0.2, 0.25, 0.3, 0.35, 0.4, 0.5, 0.6, 0.7, 0.8]  # ten; three of them hard negatives


def training(rewards):
    return train_report([{"step": i, "loss": 1.0, "reward": reward} for i, reward in enumerate(rewards)])


def pairing(pairs, ties=447):
    drops = {DropReason.TIE: ties, DropReason.NOT_A_FAILURE: 1000}
    count = KindCount(candidates=pairs + 1000 + ties, pairs=pairs, swapped=0, cut=0, drops=drops)
    kinds = dict.fromkeys((PairKind.EXPERT_TARGET, PairKind.FAILURE_FAILURE), count)
    counted = TrajectoryCount(total=0, paired=0, dropped=0, not_used=0)
    return PairingSummary(kinds=kinds, without_kind={}, trajectories=counted, empty=())


def practised(rewards):
    """The scores of an online training with a task in each step."""
    return [Score(f"t{step}", step, reward) for step, reward in enumerate(rewards)]


def evidence(
    measure, *, success=0.5, failures=REWARDS, pairs=150, ties=447, steps=30, gain=0.2, rise=0.3, seeds=(0, 1, 2, 3)
):
    tasks = {f"t{i}": [float(i < success * 20)] * len(seeds) for i in range(20)}
    better = {name: [reward or gain for reward in rewards] for name, rewards in tasks.items()}
    measured = [measure("sft", "sciworld", "seen", tasks), measure("sft_all", "sciworld", "seen", better, iteration=1)]
    episodes = {f"t{i}": reward for i, reward in enumerate([*failures, 1.0, 1.0])}
    grown = [sum(failures[:10]) / 10 + rise * step / 9 for step in range(10)]
    return regime.RegimeEvidence(
        measurements=measured,
        explorations=[explored("coevolve", episodes, seed=seed) for seed in seeds],
        summaries={
            ("coevolve", "tiny", "sciworld", seed, iteration, "target"): pairing(pairs, ties)
            for seed in seeds
            for iteration in (1, 2)
        },
        trainings={("coevolve", "sciworld", seed, 1, "failure"): training([0.1] * steps) for seed in seeds},
        practice={
            ("sciworld", seed): practised([each + seed * step / 1000 for step, each in enumerate(grown)])
            for seed in seeds
        },
    )


def judged(given, report, seeds=(0, 1, 2, 3), iterations=2):
    result = regime.checks(given, LIMITS, report, {"sciworld": iterations}, seeds)
    assert len(result) == 7 * len(seeds) + 2
    return result


def names(result, passed):
    return {check.name.split(":")[0] for check in result if check.passed is passed}


def test_a_suite_at_every_threshold_passes(measure, report):
    result = judged(evidence(measure), report)
    assert names(result, False) == names(result, None) == set()
    assert regime.sentence(result, LABELS) == "30 of 30 measured checks of the regime pass."
    rise = next(check for check in result if check.name.startswith("learnability"))
    shown = f"| {rise.value:.3g} [{rise.low:.3g}, {rise.high:.3g}]"
    assert 0 < rise.low < rise.value < rise.high and shown in regime.markdown(result, LABELS)


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"success": 0.75}, "success of SFT"),
        ({"success": 0.15}, "success of SFT"),
        ({"failures": [*REWARDS[:-1], REWARDS[0]]}, "distinct rewards of failures"),
        ({"failures": [0.01 * i for i in range(9)] + [0.6]}, "failures with a reward of 0.6 or more"),
        ({"pairs": 149}, "pairs of each kind and iteration"),
        ({"ties": 451}, "two failures of a task that make a pair"),
        ({"steps": 29}, "steps of the failure agent's training"),
        ({"gain": -0.2}, "headroom"),
        ({"rise": -0.3}, "learnability"),
    ],
)
def test_each_check_fails_alone(measure, report, change, name):
    result = judged(evidence(measure, **change), report)
    assert names(result, False) == {name}
    assert f"failed: {name}" in regime.sentence(result, LABELS)
    text = regime.markdown(result, LABELS)
    assert "FAILS" in text and "headroom: SFT, all experts minus SFT" in text and "sft_all" not in text


def test_an_interval_that_contains_0_is_undecided_and_not_passed(measure, report):
    given = evidence(measure)
    rises = zip(given.practice, (0.3, -0.3, 0.0, 0.1), strict=True)
    mixed = {key: practised([0.4 + rise * step / 9 for step in range(10)]) for key, rise in rises}
    result = judged(dataclasses.replace(given, practice=mixed), report)
    assert names(result, False) == {"learnability"}
    assert regime.sentence(result, LABELS).endswith("undecided: learnability: rise of GRPO's training reward.")
    assert "FAILS" not in regime.markdown(result, LABELS) and "| undecided" in regime.markdown(result, LABELS)


def test_episodes_that_the_context_ended_are_counted(measure, report):
    given = evidence(measure)
    (first, *others) = given.explorations
    cut = [each._replace(stop=StopReason.CONTEXT) for each in first.episodes[:1]]
    changed = first.__class__(**{**vars(first), "episodes": (*cut, *first.episodes[1:])})
    result = judged(dataclasses.replace(given, explorations=[changed, *others]), report)
    failed = [(check.name, check.seed, check.value) for check in result if check.passed is False]
    assert failed == [("episodes ended by the context", 0, pytest.approx(1 / 12))]


def test_what_was_not_run_is_not_measured(root, report):
    """A row without iterations has no pairs to count."""
    nothing = regime.RegimeEvidence([], [], {}, {})
    result = judged(nothing, report)
    suite = load_suite(root / "configs/suites/smoke.yaml", ["regime.method=sft"])
    assert {check.passed for check in (*result, *regime_evidence.checks(suite, nothing))} == {None}
    assert regime.markdown(result, LABELS) == (
        "## Regime\n\nNo check of the regime can be measured with the results so far.\n"
    )


def test_too_few_seeds_show_neither_headroom_nor_learnability(measure, report):
    result = judged(evidence(measure, seeds=(0, 1)), report, seeds=(0, 1))
    learned, more = (next(c for c in result if c.name.startswith(name)) for name in ("learnability", "headroom"))
    assert (learned.passed, learned.low, learned.value) == (None, None, pytest.approx(0.3045))
    assert (more.passed, more.low) == (None, None) and more.value > 0.0


def test_a_run_that_has_not_ended_has_no_smallest_iteration(measure, report):
    result = judged(evidence(measure), report, iterations=3)
    assert names(result, None) == {
        "pairs of each kind and iteration",
        "two failures of a task that make a pair",
        "steps of the failure agent's training",
    }


@pytest.mark.parametrize(("iterations", "steps"), [(1, 0), (3, 30)])  # the suite has two
def test_a_row_with_iterations_of_its_own_is_finished_after_these(root, tmp_path, monkeypatch, iterations, steps):
    suite = with_model(load_suite(root / "configs/suites/smoke.yaml", [f"recipes.coevolve.iterations={iterations}"]))
    made_files = SuiteFiles(suite)
    monkeypatch.chdir(tmp_path)
    for path in paths_of(made_files.summaries(["coevolve"])):
        write_bytes(tmp_path / path, pairing(150).to_json().encode())
    for number in range(1, iterations):
        wildcards = {"model": "tiny", "env": "sciworld", "branch": f"coevolve/seed0/iter{number}", "agent": "failure"}
        made = provenance("", wildcards=wildcards, protocol="paper", notes=training([0.1] * 30))
        folder = tmp_path / made_files.home / "tiny/sciworld" / wildcards["branch"] / "policy/failure"
        write_bytes(folder / "provenance.json", made.to_json().encode())
    judged = regime_evidence.checks(suite, on_disk.evidence_of_regime(made_files))
    values = {check.name: check.value for check in judged if check.env == "sciworld"}
    assert values["pairs of each kind and iteration"] == 150
    assert values["steps of the failure agent's training"] == steps


@pytest.mark.parametrize(
    "evaluated", [{"sft": (0, 1, 2)}, {"sft": (0, 1, 2), "sft_all": (1,)}, {"sft": (0,), "sft_all": (1,)}]
)
def test_headroom_is_not_decided_by_what_a_running_suite_has_so_far(root, tmp_path, monkeypatch, measure, evaluated):
    """SFT's records are also those of iteration 0 of the row with more experts."""
    suite = with_model(load_suite(root / "configs/suites/smoke.yaml", ["seeds=[0,1,2]", "methods=[sft,sft_all]"]))
    made_files = SuiteFiles(suite)
    monkeypatch.chdir(tmp_path)
    for method, numbers in evaluated.items():
        for seed in numbers:
            of = ("sciworld", method, "tiny", seed, iterations_of(suite, "sciworld", method))
            path = next(file.path for file in made_files.records([method]) if file[1:6] == of)
            (record, *_) = measure(method, "sciworld", "seen", {"a": [0.5]}).records
            jsonl.write(tmp_path / path, [record.model_copy(update={"seed": seed})])
    judged = regime_evidence.checks(suite, on_disk.evidence_of_regime(made_files))
    assert [check.passed for check in judged if check.name.startswith("headroom")] == [None] * 3


def test_the_command_prints_what_the_product_has_and_tells_what_is_missing(made, tmp_path, monkeypatch, coevolve):
    monkeypatch.chdir(made)
    status, printed, _ = coevolve("regime", "--suite", "glance")
    assert status == 1  # a suite of seconds is too small to decide
    assert printed.strip() == (made / "results/glance/paper/regime/regime.md").read_text().strip()
    monkeypatch.chdir(tmp_path)
    (tmp_path / "configs").symlink_to(made / "configs")
    status, printed, _ = coevolve("regime", "--suite", "glance")
    assert status == 3 and "No check of the regime can be measured" in printed
