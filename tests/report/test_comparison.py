"""Comparisons of result files: comparability, differences, and the smallest one that could be seen."""

import json
import lzma
import math
import re

import numpy as np
import pytest
from builders import record
from report.explored import episode
from scipy import stats as scipy_stats

from coevolve.errors import UserError
from coevolve.records.episodes import Message, StopReason
from coevolve.records.evaluation import TurnFlaw
from coevolve.records.provenance import Provenance
from coevolve.report import comparison, evaluation_result, stats
from coevolve.report.evaluation_result import EvaluationResult, ModelIdentity, SplitResult, TaskResult
from coevolve.storage import files, jsonl, provenance

RNG = np.random.default_rng(0)
SETTINGS = {"environment": "webshop", "step_limit": 10, "products": 1000}


def split(rewards):
    values = [
        TaskResult(task_id=str(i), reward=float(r), success=r == 1.0, stop=StopReason.DONE, turns=3)
        for i, r in enumerate(rewards)
    ]
    deviation, success = float(np.std(rewards, ddof=1)), float(np.mean([r == 1.0 for r in rewards]))
    return SplitResult(
        tasks=len(rewards),
        mean_reward=float(np.mean(rewards)),
        reward_deviation=deviation,
        success_rate=success,
        values=tuple(values),
    )


def result(label, of_split, **settings):
    return EvaluationResult(label=label, settings=SETTINGS | settings, splits={"test": of_split}, code_digest="x")


def test_paired_results_have_students_interval():
    a, b = (np.clip(RNG.normal(mean, 0.3, 40), 0, 1) for mean in (0.4, 0.6))
    for tasks, accuracy in ((40, 1e-4), (3, 1e-9), (2, 1e-9)):
        reward, _ = comparison.differences(split(a[:tasks]), split(b[:tasks]))
        expected = scipy_stats.ttest_rel(b[:tasks], a[:tasks]).confidence_interval(0.95)
        assert reward.paired and (reward.low, reward.high) == pytest.approx((expected.low, expected.high), abs=accuracy)


def test_results_of_two_protocols_are_no_column():
    a, b, unstated = (result(name, split([0.5, 1.0]), **({"protocol": p} if p else {})) for name, p in (
        ("mine", "eto"), ("theirs", "verl_agent"), ("unstated", None)
    ))  # fmt: skip
    comparison.require_same_protocol([a, a, unstated])
    with pytest.raises(UserError, match=r"two protocols, `eto` \(mine\) and `verl_agent` \(theirs\), are no column"):
        comparison.require_same_protocol([a, unstated, b])


def test_results_without_tasks_are_not_paired():
    a, b = (np.clip(RNG.normal(mean, 0.3, 200), 0, 1) for mean in (0.4, 0.6))
    bare = [split(values).model_copy(update={"values": ()}) for values in (a, b)]
    reward, success = comparison.differences(*bare)
    assert not reward.paired and not reward.bound
    error = math.sqrt(a.var(ddof=1) / 200 + b.var(ddof=1) / 200)
    assert (reward.high - reward.low) / 2 == pytest.approx(1.96 * error, rel=1e-4)
    table = [[round(s.success_rate * 200), round((1 - s.success_rate) * 200)] for s in bare]
    p, error = scipy_stats.chi2_contingency(table, correction=False).pvalue, success.detectable / (1.959964 + 0.841621)
    assert stats.two_sided_p(success.value, error) == pytest.approx(p, rel=1e-4)
    unknown = [s.model_copy(update={"reward_deviation": None}) for s in bare]
    widest, _ = comparison.differences(*unknown)
    assert widest.bound and widest.detectable > reward.detectable  # no rewards in [0, 1] with these means vary by more


