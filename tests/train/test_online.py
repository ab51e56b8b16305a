"""Training on one's own episodes, by PPO and by GRPO: what is played, what is learned from it, and resumption."""

import json
from dataclasses import replace

import pytest
import torch
from train.doors import METHODS, TASKS, CutOffError, interrupt, mean_reward, train, world
from train.settings import WITH_DROPOUT, see_two_gpus

from coevolve import seeds
from coevolve.errors import UserError
from coevolve.policies import loading
from coevolve.records.episodes import Sampling, StopReason, Trajectory
from coevolve.storage import jsonl, policy_dir
from coevolve.train import online
from coevolve.train import trainer as training
from coevolve.train.policy_io import TrainingRun

BOTH = pytest.mark.parametrize("method", METHODS)
LEARNING = {
    "ppo": {
        "epochs": 96.0, "rollouts": 32, "passes": 4, "batch_size": 16, "micro_batch": 16, "discount": 1.0,
        "gae_lambda": 0.95, "kl": 0.003, "learning_rate": 2e-3,
    },
    "grpo": {"epochs": 20.0, "batch_size": 32, "micro_batch": 32, "group": 8, "beta": 0.0, "save_steps": 100},
}  # fmt: skip
#: One iteration of PPO, two steps of GRPO.
SHORT = {"ppo": {"epochs": 8.0}, "grpo": {"epochs": 2.0}}


@pytest.fixture(scope="module")
def reward_before(half, tmp_path_factory):
    """The mean reward of the policy that training starts from."""
    return mean_reward(half, tmp_path_factory.mktemp("before"))


@BOTH
def test_the_reward_rises(half, reward_before, tmp_path, method):
    report, out = train(method, half, tmp_path, "learned", where=world(32), **LEARNING[method])
    assert 0.3 < reward_before < 0.6
    assert mean_reward(out, tmp_path) > reward_before + 0.15
    rows, steps = {"ppo": (192, 48), "grpo": (320, 10)}[method]
    assert (report.rows, report.dropped, report.truncated, report.steps) == (rows, 0, 0, steps)
    assert [step["step"] for step in report.history] == list(range(1, steps + 1))
    assert policy_dir.describe(out).name == f"{policy_dir.describe(half).name}+{method}"
    if method == "ppo":
        assert report.history[0]["kl"] == pytest.approx(0.0, abs=1e-6) and report.history[-1]["kl"] > 0.1
    json.dumps(report.history)


@pytest.mark.parametrize(
    ("method", "settings", "tasks", "passes"),
    [("ppo", {"epochs": 16.0, "passes": 3}, 16, 3), ("grpo", {"epochs": 2.0, "group": 8}, 1, 1)],
)
def test_each_step_plays_its_tasks_with_its_policy_and_its_seed(half, tmp_path, method, settings, tasks, passes):
    report, out = train(method, half, tmp_path, "visits", **settings)
    schedule = online.task_schedule(TASKS, tasks, settings["epochs"], seed=3)
    files = [tmp_path / f"work-visits/episodes-{step}-0.jsonl" for step in range(len(schedule))]
    played = [jsonl.read(file, Trajectory) for file in files]
    for step, (planned, episodes) in enumerate(zip(schedule, played, strict=True)):
        assert {episode.task.task_id for episode in episodes} == {task.task_id for task in planned}
        assert {episode.seed for episode in episodes} == {seeds.derive(3, "explore", step)}
        assert len(episodes) == {"ppo": 16, "grpo": 8}[method]
    assert {task.task_id for step in schedule for task in step} == {task.task_id for task in TASKS}
    episodes = jsonl.read(out / "episodes.jsonl", Trajectory)
    assert len(episodes) == report.rows == 32
    assert len({episode.policy.sha256 for episode in episodes}) == len(schedule)
    assert {episode.sampling for episode in episodes} == {Sampling(temperature=1.0, top_p=1.0, max_new_tokens=16)}
    explorer = online.Explorer(world(), TrainingRun(half, tmp_path / "out", tmp_path, seed=3))
    assert report.tokens == passes * sum(len(explorer.experience(episode)) for episode in episodes)
    assert report.sampled_tokens == sum(len(turn.token_ids) for episode in episodes for turn in episode.turns)


@pytest.mark.parametrize("lora", [None, WITH_DROPOUT], ids=["full", "lora"])
@pytest.mark.parametrize(
    ("method", "settings", "until"), [("ppo", {"epochs": 16.0}, 130), ("grpo", {"epochs": 3.0}, 80)]
)
def test_an_interrupted_training_ends_in_the_same_bytes(half, tmp_path, caplog, method, settings, until, lora):
    caplog.set_level("INFO")
    whole, straight = train(method, half, tmp_path, "whole", lora, **settings)
    with pytest.raises(CutOffError):
        train(method, half, tmp_path, "torn", lora, interrupt(world(), until), **settings)
    work = tmp_path / "work-torn"
    (work / "checkpoint-9").mkdir()  # not yet written when the process was killed
    assert training.last_checkpoint(work).name in ("checkpoint-1", "checkpoint-2")
    resumed, out = train(method, half, tmp_path, "torn", lora, **settings)
    assert policy_dir.describe(out).sha256 == policy_dir.describe(straight).sha256 != policy_dir.describe(half).sha256
    assert [step["loss"] for step in resumed.history] == [step["loss"] for step in whole.history]
    assert (resumed.rows, resumed.steps) == (whole.rows, whole.steps) == {"ppo": (32, 8), "grpo": (24, 3)}[method]
    assert (out / "adapter_config.json").exists() == bool(lora)
    told = [record for record in caplog.records if record.levelname == "INFO"]
    assert not [record for record in told if record.name.startswith("accelerate")], "a line for each file"


