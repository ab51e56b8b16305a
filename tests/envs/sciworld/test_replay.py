"""Golden trajectories replay exactly, and a record that was tampered with does not."""

from types import SimpleNamespace

import pytest
from envs.sciworld.recorded_paths import ROUNDING, recorded_paths

from coevolve.envs.experts import fixed_script, play_expert
from coevolve.envs.replay import replay, replay_all
from coevolve.envs.sciworld.env import SciWorld
from coevolve.envs.sciworld.installation import replay_file, run
from coevolve.envs.sciworld.tasks import DATA, task_of
from coevolve.errors import UserError
from coevolve.records.episodes import StopReason
from coevolve.storage import jsonl


def tampered(trajectory, number, **change):
    turns = list(trajectory.turns)
    turns[number] = turns[number].model_copy(update=change)
    return trajectory.model_copy(update={"turns": tuple(turns)})


def test_committed_gold_replays_exactly_also_in_part(env, committed):
    summary = replay_all(env, committed[::32])
    assert (summary.episodes, summary.different) == (25, 0)
    assert summary.turns == sum(len(trajectory.turns) for trajectory in committed[::32])
    lines: list[str] = []
    assert run(SimpleNamespace(file=DATA / "gold.jsonl", limit=2), lines.append) == 0
    turns = sum(len(trajectory.turns) for trajectory in committed[:2])
    assert lines == [f"2 episodes, {turns} turns compared; 0 episodes differ"]


@pytest.mark.slow
def test_all_committed_gold_replays_exactly():
    summary = replay_file(DATA / "gold.jsonl")
    assert (summary.episodes, summary.different) == (786, 0)


def test_each_kind_of_difference_is_found(env, committed):
    gold = committed[0]
    other_start = gold.prompt[0].model_copy(update={"content": "elsewhere"})
    cases = {
        "start": gold.model_copy(update={"prompt": (other_start,)}),
        "observation": tampered(gold, 1, observation="nothing"),
        "score": tampered(gold, 0, score=0.25),
        "ending": gold.model_copy(update={"turns": gold.turns[:-1], "reward": gold.turns[-2].score}),
        "reward": gold.model_copy(update={"reward": 0.5}),
    }
    for what, record in cases.items():
        assert [difference.what for difference in replay(env, record)] == [what]
    assert replay(env, cases["score"])[0].turn == 0
    not_started = {"prompt": (), "turns": (), "reward": 0.0, "stop": StopReason.ENV_ERROR, "error": "no heap"}
    (difference,) = replay(env, gold.model_copy(update=not_started))
    assert (difference.what, difference.turn, difference.expected) == ("start", -1, "no heap")


def test_episodes_of_either_protocol_replay_exactly(simulator, tmp_path):
    """Under `paper`, a format error in the last turn leaves no reward."""
    path, texts = tmp_path / "episodes.jsonl", ["Action: teleport to outside", "I wonder."]
    for protocol, reward in (("paper", 0.0), ("fixed", 1 / 6)):
        env = SciWorld(simulator, "easy", format_error_resets=protocol == "paper")
        episode = play_expert(env, task_of("find-animal", 0, "train"), fixed_script(texts), "", protocol)
        env.close()
        jsonl.write(path, [episode])
        assert (replay_file(path).differences, episode.reward) == ((), pytest.approx(reward))


@pytest.mark.slow
def test_paths_recorded_without_fixed_hash_codes_start_alike_up_to_order(env, upstream):
    """These were recorded under Java's default flags, where the order of things in a list is chance."""
    summary = replay_all(env, [*recorded_paths(upstream / "sciworld/gold_218.json")], ROUNDING)
    starts = [difference for difference in summary.differences if difference.what == "start"]
    assert summary.episodes == 2 * 218
    assert summary.different < 0.4 * summary.episodes
    assert starts and all(sorted(one.expected) == sorted(one.actual) for one in starts)


def test_a_file_without_episodes_is_the_users_error(tmp_path):
    for content in ('{"a": 1}\n', "[{}]\n", ""):
        path = tmp_path / "other.jsonl"
        path.write_text(content, encoding="utf-8")
        with pytest.raises(UserError, match=r"other\.jsonl"):
            replay_file(path)
