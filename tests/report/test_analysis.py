import contextlib
import json
import math
import shutil
import weakref
from collections import Counter
from pathlib import Path

import builders
import pytest
from builders import turn
from report.explored import LABELS, episode, explored, provenance, run, train_report

from coevolve.config.loading import load_suite, read_machine
from coevolve.errors import UserError
from coevolve.pipeline.plan import Plan
from coevolve.pipeline.product_runs import EXAMPLES
from coevolve.pipeline.suite_files import paths_of
from coevolve.records.base import Record
from coevolve.records.episodes import StopReason, Trajectory
from coevolve.records.evaluation import EpisodeNotes, ResultFile
from coevolve.records.pairs import KindCount, PairingSummary, PairKind, TrajectoryCount
from coevolve.report import analysis, examples, job_history, learnability, pair_counts
from coevolve.storage import files, jsonl
from coevolve.storage import provenance as provenance_file

#: Config and wildcards of a preference training.
DPO = {"dpo": {"epochs": 1.0, "batch_size": 1}}
TARGET = {"env": "webshop", "agent": "target", "branch": "eto/seed0/iter1"}


NAMES = {"method": "eto", "env": "sciworld", "seed": 0, "iteration": 1, "agent": "target"}


def diversity(*episodes, experts=()):
    """The values that were measured of an agent's episodes."""
    found = analysis.diversity(episodes, NAMES, {each.task.task_id: analysis.actions(each) for each in experts})
    return {name: value for name, value in found if name not in NAMES and value is not None}


def test_shares_add_up_at_every_threshold():
    one = explored("eto", {"a": 1.0, "b": 0.75, "c": 0.6, "d": 0.59, "e": 0.0, "f": -0.2})
    at_60, at_80 = analysis.shares(one, 0.6), analysis.shares(one, 0.8)
    assert (at_60.success, at_60.hard_negative, at_60.failure) == pytest.approx((1 / 6, 2 / 6, 3 / 6))
    assert (at_80.hard_negative, at_80.failure) == pytest.approx((0, 5 / 6))
    assert at_60.between == pytest.approx(3 / 6) and at_60.episodes == 6


def test_diversity_by_hand():
    known, refused = "You see it.", "No known action matches that input."
    found = diversity(
        episode("a", 0.0, ("look", "look", "go"), observations=(known, refused, known)),
        episode("b", 0.5, ("look", "look", "go")),
        episode("c", 0.0, ("go", "look")),
        episode("d", 1.0, ("win",)),
        experts=(episode("a", 1.0, ("look", "go")), episode("c", 1.0, ("stay",))),
    )
    entropy = -(2 / 3 * math.log2(2 / 3) + 1 / 3 * math.log2(1 / 3))
    assert found == pytest.approx({
        "failures": 3, "distinct": 2 / 3, "commonest": 2 / 3, "repeated": 2 / 5, "invalid": 1 / 8,
        "first_entropy": entropy, "distance": (1 / 3 + 1) / 2,
    })  # fmt: skip
    assert diversity(episode("a", 1.0)) == {"failures": 0}
    one = {"failures": 1, "distinct": 1, "commonest": 1, "invalid": 0, "first_entropy": 0}
    assert diversity(episode("a", 0.0, ("look",))) == one, "of one action without an expert, two values are unknown"


@pytest.mark.parametrize(
    ("env", "turns"),
    [
        ("sciworld", [("eat moon", "No known action matches that input.", True), ("look", "A room.", False)]),
        (
            "intercode_sql",
            [("SELECT", "Error executing query: You have an error", True), ("SELECT 1", "[(1,)]", False)],
        ),
        (
            "webshop",  # a page is compared with the one before
            [
                ("search[tea]", "page [SEP] Red", False),
                ("click[red]", "page [SEP] Red", False),
                ("click[buy now]", "page [SEP] Red", True),
                ("click[buy now]", "page", False),
                ("hello", "page", True),
            ],
        ),
        ("elsewhere", [("go", "same", False), ("anything", "same", False), (None, "same", True)]),
    ],
)
def test_refused_actions(env, turns):
    """A turn without an action is invalid anywhere."""
    played = [turn(action, after) for action, after, _ in turns]
    assert analysis.refusals(builders.episode(env=env, turns=played)) == [refused for *_, refused in turns]


def test_edit_distance_by_hand():
    assert analysis.edit_distance("kitten", "sitting") == analysis.edit_distance("sitting", "kitten") == 3 / 7
    assert analysis.edit_distance([], []) == 0.0