def test_the_interval_of_a_difference_of_shares_is_newcombes():
    # Newcombe 1998, table II, method 10: 56 of 70 and 48 of 80, 9 of 10 and 3 of 10, 10 of 10 and 0 of 10.
    for of_a, of_b, ends in (
        ((48, 80), (56, 70), (0.0524, 0.3339)),
        ((3, 10), (9, 10), (0.1705, 0.8090)),
        ((0, 10), (10, 10), (0.6075, 1.0)),
    ):
        sides = [SplitResult(tasks=n, success_rate=k / n) for k, n in (of_a, of_b)]
        (difference,) = comparison.differences(*sides)
        assert (difference.low, difference.high) == pytest.approx(ends, abs=1e-4)


def test_the_smallest_visible_difference_is_seen_in_four_of_five_cases():
    reward, _ = comparison.differences(split(RNG.normal(0.4, 0.1, 60)), split(RNG.normal(0.5, 0.1, 60)))
    true, error = reward.detectable, (reward.high - reward.low) / 2 / 1.959964
    assert f"could be seen (80 % power at level 5 %): {100 * true:.1f} points" in reward.sentence()
    drawn = RNG.normal(true, error, 20_000)
    seen = np.mean([stats.two_sided_p(value, error) < 0.05 for value in drawn])
    assert seen == pytest.approx(0.8, abs=0.01)


@pytest.mark.parametrize("errors", [0.0, 1.96, 8.3, 14.0])
def test_a_large_difference_has_a_small_p_and_never_0(errors):
    assert stats.two_sided_p(-errors, 1.0) == pytest.approx(2 * scipy_stats.norm.sf(errors), rel=1e-6, abs=0.0)


def comparability(a, b):
    """The first sentence of a comparison."""
    return next(comparison.compare([a, b])).removeprefix(f"{a.label} and {b.label}, test: ").strip()


SAME = "comparable: every setting of the evaluation is the same."
DIFFERENT = "NOT comparable (settings that differ: 1; not stated by both: 0)."


def test_comparability_has_three_answers():
    outcome = split([0.0, 0.5, 1.0])
    a = result("a", outcome, seeds="0")
    stated = {k: v for k, v in a.settings.items() if k != "products"}
    unknown = EvaluationResult(label="b", settings=stated, splits=a.splits)
    for other, sentence in (
        (result("b", outcome, seeds="0", temperature=0.7), SAME),
        (result("b", outcome, seeds=0), SAME),  # written as another type
        (result("b", outcome, seeds=1), DIFFERENT),
        (result("b", outcome, seeds="0", step_limit=15), DIFFERENT),
        (result("b", split([0.0, 0.5, 1.0, 1.0]), seeds="0"), DIFFERENT),
        (unknown, "comparability is unknown (settings not stated by both: 1)."),
    ):
        assert comparability(a, other) == sentence
    lines = "\n".join(comparison.compare([a, unknown, result("c", split([1.0, 0.5]), seeds="0")]))
    assert f"a and c, test: {DIFFERENT}" in lines
    assert re.search(r"\| products +\| 1000 +\| not stated +\| unknown", lines)
    for setting, remark in (("step_limit", "differs"), ("temperature", "the model's sampling")):
        sides = [result(label, outcome, **{setting: value}) for label, value in (("a", 5), ("b", 15))]
        assert re.search(rf"\| {setting} .*\| {remark} +\|", "\n".join(comparison.compare(sides)))
    other = EvaluationResult(label="d", settings=SETTINGS, splits={"dev": split([1.0, 0.0])})
    assert "d has no result on split `test`" in "\n".join(comparison.compare([a, other]))


def test_two_trainings_are_told_apart():
    """Their settings differ in nothing that decides comparability, and their weights in how they were trained."""
    outcome = split([0.0, 0.5, 1.0])
    trained = {"stage": "train", "branch": "eto/seed0/iter1", "dpo.beta": 0.1}
    first, other = (
        result(label, outcome).model_copy(
            update={"model": ModelIdentity(name="m", sha256=sha256), "training": training}
        )
        for label, sha256, training in (("a", "1" * 64, trained), ("b", "2" * 64, trained | {"dpo.beta": 0.5}))
    )
    sentence, table, *_ = comparison.compare([first, other])
    assert sentence.strip().endswith("the same; the weights differ (sha256 11111111 and 22222222).")
    assert [[cell.strip() for cell in line.split("|")[1:4]] for line in table.splitlines()[2:]] == [
        ["dpo.beta", "0.1", "0.5"]
    ]
    again = other.model_copy(update={"model": first.model})
    assert "both are of the same weights" in next(comparison.compare([first, again]))