@BOTH
def test_a_broken_world_is_no_experience(half, tmp_path, method):
    broken = [task.model_copy(update={"data": {"key": 0, "broken": 99}}) for task in TASKS]
    report, out = train(method, half, tmp_path, "broken", where=world(tasks=broken), **SHORT[method])
    episodes = jsonl.read(out / "episodes.jsonl", Trajectory)
    assert 0 < report.dropped < len(episodes) == report.rows + report.dropped
    assert all(episode.stop is StopReason.ENV_ERROR or episode.reward == 0 for episode in episodes)
    if method == "grpo":
        assert all(step["loss"] == pytest.approx(0.0, abs=1e-6) for step in report.history), "what is left is worth 0"


@pytest.mark.parametrize(
    ("method", "settings", "most"), [("ppo", {"rollouts": 3}, 3), ("grpo", {"batch_size": 8, "group": 4}, 2)]
)
def test_more_processes_than_a_step_has_work_for_are_refused(tmp_path, monkeypatch, method, settings, most):
    """Before a policy is read: there is none."""
    monkeypatch.setenv("WORLD_SIZE", str(most + 1))
    with pytest.raises(UserError, match=rf"{most + 1} processes, but a step has {most} .*; start at most {most}"):
        train(method, tmp_path / "none", tmp_path, "many", **settings)


DISTANCE = "sampling/sampling_logp_difference/mean"


@BOTH
def test_log_probs_of_sampling_are_kept_where_they_are_not_the_trainings(half, tmp_path, method):
    for dtype in ("float32", "bfloat16"):
        report, out = train(method, half, tmp_path, dtype, where=replace(world(), dtype=dtype), **SHORT[method])
        for episode in jsonl.read(out / "episodes.jsonl", Trajectory):
            for turn in episode.turns:
                assert len(turn.logps) == (len(turn.token_ids) if dtype == "bfloat16" else 0)
                assert all(logp <= 0.0 for logp in turn.logps)
        assert ("logps" in (out / "episodes.jsonl").read_text()) == (dtype == "bfloat16")
        distances = [step.get(DISTANCE, 0.0) for step in report.history]
        assert all(0.0 < distance < 0.05 for distance in distances) if dtype == "bfloat16" else not any(distances)
        assert loading.load_model(out).dtype == torch.float32


def test_a_process_trains_on_one_of_several_gpus(half, tmp_path, monkeypatch):
    alone, _ = train("grpo", half, tmp_path, "alone", epochs=2.0)
    see_two_gpus(monkeypatch)
    beside_another, _ = train("grpo", half, tmp_path, "beside_another", epochs=2.0)
    assert [step["loss"] for step in beside_another.history] == [step["loss"] for step in alone.history]


@pytest.fixture
def explorer(half, tmp_path):
    return online.Explorer(world(), TrainingRun(half, tmp_path / "out", tmp_path, seed=3))


def test_an_experience_is_what_was_sampled(explorer, half):
    episode = explorer.play(loading.load_model(half), 0, TASKS)[0]
    row = explorer.experience(episode)
    said = [token for turn in episode.turns for token in turn.token_ids]
    assert [token for token, acted in zip(row.input_ids, row.action_mask, strict=True) if acted] == said
    assert row.action_mask[: row.prompt] == (0,) * row.prompt and row.action_mask[row.prompt] == 1
    assert row.reward == episode.reward
    assert explorer.experience(episode.model_copy(update={"stop": StopReason.ENV_ERROR})) is None
    assert explorer.experience(episode.model_copy(update={"turns": ()})) is None
    explorer.context = row.prompt + 3
    assert len(explorer.experience(episode)) == row.prompt + 3 and explorer.experience(episode).truncated
    explorer.context = row.prompt
    assert explorer.experience(episode) is None


def test_episodes_of_other_weights_are_played_again(explorer, half, tmp_path, caplog):
    """As after a resumption on a GPU, whose repeated steps end in weights with other bits."""
    model, journal = loading.load_model(half), tmp_path / "episodes-0-0.jsonl"
    first = explorer.play(model, 0, TASKS)
    written = journal.read_bytes()
    assert explorer.play(model, 0, TASKS) == first
    assert journal.read_bytes() == written and not caplog.messages
    with torch.no_grad():
        next(model.parameters()).view(-1)[0] += 1e-3
    again = explorer.play(model, 0, TASKS)
    shas = {episode.policy.sha256 for episode in again}
    assert len(shas) == 1 and not shas & {episode.policy.sha256 for episode in first}
    kept = jsonl.read(journal, Trajectory)
    assert len(kept) == len(again) == len(first) and {episode.policy.sha256 for episode in kept} == shas
    assert caplog.messages == ["step 0: 2 episodes of other weights, from before the resumption, are discarded."]


def test_every_task_is_visited_before_any_is_visited_again():
    steps = online.task_schedule(range(5), 3, 2.0, seed=1)
    assert [len(step) for step in steps] == [3, 3, 3, 3]
    stream = [task for step in steps for task in step]
    assert sorted(stream[:5]) == sorted(stream[5:10]) == list(range(5))
    assert stream != [task for step in online.task_schedule(range(5), 3, 2.0, seed=2) for task in step]
    with pytest.raises(UserError, match="no task to explore"):
        online.task_schedule([], 3, 2.0, seed=1)