def test_drift_weighs_steps_by_their_pairs():
    def step(chosen, pairs, kind="expert_target"):
        return {f"{kind}/pairs": pairs, f"{kind}/logps/chosen": chosen, f"{kind}/logps/rejected": 2 * chosen}

    history = [*map(step, (-1.0, -4.0, -9.0, -9.0, -2.0), (1, 2, 1, 1, 3)), step(-6.0, 1, "failure_failure")]

    def drift(steps, rows):
        """Of a training on this many rows, one a step."""
        job = provenance("m/e/policy", config=DPO, wildcards=TARGET, notes=train_report(steps, rows=rows))
        return [(each.kind, each.chosen_first, each.chosen_last, each.rejected_first, each.rejected_last)
                for each in analysis.drift(job, {"method": "eto", "seed": 0, "iteration": 1})]  # fmt: skip

    assert drift(history, 2) == [("expert_target", -3.0, -2.0, -6.0, -4.0)]
    assert drift([], 2) == []
    assert drift(history[:4], 4) == [("expert_target", -3.0, -9.0, -6.0, -18.0)], "of one epoch, its halves"


def test_compute_adds_up(root):
    jobs = [
        provenance("m/e/policy", seconds=3600.0, notes=trained()),
        provenance("m/e/eval", stage="table1", seconds=1800.0, notes=played(7)),
    ]
    found = analysis.compute("eto", jobs, read_machine(root / "configs/machines/h100.yaml"))
    assert (found.jobs, found.hours, found.gpu_hours) == (2, 1.5, 4.0)
    assert (found.trained_tokens, found.sampled_tokens) == (9, 7)


def test_printed_numbers_are_means_over_seeds():
    found = [analysis.shares(explored("eto", {"a": r, "b": 0.0}, seed=s), 0.6) for s, r in enumerate((1.0, 0.0))]
    text = analysis.markdown(analysis.Analysis(shares=found), LABELS)
    assert "| ETO | ScienceWorld | 0.6 | 2 | 0.25 |" in " ".join(text.split()) and "None." in text
    assert "sciworld" not in text and "## How explorations ended\n" in text


def summarised(candidates, pairs, drops):
    """The summary of a pairing of one kind."""
    count = KindCount(candidates=candidates, pairs=pairs, swapped=0, cut=0, drops=drops)
    sides = TrajectoryCount(total=candidates + 1, paired=pairs + 1, dropped=candidates - pairs, not_used=0)
    return PairingSummary(kinds={"expert_target": count}, without_kind={}, trajectories=sides, empty=())


def test_pair_counts_are_printed_in_words():
    of = ResultFile("", "sciworld", "eto", "tiny", 0, 1)
    none = "No expert_target pair could be built from 3 candidates: 3 not_a_failure."
    summary = summarised(candidates=3, pairs=0, drops={"not_a_failure": 3}).model_copy(update={"empty": (none,)})
    _, table, *rest = pair_counts.markdown([(of, summary)], {"sciworld": 1200}, LABELS).split("\n\n")
    row = [cell.strip() for cell in table.splitlines()[2].strip("|").split("|")]
    assert row == ["ETO", "ScienceWorld", "0", "1", "target", "expert over target", "3", "0", "not a failure 3"]
    assert [line for text in rest for line in text.splitlines()] == [
        "* ScienceWorld: 1,200 training tasks or experts left out before training.",
        "* ETO, ScienceWorld, seed 0, iteration 1, target agent: "
        "No expert over target pair could be built from 3 candidates: 3 not a failure.",
    ]
    other = summarised(candidates=3, pairs=2, drops={"tie": 1})
    other.kinds[PairKind.EXPERT_TARGET] = other.kinds[PairKind.EXPERT_TARGET].model_copy(update={"other_prompt": 2})
    retold = pair_counts.markdown([(of, other)], {}, LABELS)
    assert "In 2 pairs the rejected side was played under another text of the task." in retold


def test_methods_say_how_often_a_trained_failure_agent_explores(root):
    """In one iteration co-evolving's explores as the frozen one does; the paper's three train it twice before."""
    methods = ("eto", "coevolve", "frozen_failure_agent", "failure_agent_first", "iterations_2")
    given = ("without=[intercode_sql]", "iterations={sciworld: 1, webshop: 3}")
    suite = load_suite(root / "configs/suites/paper.yaml", given)
    recipes = suite.recipes
    text = pair_counts.methods_markdown(suite, methods, [], [], LABELS)
    lines = [line[2:] for line in text.splitlines() if line.startswith("* ")]
    said = {line.partition(":")[0]: line.partition("that an exploration follows: ")[2] for line in lines}
    assert said == {
        recipes["eto"].label: "",
        recipes["coevolve"].label: "ScienceWorld 0 (as if frozen), WebShop 2",
        recipes["frozen_failure_agent"].label: "",
        recipes["failure_agent_first"].label: "ScienceWorld 1, WebShop 3",
        recipes["iterations_2"].label: "ScienceWorld 1, WebShop 1",  # shares co-evolving's, with a number of its own
    }


