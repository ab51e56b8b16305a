"""RFT and IPR as their stages, in a small real world with a small real policy."""

import json
import logging

import pytest
from stages import corridor

from coevolve import seeds
from coevolve.chat.chat_template import Renderer
from coevolve.methods.settings import SelectionConfig, StepsConfig
from coevolve.pipeline.stages import rft_train, rollout, select, sft, steps, train
from coevolve.pipeline.stages.parts.environment import env_setup
from coevolve.pipeline.stages.parts.training import tokenize
from coevolve.policies import loading
from coevolve.records.episodes import Trajectory
from coevolve.records.pairs import Drop, PairKind, PreferencePair
from coevolve.storage import jsonl, policy_dir


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """The inputs of the stages, the policy's rollouts made by theirs."""
    base = tmp_path_factory.mktemp("corridor")
    found = {name: base / f"{name}.jsonl" for name in ("tasks", "experts")} | {"instruction": base / "instruction.txt"}
    jsonl.write(found["tasks"], corridor.TASKS)
    jsonl.write(found["experts"], corridor.experts(base))
    found["instruction"].write_text("")
    found["policy"] = corridor.policy(base / "policy")
    found["scorer"] = corridor.policy(base / "scorer", seed=2)
    played = {name: found[name] for name in ("tasks", "instruction", "policy")}
    rollout.run(corridor.job("rollout", base / "rollout", corridor.suite(), **played), base / "rollout")
    return {**found, "target": base / "rollout" / "episodes.jsonl"}


def taken(files, *names):
    return {name: files[name] for name in names}


@pytest.fixture(scope="module")
def selected(files, tmp_path_factory):
    """Everything is a success here: a policy from nothing has no real one."""
    out = tmp_path_factory.mktemp("select")
    everything = SelectionConfig(min_reward=0.0, per_task=None, with_experts=True, experts="sft")
    sections = corridor.suite(selection=everything)
    select.run(corridor.job("select", out, sections, **taken(files, "experts", "target")), out)
    return out


def test_select_writes_experts_and_own_episodes_with_the_ids_that_were_sampled(selected, files):
    experts, own = (jsonl.read(files[name], Trajectory) for name in ("experts", "target"))
    kept = jsonl.read(selected / "selected.jsonl", Trajectory)
    drops = jsonl.read(selected / "drops.jsonl", Drop)
    assert kept[: len(experts)] == experts and len(kept) + len(drops) == len(experts) + len(own)
    counts = json.loads((selected / "summary.json").read_text())
    assert counts["rollouts"]["selected"] == len(kept) - len(experts) > 0
    renderer = Renderer(loading.load_tokenizer(files["policy"].parent))
    for trajectory, row in zip(kept, tokenize(kept, renderer), strict=True):
        learned = [token for token, acted in zip(row.input_ids, row.action_mask, strict=True) if acted]
        sampled = [token for turn in trajectory.turns for token in turn.token_ids]
        assert trajectory.agent == "expert" or [t for t in learned if t != renderer.end_of_turn] == [
            t for t in sampled if t != renderer.end_of_turn
        ]


def test_select_says_if_no_episode_was_good_enough(files, tmp_path, caplog):
    sections = corridor.suite()
    with caplog.at_level(logging.WARNING):
        counts = select.run(corridor.job("select", tmp_path, sections, **taken(files, "experts", "target")), tmp_path)
    assert counts["rollouts"]["selected"] == 0 and "None of the agent's 6 episodes" in caplog.text


def test_select_takes_all_experts_without_an_exploring_agent(files, tmp_path):
    experts = jsonl.read(files["experts"], Trajectory)
    (tmp_path / "explored").mkdir()
    others = [
        each.model_copy(update={"task": each.task.model_copy(update={"task_id": "other"})}) for each in experts[:1]
    ]
    jsonl.write(tmp_path / "explored/experts.jsonl", others)
    everything = SelectionConfig(min_reward=1.0, per_task=None, with_experts=True, experts="all")
    inputs = taken(files, "experts") | {"explored_experts": tmp_path / "explored/experts.jsonl"}
    counts = select.run(corridor.job("select", tmp_path, corridor.suite(selection=everything), **inputs), tmp_path)
    assert jsonl.read(tmp_path / "selected.jsonl", Trajectory) == [*experts, *others]
    assert counts["rollouts"]["total"] == 0


def test_rft_train_learns_from_what_was_selected(selected, files, tmp_path):
    """From the start, not from the policy that explored; the same as fine-tuning on the same rows."""
    sections = corridor.suite()
    inputs = {"start": files["scorer"], "selected": selected / "selected.jsonl"}
    rft_train.run(corridor.job("rft_train", tmp_path / "job", sections, **inputs), tmp_path / "rft_train")
    same = {"start": files["scorer"], "experts": selected / "selected.jsonl"}
    sft.run(corridor.job("rft_train", tmp_path / "again", sections, **same), tmp_path / "sft")
    other = {"start": files["scorer"], "experts": files["experts"]}
    sft.run(corridor.job("rft_train", tmp_path / "third", sections, **other), tmp_path / "experts")
    refs = {name: policy_dir.describe(tmp_path / name).sha256 for name in ("rft_train", "sft", "experts")}
    assert refs["rft_train"] == refs["sft"] != refs["experts"]


