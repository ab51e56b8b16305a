"""Experts on the real server: the script, recorded runs in the kit's words, and IPR's format."""

from pathlib import Path

import pytest
from envs.intercode_sql.sections import section
from envs.setups import QUIRKS, eto_item, source, write

from coevolve.envs.base import Setup
from coevolve.envs.intercode_sql.domain import INSTRUCTION, experts
from coevolve.envs.intercode_sql.tasks import questions
from coevolve.errors import UserError
from coevolve.records.pairs import DropReason


@pytest.fixture
def make(dump):
    """Makes the setup with some questions and experts under a protocol."""

    def make(asked, trajectories, protocol="fixed", **changes):
        source = {"min_reward": 1.0, **trajectories}
        config = section(dump, asked, experts=source, **changes)
        return Setup(config, "envs.intercode_sql", protocol, QUIRKS[protocol])

    return make


def training(setup):
    return [task for task in questions(setup.config)[0] if task.split == "train"]


def reasons(drops):
    return [(drop.task_id, drop.reason) for drop in drops]


@pytest.mark.parametrize("protocol", ["paper", "fixed"])
def test_the_script_earns_one_on_every_template_question(make, protocol):
    setup = make({"source": "templates", "per_kind": 90}, {"format": "scripted"}, protocol)
    tasks = questions(setup.config)[0]
    found = experts(setup, tasks)
    assert found.drops == ()
    assert [trajectory.task for trajectory in found.trajectories] == list(tasks)
    assert {(trajectory.reward, trajectory.protocol) for trajectory in found.trajectories} == {(1.0, protocol)}
    first = found.trajectories[0]
    said = [message.content for message in first.prompt]
    assert said == [INSTRUCTION, "OK", "List the injured of all rows in death."]
    seen = [turn.observation[:12] for turn in first.turns]
    assert seen == ["[('battle',)", "[('caused_by", "[(0,), (0,),", "[(0,), (0,),"]
    assert first.turns[2].action == "\n```sql\nSELECT injured FROM death\n```"
    assert first.environment.startswith("MySQL")


def test_an_episode_too_short_for_the_expert_is_counted_and_the_script_refused_for_others_questions(make, tmp_path):
    setup = make({"source": "templates", "per_kind": 1}, {"format": "scripted"}, step_limit=3)
    found = experts(setup, questions(setup.config)[0])
    assert found.trajectories == ()
    assert [drop.reason for drop in found.drops] == [DropReason.OVERLONG] * 6
    setup = make({"source": "dev", "dev": development(tmp_path / "dev.json")}, {"format": "scripted"})
    with pytest.raises(UserError, match=r"envs\.intercode_sql\.experts: `scripted` .* `templates` questions only"):
        experts(setup, questions(setup.config)[0])


def development(path):
    """1,034 items in InterCode's format, all over one database."""
    count = "SELECT COUNT(*) FROM singer"
    asked = [{"db": "concert_singer", "gold": f"{count} WHERE Age > {n}", "query": f"Over {n}?"} for n in range(1034)]
    return source(write(path, asked))


#: Items of IPR's files.
SIZES = {"train": 4555, "test": 1015}


def run(number, actions, reward):
    rewards = [*[0.0] * (len(actions) - 1), reward]
    history = {"actions": actions, "observations": ["[]"] * len(actions), "rewards": rewards}
    return {"task_id": number, "query": f"Over {number}?", "turn_history": history, "summary": {"max_reward": reward}}


