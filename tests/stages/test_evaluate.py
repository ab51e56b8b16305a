"""What counts towards a mean under either protocol (quirks 6 and 12), and best-of-N: of a task the best sample."""

import json
import logging
from types import SimpleNamespace

import pytest
from builders import episode, turn
from stages import corridor

from coevolve.pipeline.stages import evaluate
from coevolve.pipeline.stages.evaluate import records
from coevolve.records.episodes import StopReason, Trajectory
from coevolve.records.evaluation import EvalRecord
from coevolve.rollout import EvaluationConfig
from coevolve.storage import jsonl

EPISODES = [
    episode("t", 1.0),
    episode("t", 0.5),
    episode("t", 0.5, stop=StopReason.STEP_LIMIT),
    episode("t", 0.0, stop=StopReason.ENV_ERROR),
]
BROKEN = StopReason.ENV_ERROR
SAMPLES = [
    *[episode("a", r, sample=n) for n, r in enumerate((0.2, 0.9, 0.9))],
    *[
        episode("b", r, stop=stop, sample=n)
        for n, (r, stop) in enumerate(((0.0, BROKEN), (1.0, StopReason.DONE), (0.0, BROKEN)))
    ],
    *[episode("c", 0.0, stop=BROKEN, sample=n) for n in range(3)],
]


def scored(episodes, protocol, seed=0, **options):
    """The records of the episodes under a protocol."""
    return records(episodes, corridor.protocols()[protocol], seed=seed, **options)


@pytest.mark.parametrize(
    ("protocol", "successes"), [("fixed", [True, False, False]), ("paper", [True, True, False, False])]
)
def test_fixed_counts_rewards_of_one_as_success_and_leaves_broken_episodes_out_and_paper_any_ending(
    protocol, successes
):
    found = scored(EPISODES, protocol, seed=3)
    assert [record.success for record in found] == successes
    counted = EPISODES[: len(successes)]
    assert [(r.reward, r.trajectory_id, r.seed) for r in found] == [(e.reward, e.digest(), 3) for e in counted]


def test_the_best_sample_counts_and_of_equally_good_ones_the_first():
    found = scored(SAMPLES, "fixed", samples=3)
    assert [(r.task_id, r.reward, r.samples) for r in found] == [("a", 0.9, 3), ("b", 1.0, 1)]
    assert [r.trajectory_id for r in found] == [SAMPLES[1].digest(), SAMPLES[4].digest()]
    found = scored(SAMPLES, "paper", samples=3)
    assert [(r.task_id, r.reward, r.samples) for r in found] == [("a", 0.9, 3), ("b", 1.0, 3), ("c", 0.0, 3)]


def test_a_task_that_is_listed_twice_has_two_records():
    twice = [episode("a", r, sample=n) for n, r in enumerate((0.1, 0.2, 0.4, 0.3))]
    assert [r.reward for r in scored(twice, "fixed", samples=2)] == [0.2, 0.4]


def test_a_record_of_one_sample_has_the_bytes_it_always_had():
    (record,) = scored([episode("a", 0.5, split="seen")], "fixed", seed=3)
    assert record.to_json() == (
        '{"task_id":"a","split":"seen","seed":3,"environment":"","reward":0.5,"success":false,"stop":"done","turns":1,'
        f'"trajectory_id":"{episode("a", 0.5, split="seen").digest()}"}}'
    )
    several = record.model_copy(update={"samples": 2})
    assert json.loads(several.to_json())["samples"] == 2
    assert [EvalRecord.from_json(r.to_json()) for r in (record, several)] == [record, several]


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory):
    """Runs the stage in the corridor: what it wrote, and its notes."""
    base = tmp_path_factory.mktemp("corridor")
    policy = corridor.policy(base / "policy")
    jsonl.write(base / "tasks.jsonl", corridor.TASKS)
    (base / "instruction.txt").write_text("")

    def run(name, **sections):
        out = base / name
        files = {"policy": policy, "tasks": base / "tasks.jsonl", "instruction": base / "instruction.txt"}
        job = corridor.job("evaluate", out, corridor.suite(**sections), **files)
        notes = evaluate.run(job, out)
        return jsonl.read(out / "episodes.jsonl", Trajectory), jsonl.read(out / "records.jsonl", EvalRecord), notes

    return run


def test_the_stage_keeps_all_episodes_and_records_the_best_of_each_task(evaluated):
    """By default a task is played once, and greedily."""
    episodes, scored, notes = evaluated("several", evaluation=EvaluationConfig(samples=3, temperature=1.0))
    assert [(e.task.task_id, e.sample) for e in episodes] == [(t.task_id, n) for t in corridor.TASKS for n in range(3)]
    assert len({e.turns for e in episodes}) == 9 and {e.sampling.temperature for e in episodes} == {1.0}
    best = [max(episodes[first : first + 3], key=lambda e: e.reward).digest() for first in (0, 3, 6)]
    assert [(r.trajectory_id, r.samples) for r in scored] == [(digest, 3) for digest in best]
    assert (notes.episodes, notes.left_out) == (9, 0)
    episodes, scored, _ = evaluated("default")
    assert [(e.sample, e.sampling.temperature) for e in episodes] == [(0, 0.0)] * 3
    assert [(r.trajectory_id, r.samples) for r in scored] == [(e.digest(), 1) for e in episodes]


def test_the_sampler_plays_in_its_dtype(evaluated, caplog):
    """Half of the bytes for a conversation's keys and values; without the key as in float32, to the token."""
    caplog.set_level(logging.INFO)
    rules = EvaluationConfig(samples=3, temperature=1.0)
    sampler = {dtype: SimpleNamespace(engine="transformers", dtype=dtype) for dtype in (None, "float32", "bfloat16")}
    played = {
        dtype: evaluated(f"dtype-{dtype}", evaluation=rules, sampler=section) for dtype, section in sampler.items()
    }
    megabytes = [record.args[2] for record in caplog.records if record.msg.startswith("KV cache")]
    assert megabytes[0] == megabytes[1] == 2 * megabytes[2]
    turns = {dtype: [episode.turns for episode in episodes] for dtype, (episodes, *_) in played.items()}
    assert turns[None] == turns["float32"] and len(turns["bfloat16"]) == 9


def test_a_record_counts_turns_by_their_first_flaw():
    turns = [
        turn("look", truncated=True),
        turn(None, text="", truncated=True),
        turn(None, text=" \n"),
        turn(None, text="Thought: I am done."),
        turn("look"),
    ]
    (record,) = scored([episode("a", turns=turns)], "fixed")
    assert record.flaws == {"cut": 2, "empty": 1, "no_action": 1}
    assert EvalRecord.from_json(record.to_json()) == record
    (record,) = scored([episode("a", turns=turns)], "fixed", needs_actions=False)  # where a message may end a turn
    assert record.flaws == {"cut": 2, "empty": 1}
