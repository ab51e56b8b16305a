"""The stage `data` where its choices matter: an evaluated task with the shortest expert, experts that are not used."""

from collections import Counter
from pathlib import Path

import pytest
from builders import episode
from small_run import job_of

from coevolve.config.loading import load_suite
from coevolve.errors import UserError
from coevolve.pipeline.plan import Plan
from coevolve.pipeline.stages import data
from coevolve.records.episodes import Message, Task, Trajectory
from coevolve.records.pairs import Drop, DropReason
from coevolve.storage import files, jsonl

KIND = "find-animal"
LISTS = ("kinds=[find-animal]", "lists=eto", "sft=null", "explore=null", "evaluate=null", "explore_sft=true")


@pytest.fixture(scope="module")
def made(root, tmp_path_factory):
    """The stage's result for ETO's lists of one task type under `paper`, which keeps the overlap with evaluation.

    The experts of evaluated tasks have a single turn, those of two other training tasks a low reward; the file also
    holds experts of the other task types.
    """
    folder = tmp_path_factory.mktemp("data")
    gold = jsonl.read(root / "data/sciworld/gold.jsonl", Trajectory)
    path, experts = folder / "experts.jsonl", "envs.sciworld.experts"
    settings = ["protocol=paper", *(f"envs.sciworld.tasks.{item}" for item in LISTS), f"{experts}.min_reward=0.5"]
    evaluated = run(root, settings, folder / "lists")[1]
    of_kind = [trajectory for trajectory in gold if trajectory.task.kind == KIND]
    short = [of_kind[0].model_copy(update={"task": task, "turns": of_kind[0].turns[:1]}) for task in evaluated]
    low = {trajectory.task.task_id for trajectory in of_kind[:2]}
    others = [each.model_copy(update={"reward": 0.25}) if each.task.task_id in low else each for each in gold]
    jsonl.write(path, [*short, *others])
    settings += [f"{experts}.path={path}", f"{experts}.sha256={files.sha256(path)!r}"]
    return *run(root, settings, folder / "made"), low


def run(root, settings, out):
    """The notes of the stage, the evaluated tasks and the folder of its files."""
    plan = Plan(load_suite(root / "configs/suites/smoke.yaml", settings))
    planned = plan.require("data", {"env": "sciworld"})
    inputs = {name: str(root / path) for name, path in planned.inputs.items()}
    out.mkdir()
    notes = data.run(job_of(plan, planned, out, inputs), out)
    return notes, jsonl.read(out / "evaluate.jsonl", Task), out


def test_the_example_is_of_no_evaluated_task_though_those_are_the_shortest(made):
    notes, evaluate, out, _ = made
    experts = jsonl.read(out / "sft.jsonl", Trajectory)
    evaluated = {task.task_id for task in evaluate}
    assert notes["still_overlapping"] == 5
    assert sum(len(expert.turns) == 1 and expert.task.task_id in evaluated for expert in experts) > 0
    (shown,) = jsonl.read(out / "example.json", Trajectory)
    others = [expert for expert in experts if expert.task.task_id not in evaluated]
    assert shown.task.task_id not in evaluated and len(shown.turns) == min(len(other.turns) for other in others) > 1


def test_drops_are_those_of_training_tasks_with_their_reasons(made):
    notes, _, out, low = made
    drops, explored = jsonl.read(out / "drops.jsonl", Drop), jsonl.read(out / "explore.jsonl", Task)
    experts = {expert.task.task_id for expert in jsonl.read(out / "sft.jsonl", Trajectory)}
    reasons = {reason: {drop.task_id for drop in drops if drop.reason is reason} for reason in DropReason}
    assert reasons.pop(DropReason.LOW_REWARD) == low and len(low) == 2
    assert reasons.pop(DropReason.MISSING_EXPERT) == {task.task_id for task in explored} - experts >= low
    assert not any(reasons.values())
    assert notes["drops"] == dict(Counter(drop.reason.value for drop in drops))
    assert Path(out / "experts.jsonl").read_bytes() == (out / "sft.jsonl").read_bytes()


def test_overlapping_splits_stop_fixed_and_are_counted_by_paper(root, tmp_path):
    """ETO's seen items overlap its training list: `fixed` refuses to keep them, `paper` keeps and counts them."""
    lists = [f"envs.sciworld.tasks.{item}" for item in (*LISTS, "kinds=null")]
    with pytest.raises(UserError, match=r"54 tasks are in training and in evaluation.*`overlap: remove`"):
        run(root, [*lists, "protocols.fixed.overlap=keep"], tmp_path / "kept")
    for protocol, left in (("fixed", 0), ("paper", 54)):
        notes, *_ = run(root, [*lists, f"protocol={protocol}"], tmp_path / protocol)
        assert (notes["overlap"], notes["still_overlapping"]) == (54, left)


def test_agents_are_asked_in_the_words_their_experts_were_asked_in():
    plain = episode("t", 1.0)
    opening = Message(role="user", content="You are in a text world."), Message(role="assistant", content="OK")
    opened = plain.model_copy(update={"prompt": (*opening, *plain.prompt)})
    assert data.instruction([plain, plain]) == ""
    assert data.instruction([opened]) == "You are in a text world."
    with pytest.raises(UserError, match="2 different ways"):
        data.instruction([plain, opened])