def test_recorded_runs_are_worded_and_played_again(make, tmp_path):
    right = "SELECT COUNT(*) FROM singer WHERE Age > 40"
    runs = [
        run(40, ["DESCRIBE singer", right], 1.0),
        run(41, ["SELECT Name FROM singer"], 1.0),
        run(42, ["SHOW TABLES"] * 9 + [right.replace("40", "42")], 1.0),
        run(43, [right.replace("40", "43")], 0.5),
    ]
    recorded = write(tmp_path / "runs.json", {str(record["task_id"]): record for record in runs})
    trajectories = {"format": "recorded", "file": source(recorded)}
    setup = make({"source": "dev", "dev": development(tmp_path / "dev.json")}, trajectories)
    tasks = [task for task in questions(setup.config)[0] if task.task_id.endswith(("/40", "/41", "/42", "/43", "/44"))]
    found = experts(setup, tasks)
    (good,) = found.trajectories
    assert (good.task.task_id, good.reward) == ("intercode_sql/dev/40", 1.0)
    assert [turn.text for turn in good.turns] == [
        "Action: \n```sql\nDESCRIBE singer\n```",
        f"Action: \n```sql\n{right}\n```",
        "Action: submit",
    ]
    assert good.turns[1].observation == "[(3,)]"
    assert reasons(found.drops) == [
        ("intercode_sql/dev/42", DropReason.OVERLONG),
        ("intercode_sql/dev/41", DropReason.LOW_REWARD),
        ("intercode_sql/dev/41", DropReason.MISSING_EXPERT),
        ("intercode_sql/dev/43", DropReason.MISSING_EXPERT),
        ("intercode_sql/dev/44", DropReason.MISSING_EXPERT),
    ]


def test_gpt_4s_recorded_runs_still_earn_one(make, upstream):
    runs = upstream / "intercode/ic_sql_multiturn_gpt-4_10_turns.json"
    asked = {"source": "dev", "dev": source(upstream / "intercode/ic_spider_dev.json")}
    setup = make(asked, {"format": "recorded", "file": source(runs)}, "paper")
    found = experts(setup, training(setup))
    if found.trajectories[0].environment.startswith("MySQL"):
        assert len(found.trajectories) >= 590
    assert {trajectory.reward for trajectory in found.trajectories} == {1.0}
    assert all(trajectory.turns[-1].action == "submit" for trajectory in found.trajectories)


def published(number, **more):
    """A trajectory as IPR publishes them."""
    count = "Thought: I count.\nAction: \n```sql\nSELECT COUNT(*) FROM singer\n```"
    said = ("Use SQL.", "OK", "How many?", count, "Observation: [(6,)]", "Thought: Done.\nAction: submit.")
    return eto_item(number, *said, **more)


def test_iprs_published_experts_are_read_as_they_are(make, tmp_path):
    train = [{"db": "concert_singer", "gold": "SELECT 1", "query": "?", "hardness": "easy"}] * 4555
    lists = {name: source(write(tmp_path / f"{name}.json", train[:size])) for name, size in SIZES.items()}
    file = write(tmp_path / "sft.json", [published(1287), published("438"), published(0), published(531, reward=0.4)])
    setup = make({"source": "ipr", **lists}, {"format": "eto", "file": source(file)}, "paper")
    train = training(setup)
    found = experts(setup, train[:4])
    assert [trajectory.task for trajectory in found.trajectories] == list(train[:2])
    turns = found.trajectories[0].turns
    assert [turn.action for turn in turns] == ["```sql\nSELECT COUNT(*) FROM singer\n```", "submit."]
    assert [turn.observation for turn in turns] == ["[(6,)]", ""]
    assert found.trajectories[0].prompt[0].content == "Use SQL."
    assert reasons(found.drops) == [
        ("intercode_sql/ipr/0", DropReason.NOT_IN_SPLIT),
        ("intercode_sql/ipr/531", DropReason.LOW_REWARD),
        ("intercode_sql/ipr/531", DropReason.MISSING_EXPERT),
        ("intercode_sql/ipr/3579", DropReason.MISSING_EXPERT),
    ]


def test_an_id_that_is_none_and_a_changed_file_are_one_sentence(make, tmp_path):
    file = source(write(tmp_path / "sft.json", [published("item 5")]))
    asked = {"source": "dev", "dev": development(tmp_path / "dev.json")}
    setup = make(asked, {"format": "eto", "file": file}, "paper")
    with pytest.raises(UserError, match="item 0: id `item 5` stands for no task"):
        experts(setup, [])
    Path(file["path"]).write_text("[]")
    with pytest.raises(UserError, match=r"envs\.intercode_sql\.experts\.file\.sha256"):
        experts(setup, [])