def sides(folder, ours, iteration=2, seed=0):
    eto = {"a": 0.2, "b": 0.9, "c": 0.5, "d": 0.5, "e": 0.1}
    return [
        explored("eto", eto, iteration=iteration, seed=seed, folder=folder),
        explored("coevolve", ours, iteration=iteration, seed=seed, agent="failure", folder=folder),
    ]


def test_examples_follow_the_rule(tmp_path):
    found = sides(tmp_path, {"a": 0.7, "b": 0.1, "c": 0.5, "d": 1.0, "e": 0.6})
    found += sides(tmp_path, {"a": 0.9}, iteration=1) + sides(tmp_path, {"a": 0.9}, seed=1)
    found += [explored("eto", {"a": 0.0}, iteration=3)]
    chosen = examples.examples(found, "sciworld", 2)
    assert [(e.eto.task.task_id, e.eto.reward, e.failure.reward, e.iteration, e.seed) for e in chosen] == [
        ("b", 0.9, 0.1, 2, 0), ("a", 0.2, 0.7, 2, 0),
    ]  # fmt: skip
    assert [e.eto.task.task_id for e in examples.examples(found, "sciworld", 9)] == ["b", "a", "e"]
    assert examples.examples(found, "webshop", 2) == []


def test_examples_are_shown_side_by_side_and_escaped():
    eto = episode("a", 0.2, ("look | <b>", "go"))
    example = examples.Example("sciworld", 2, 0, eto, episode("a", 0.7, ("x" * 500,), agent="failure"))
    text = examples.markdown([example], {"sciworld": "ScienceWorld"})
    assert examples.RULE in text and "## ScienceWorld, a" in text and "> Do a" in text
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    assert (
        r"**look \| \<b\>**" in rows[1]
        and "ETO: reward 0.20, 2 turns, ended by the environment" in rows[0]
        and f"**{'x' * 160}...**" in rows[1]
    )
    assert rows[2].endswith("|  |")
    assert "There is no instruction that both failed" in examples.markdown([], {})


@pytest.fixture
def finished(made, tmp_path):
    """The plan of a copy of the finished suite, in whose folder the test runs."""
    with contextlib.chdir(shutil.copytree(made, tmp_path / "run", symlinks=True)):
        yield Plan(load_suite("configs/glance.yaml"))


def run_product(plan, stage, out):
    return run(plan, plan.products[stage], out, out / "work")


def test_a_failure_of_the_environment_is_no_failure_of_an_agent(finished, tmp_path):
    def products(name):
        for stage in ("failures", "figure2", "examples"):
            run_product(finished, stage, tmp_path / name / stage)
        return [(tmp_path / name / file).read_bytes() for file in files]

    files = ("failures/analysis.json", "figure2/figure2.json", "examples/examples.md")
    inputs = finished.products["failures"].inputs
    paths = {Path(file.path) for file in inputs["explorations"]}
    without = products("without")
    for path in paths:
        episodes = jsonl.read(path, Trajectory)
        failed = episode("c", 0.0, env=episodes[0].task.env, agent=episodes[0].agent, stop=StopReason.ENV_ERROR)
        jsonl.write(path, [*episodes, failed.model_copy(update={"turns": ()})])
    for path in map(Path, paths_of(inputs["experts"])):
        experts = jsonl.read(path, Trajectory)
        others = [each.model_copy(update={"turns": each.turns[:1], "sample": each.sample + 1}) for each in experts]
        jsonl.write(path, [*experts, *others])
    assert products("with") == without, "nor is a second expert of a task the one that failures are compared with"
    for path in paths:
        jsonl.write(path, [each for each in jsonl.read(path, Trajectory) if each.stop is StopReason.ENV_ERROR])
    assert json.loads(products("alone")[0])["shares"] == []


