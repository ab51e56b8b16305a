"""The committed gold trajectories are what the simulator and the rules of `gold` give, bit for bit."""

import json
from collections import Counter

from coevolve.chat.prompts import parse_action
from coevolve.config.loading import load_suite
from coevolve.envs.sciworld.gold import canonical, shortened, thoughts, trajectories_of, with_looks
from coevolve.envs.sciworld.tasks import DATA, listed, task_of
from coevolve.records.episodes import Trajectory
from coevolve.storage import files, jsonl

GOLD = DATA / "gold.jsonl"
CHEAP = (
    ("lifespan-longest-lived", 5),
    ("lifespan-longest-lived-then-shortest-lived", 3),
    ("find-animal", 0),
    ("find-plant", 66),
    ("find-non-living-thing", 12),
)


def make(tasks, path):
    journal = jsonl.Journal(path, Trajectory)
    config = load_suite(DATA.parents[1] / "configs/suites/gold.yaml").envs["sciworld"]
    made = trajectories_of(tasks, journal, config)
    journal.close()
    return made


def test_every_committed_trajectory_is_a_success_on_a_training_task(committed):
    assert {(t.reward, t.raw_score, t.agent, t.seconds) for t in committed} == {(1.0, 1.0, "expert", 0.0)}
    train = {task.task_id: task for task in listed("official", "train")}
    assert all(train[t.task.task_id] == t.task for t in committed)
    assert Counter(t.task.kind.split("-")[0] for t in committed) == {"lifespan": 3 * 62, "find": 4 * 150}
    assert len({t.task.task_id for t in committed}) == len(committed)
    assert all(parse_action(turn.text) == turn.action for t in committed for turn in t.turns)
    assert all(turn.text.startswith("Thought: ") for t in committed for turn in t.turns)
    assert files.sha256(GOLD) in (DATA / "README.md").read_text(encoding="utf-8")


def test_regeneration_gives_the_committed_bytes(committed, tmp_path):
    by_id = {t.task.task_id: t.to_json() for t in committed}
    tasks = [task_of(kind, variation, "train") for kind, variation in CHEAP]
    made = make(tasks, tmp_path / "gold.jsonl")
    assert [t.to_json() for t in made] == [line for line in by_id.values() if line in {by_id[t.task_id] for t in tasks}]


def test_generation_resumes_and_answers_in_list_order(committed, tmp_path):
    known = next(t for t in committed if t.task.kind == "find-animal").model_copy(update={"seed": 5})
    jsonl.write(tmp_path / "gold.jsonl", [known])
    missing = next(t for t in committed if t.task.kind == "find-plant")
    made = make([known.task, missing.task], tmp_path / "gold.jsonl")
    assert made == [missing, known]
    assert len(jsonl.read(tmp_path / "gold.jsonl", Trajectory)) == 2


def test_a_walk_becomes_one_teleport_and_a_focus_is_preceded_by_a_look_in_its_room():
    path = ["open door to hallway", "go to hallway", "go to outside", "focus on egg dove", "focus on ant", "wait1"]
    short = with_looks(shortened(path))
    assert short == ["teleport to outside", "look around", "focus on egg dove", "focus on ant", "wait1"]
    actions = ["look around", "focus on a", "teleport to kitchen", "focus on b"]
    assert with_looks(actions) == [*actions[:3], "look around", "focus on b"]
    assert shortened(["go to hallway", "look around"]) == ["teleport to hallway", "look around"]


def test_things_are_called_what_the_simulator_calls_them_and_thoughts_follow_the_focuses():
    actions = ["focus on egg dove", "pick up egg dove", "move egg dove egg in inventory to red box"]
    replies = ["You focus on the dove egg.", "You move the dove to the inventory.", "You move the dove to the red box."]
    assert canonical(actions, replies) == ["focus on dove egg", "pick up dove egg", "move dove egg to red box"]
    lines = thoughts("lifespan-longest-lived-then-shortest-lived", ["look around", "focus on a", "focus on b"])
    assert lines == ["What is here?", "The a lives longest.", "The b lives shortest."]


def test_independent_gold_paths_agree(committed, upstream):
    recorded = json.loads((upstream / "sciworld/micro_gold.json").read_text(encoding="utf-8"))
    theirs = {
        f"sciworld/{item['task']}/{item['variation']}": (
            f"{item['instruction']}\n{item['first_obs']}",
            [tuple(step[:3]) for step in item["steps"]],
        )
        for item in recorded
    }
    ours = {
        t.task.task_id: (t.prompt[-1].content, [(u.action, u.observation, round(u.score, 4)) for u in t.turns])
        for t in committed
    }
    assert ours == theirs