def test_an_evaluation_without_rewards_says_how_its_episodes_ended():
    earned, rest = split([0.0] * 9 + [1.0]), split([0.0] * 10)
    values = [
        value.model_copy(update={"stop": "context", "turns": 2, "flaws": {"no_action": 1}}) for value in rest.values
    ]
    empty = result("b", rest.model_copy(update={"values": (*values[:7], *rest.values[7:])}))
    text = evaluation_result.table([result("a", earned), empty])
    turns = sum(value.turns for value in empty.splits["test"].values)
    assert f"their endings: b, test, 10: context full 7, ended by the environment 3, 7 of {turns} turns without" in text


def test_equal_outcomes_and_equal_differences_show_no_error():
    for a, b, sentence in (
        (0.0, 0.0, "no task differs; this shows nothing about other tasks."),
        (0.25, 0.75, "+50.0 points; all tasks differ equally, so no error can be estimated."),
    ):
        reward, success = comparison.differences(split([a] * 5), split([b] * 5))
        assert reward.sentence() == f"average reward: {sentence}" and "no task differs" in success.sentence()


@pytest.mark.parametrize(
    ("a", "b", "points", "interval"),
    [(0.0, 0.0, "+0.0", "[-1.9, +2.5]"), (1.0, 1.0, "+0.0", "[-2.5, +1.9]"), (0.0, 1.0, "+100.0", "[+96.9, +100.0]")],
)
def test_results_that_are_not_paired_are_not_compared_task_by_task(a, b, points, interval):
    """Wilson's intervals of 0 of 200 and of 0 of 150 end at 1.9 and 2.5 per cent."""
    reward, success = comparison.differences(split([a] * 200), split([b] * 150))
    assert reward.sentence() == f"average reward: {points} points; no error can be estimated."
    assert success.sentence().startswith(f"success rate: {points} points {interval}")
    assert "not paired" in success.sentence()


def write_evaluation(folder, made, episodes, records):
    jsonl.write(folder / "episodes.jsonl", episodes)
    jsonl.write(folder / "records.jsonl", records)
    outputs = {path.name: files.sha256(path) for path in folder.iterdir()}
    (folder / "provenance.json").write_text(made.model_copy(update={"outputs": outputs}).to_json())


def test_a_folder_that_is_not_a_whole_evaluation_names_what_is_missing(root, tmp_path):
    made = provenance.read(root / "results/reference/micro/provenance.json")
    (tmp_path / "records.jsonl").touch()
    with pytest.raises(UserError, match=r": no episodes\.jsonl and no provenance\.json; name the folder of an eval"):
        evaluation_result.read(tmp_path)
    (tmp_path / "provenance.json").touch()
    with pytest.raises(UserError, match=r": no episodes\.jsonl; a suite's evidence has no episodes of evaluations"):
        evaluation_result.read(tmp_path)
    write_evaluation(tmp_path, made, [], [])
    with pytest.raises(UserError, match="every episode ended by an error"):
        evaluation_result.read(tmp_path)


def test_the_settings_are_those_of_an_episode_that_started(root, tmp_path):
    lines = lzma.decompress((root / "results/reference/real/jobs.jsonl.xz").read_bytes()).splitlines()
    job = next(job for job in map(Provenance.from_json, lines) if job.stage == "evaluate")
    prompt = tuple(Message(role=role, content=role) for role in ("user", "assistant", "user"))
    first, second = (episode(task, r).model_copy(update={"prompt": prompt}) for task, r in (("a", 0.0), ("b", 0.5)))
    failed = first.model_copy(update={"prompt": (), "turns": (), "stop": StopReason.ENV_ERROR})
    of_second = record("b", 0.5, split="test", trajectory_id=second.digest())
    folders = {tmp_path / "whole": [first, second], tmp_path / "failed": [failed, second]}
    for folder, episodes in folders.items():
        write_evaluation(folder, job, episodes, [of_second])
    whole, one_failed = map(evaluation_result.read, folders)
    assert comparison.setting_pairs(whole, one_failed, "test") == []