def stepped(files, folder):
    inputs = taken(files, "tasks", "experts", "target", "policy", "scorer", "instruction")
    sections = corridor.suite(steps=StepsConfig(samples=2, temperature=0.8, margin=0.01, every=1))
    return steps.run(corridor.job("steps", folder, sections, **inputs), folder)


@pytest.fixture(scope="module")
def refined(files, tmp_path_factory):
    out = tmp_path_factory.mktemp("steps")
    return stepped(files, out), out


def test_both_players_of_a_job_play_in_worlds_of_one_chance(files, tmp_path):
    """Under protocol `paper` a shop's prices are drawn with it."""
    first, again, other = (
        corridor.job("steps", tmp_path / folder, corridor.suite()) for folder in ("first", "first", "other")
    )
    assert env_setup(first).chance == env_setup(first).chance != env_setup(other).chance
    assert env_setup(again).chance == env_setup(first).chance, "a job that was killed goes on in the same worlds"


def test_steps_pairs_whole_trajectories_and_steps_and_counts_the_rest(refined):
    """A policy from nothing never acts: a step is worth what the expert had by then."""
    summary, out = refined
    pairs, drops = jsonl.read(out / "pairs.jsonl", PreferencePair), jsonl.read(out / "drops.jsonl", Drop)
    for kind in (PairKind.EXPERT_TARGET, PairKind.EXPERT_STEP):
        count = summary.kinds[kind]
        assert count.pairs == sum(pair.kind is kind for pair in pairs)
        assert count.candidates == count.pairs + sum(drop.kind is kind for drop in drops)
    assert summary.kinds[PairKind.EXPERT_TARGET].candidates == 6
    assert summary.kinds[PairKind.EXPERT_STEP].model_dump() == {
        "candidates": 12, "pairs": 5, "swapped": 0, "cut": 0, "other_prompt": 0, "drops": {"margin": 7},
    }  # fmt: skip
    assert [(len(p.prompt) // 2, p.task_id) for p in pairs if p.kind is PairKind.EXPERT_STEP] == [
        (4, "door0"), (1, "door1"), (4, "door1"), (2, "door2"), (4, "door2"),
    ]  # fmt: skip
    assert summary.played["policy"]["episodes"] == len(jsonl.read(out / "explored.jsonl", Trajectory)) == 12
    assert summary.played["scorer"]["episodes"] == 2 * (2 * 12 - 3)  # both sides, but for the experts' last steps
    sampled = sum(player["tokens"] for player in summary.played.values())
    written = json.loads((out / "summary.json").read_text())
    assert written | {"sampled_tokens": sampled} == summary.model_dump(mode="json")


def test_the_agent_and_the_scorer_draw_from_seeds_and_temperatures_of_their_own(refined):
    _, out = refined
    job = seeds.derive(0, "steps", "keydoor", "method/seed0/iter1", "target")
    for name, temperature in (("policy", 1.0), ("scorer", 0.8)):
        played = jsonl.read(out / "work" / f"{name}.jsonl", Trajectory)
        assert {episode.seed for episode in played} == {seeds.derive(job, name)}
        assert {episode.sampling.temperature for episode in played} == {temperature}


def test_steps_goes_on_after_a_kill_and_ends_with_the_same_bytes(refined, files, tmp_path):
    _, out = refined
    (tmp_path / "work").mkdir()
    for name, lines in (("policy", 12), ("scorer", 5)):
        whole = (out / "work" / f"{name}.jsonl").read_bytes().splitlines(keepends=True)
        (tmp_path / "work" / f"{name}.jsonl").write_bytes(b"".join(whole[:lines]) + whole[0][:50])
    stepped(files, tmp_path)
    for name in ("pairs.jsonl", "drops.jsonl", "step_values.jsonl", "summary.json", "explored.jsonl"):
        assert (tmp_path / name).read_bytes() == (out / name).read_bytes()


def test_train_takes_the_pairs_as_they_are(refined, files, tmp_path):
    _, out = refined
    inputs = {"pairs": out / "pairs.jsonl", "start": files["policy"], "reference": files["policy"]}
    notes = train.run(corridor.job("train", tmp_path / "job", corridor.suite(), **inputs), tmp_path / "trained")
    assert notes.kinds[PairKind.EXPERT_STEP]["pairs"] == 5
    trained, start = (policy_dir.describe(folder) for folder in (tmp_path / "trained", files["policy"].parent))
    assert trained.sha256 != start.sha256