def test_products_hold_few_episodes_and_pairs_at_once(finished, tmp_path, monkeypatch):
    """Counted in the stages as they are: a record is alive from the line that it is read from to its collection."""
    alive, most, total, read = Counter(), Counter(), Counter(), Record.from_json.__func__

    def counted(kind, line):
        record, name = read(kind, line), kind.__name__
        alive[name] += 1
        total[name] += 1
        most[name] = max(most[name], alive[name])
        weakref.finalize(record, alive.subtract, [name])
        return record

    monkeypatch.setattr(Record, "from_json", classmethod(counted))
    for stage in ("failures", "regime", "figure2", "verdicts", "examples"):
        most.clear()
        total.clear()
        run_product(finished, stage, tmp_path / stage)
        limit = 2 + 2 * EXAMPLES * len(finished.suite.envs) if stage == "examples" else 2
        assert total["Trajectory"] >= 4 * limit and most["Trajectory"] <= limit, stage
        assert most["PreferencePair"] <= 2 and (total["PreferencePair"] > 10) == (stage == "failures"), stage
    path = tmp_path / "practice.jsonl"
    jsonl.write(path, [episode(f"t{step}", 0.5).model_copy(update={"seed": step}) for step in range(50)])
    most.clear()
    assert len(learnability.scores(jsonl.stream(path, Trajectory))) == 50 and most["Trajectory"] <= 2


def test_the_products_of_explorations(finished):
    found = json.loads(Path("results/glance/paper/failures/analysis.json").read_text())
    assert {row["threshold"] for row in found["shares"]} == {0.6, 0.7, 0.8}
    assert found["drift"] and {row["distance"] is None for row in found["diversity"]} == {False}
    records = {path: provenance_file.read(Path(path)) for path in finished.products["failures"].inputs["provenance"]}
    for row in found["compute"]:
        jobs = finished.jobs(paths_of(finished.records([row["method"]], every_model=True)))
        behind = [record for path, record in records.items() if finished.job(path) in jobs]
        assert row["jobs"] == len(behind) > 2
        assert row["hours"] == pytest.approx(sum(each.seconds for each in behind) / 3600)


def trained():
    """The notes of a preference training of one step."""
    history = [{f"expert_target/{name}": -1.0 for name in ("pairs", "logps/chosen", "logps/rejected")}]
    return train_report(history)


def played(tokens):
    """The notes of an evaluation of one episode."""
    return EpisodeNotes(
        episodes=1, environments=("WebShop",), mean_reward=0.5, failures=1, stops={"done": 1}, format_errors=0,
        truncated_turns=0, retried=0, tokens=tokens, sampled_tokens=tokens, left_out=0,
    )  # fmt: skip


@pytest.fixture
def history(tmp_path):
    """An evaluation of a policy that was trained on pairs; the other policy's file comes from outside."""
    jobs = [
        provenance("m/e/eval", ["m/e/policy/policy.json", "m/e/other/policy.json"], notes=played(5)),
        provenance("m/e/policy", ["m/e/pairs/pairs.jsonl"], config=DPO, wildcards=TARGET, notes=trained(),
                   started="2"),
        provenance("m/e/pairs", started="1"),
        provenance("m/e/alone"),
    ]  # fmt: skip
    for number, job in enumerate(jobs):
        files.write_bytes(tmp_path / f"{number}.json", job.to_json().encode())
    return job_history.read(sorted(tmp_path.glob("*.json")))


def test_drift_is_that_of_the_jobs_behind_a_result(history, tmp_path):
    behind = job_history.behind(history, [Path("m/e/eval/records.jsonl")])
    assert [job.result for job in behind] == ["m/e/eval", "m/e/pairs", "m/e/policy"], "in the order in which they began"
    with pytest.raises(UserError, match="the provenance of `m/e/nowhere` was not given"):
        job_history.behind(history, [Path("m/e/nowhere/records.jsonl")])
    branch = {"method": "eto", "seed": 0, "iteration": 1}
    (drift,) = [drift for job in behind for drift in analysis.drift(job, branch)]
    assert (drift.env, drift.agent, drift.kind) == ("webshop", "target", "expert_target")
    with pytest.raises(UserError, match="a second provenance of `m/e/eval`"):
        job_history.read([tmp_path / "0.json"] * 2)


def test_rewards_of_failures_are_counted_in_ten_bins():
    rewards = [-0.4, 0.0, 0.05, 0.1, 0.29, 0.3, 0.7, 0.999, 1.0]
    counted = analysis.failure_rewards(explored("eto", {"a": rewards}))
    assert counted.counts == (3, 1, 1, 1, 0, 0, 0, 1, 0, 1), "a success is no failure"
    assert (counted.method, counted.env, counted.agent, counted.iteration) == ("eto", "sciworld", "target", 1)
