"""Sessions: rewards are changes of the episode's reward, the step limit truncates, failed starts are repeated."""

import pytest
from rollout import keydoor
from rollout.keydoor import KeyDoor, gold, task

from coevolve.adapters.sessions import RETRIES, Session, SessionPool, SessionStep
from coevolve.chat.prompts import write_action
from coevolve.envs.base import EnvError
from coevolve.envs.workers import pool
from coevolve.errors import UserError


def test_the_rewards_of_an_episode_sum_to_its_reward_and_the_step_limit_truncates_it():
    pool = SessionPool([KeyDoor()], {"train": [task(0), task(1)]})
    session = pool.acquire()
    for index in (1, 0):  # the second episode starts from 0 again
        assert session.reset("train", index).endswith("room 0. A key lies here." if index == 0 else "room 0.")
        # The first episode ends with its last step, but by itself.
        steps = [session.step(text) for text in ["no action"] * 2 * index + gold(index)]
        assert [step.reward for step in steps if step.reward] == [0.5, 0.5]
        assert sum(step.reward for step in steps) == steps[-1].total == 1.0
        assert [step.done for step in steps] == [False] * (len(steps) - 1) + [True]
        assert not any(step.truncated for step in steps)
    session.reset("train", 0)
    limit = session.env.step_limit(task(0))
    steps = [session.step("no action") for _ in range(limit)]
    said = ("Say what to do.", 0.0, 0.0, False)
    assert steps == [SessionStep(*said, truncated, None) for truncated in [False] * (limit - 1) + [True]]
    pool.release(session)
    assert pool.acquire() is session
    with pytest.raises(EnvError, match="all 1 sessions are in use; try again later"):
        pool.acquire(0.1)


class JammedDoor(KeyDoor):
    """Its first `failures` starts fail."""

    def __init__(self, failures):
        super().__init__()
        self.failures = failures

    def start(self, task):
        first = super().start(task)
        if len(self.started) <= self.failures:
            raise EnvError("the door is jammed")
        return first


def test_a_start_that_fails_is_repeated():
    session = Session(JammedDoor(RETRIES), {"train": [task(0)]})
    assert "A key lies here" in session.reset("train", 0)
    assert len(session.env.started) == RETRIES + 1
    with pytest.raises(EnvError, match="the door is jammed"):
        Session(JammedDoor(RETRIES + 1), {"train": [task(0)]}).reset("train", 0)


def test_an_episode_is_lost_with_its_process_and_the_next_one_starts():
    with pool(keydoor.trapdoors, 1, 1) as (env,):
        session = Session(env, {"train": [task(0)]})
        session.reset("train", 0)
        with pytest.raises(EnvError, match="has ended"):
            session.step(write_action("jump"))
        session.reset("train", 0)
        assert sum(session.step(text).reward for text in gold(0)) == 1.0


@pytest.mark.parametrize(("split", "index"), [("train", i) for i in (True, "0", None, 0.0, -1, [0])] + [(["train"], 0)])
def test_a_task_that_none_has_is_the_users_error(split, index):
    session = Session(KeyDoor(), {"train": [task(0), task(1)]})
    with pytest.raises(UserError, match=r"^(split `train` has the tasks 0 to 1, not |no split `\['train'\]`)"):
        session.reset(split, index)
    assert session.task is None