def test_a_file_written_by_hand(tmp_path):
    path = tmp_path / "theirs.yaml"
    split = "splits: {test: {tasks: 200, mean_reward: 0.6}}"
    stated = "{environment: webshop, examples: 1, samples: 2}"
    path.write_text(f"label: theirs\nsettings: {stated}\n{split}\nstarted: 2024-01-31\n")
    theirs = evaluation_result.read(path)
    assert theirs.settings == {"environment": "webshop", "examples": 1, "samples": 2}
    assert (theirs.splits["test"].mean_reward, theirs.started) == (0.6, "2024-01-31"), "a date is its text"
    path.with_suffix(".json").write_text(json.dumps(theirs.model_dump(mode="json")))
    assert evaluation_result.read(path.with_suffix(".json")) == theirs
    assert "60.0" in evaluation_result.table([theirs])


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("label: x", "key `settings`"),
        (
            "label: x\nsettings: {step_limt: 3}\nsplits: {test: {tasks: 2, mean_reward: 0.5}}",
            "did you mean `step_limit`",
        ),
        ("label: x\nsettings: {}\nsplits: {test: {tasks: 2}}", "give `mean_reward` or `success_rate`"),
        ("label: x\nsettings: {}\nsplits: {test: {tasks: 2, mean_reward: 63.2}}", "splits.test.mean_reward"),
        ("a: [", "theirs.yaml"),
        ("\x00", "theirs.yaml"),
    ],
)
def test_a_bad_file_is_one_sentence(tmp_path, text, sentence):
    path = tmp_path / "theirs.yaml"
    path.write_text(text)
    with pytest.raises(UserError, match=sentence) as error:
        evaluation_result.read(path)
    assert str(path) in str(error.value) and "\n" not in str(error.value)


def test_a_result_is_named_if_more_than_a_tenth_of_its_turns_has_a_flaw():
    whole = result("whole", split([0.0, 1.0]))
    (cut, filtered), changes = whole.splits["test"].values, {"stop": StopReason.CONTENT_FILTER}
    values = (cut.model_copy(update={"flaws": {TurnFlaw.CUT: 2}}), filtered.model_copy(update=changes))
    flawed = result("flawed", whole.splits["test"].model_copy(update={"values": values}))
    text = "\n".join(comparison.compare([whole, EvaluationResult.model_validate_json(flawed.model_dump_json())]))
    assert "episodes. flawed, test: 33 % cut at the token limit, 1 of 2 episodes filtered.\n" in text


def test_the_json_of_a_comparison_has_the_numbers_of_its_sentences():
    a, b = (np.clip(RNG.normal(mean, 0.3, 40), 0, 1) for mean in (0.4, 0.6))
    results = [result("A", split(a)), result("B", split(b), step_limit=15), result("C", split(b))]
    differing, same = comparison.comparisons(results)
    assert (differing.comparable, differing.settings) == (False, (("step_limit", 10, 15),))
    assert (same.comparable, same.settings, same.second) == (True, (), "C")
    text = "\n".join(comparison.compare(results))
    assert [line for line in text.splitlines() if " minus " in line] == ["B minus A, test:", "C minus A, test:"]
    for each in same.differences:
        interval = f"{100 * each.value:+.1f} points [{100 * each.low:+.1f}, {100 * each.high:+.1f}]"
        assert f"{interval} (paired by task)" in text and f"{100 * each.detectable:.1f} points." in text
    bare = result("D", split(b)).model_copy(update={"settings": {"environment": "webshop"}})
    elsewhere = bare.model_copy(update={"splits": {"dev": split(b)}})
    unknown, missing, _ = comparison.comparisons([results[0], bare, elsewhere])
    assert (unknown.comparable, missing.comparable, missing.differences) == (None, False, ())
