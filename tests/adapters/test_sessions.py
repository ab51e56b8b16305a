"""Sessions: rewards are changes of the episode's reward, and the step limit truncates."""

from rollout.keydoor import KeyDoor, gold, task

from coevolve.adapters.sessions import SessionPool


def test_the_rewards_of_an_episode_sum_to_its_reward():
    pool = SessionPool([KeyDoor()], {"train": [task(0), task(1)]})
    session = pool.acquire()
    for index in (1, 0):  # the second episode starts from 0 again
        assert "key" in session.reset("train", index).lower() or index
        steps = [session.step(text) for text in gold(index)]
        assert [step.reward for step in steps if step.reward] == [0.5, 0.5]
        assert sum(step.reward for step in steps) == steps[-1].total == 1.0
        assert [step.done for step in steps] == [False] * (len(steps) - 1) + [True]
    pool.release(session)
    assert pool.acquire() is session


def test_the_step_limit_truncates_an_episode():
    session = SessionPool([KeyDoor()], {"train": [task(0)]}).acquire()
    session.reset("train", 0)
    limit = session.env.step_limit(task(0))
    steps = [session.step("no action") for _ in range(limit)]
    assert [step.truncated for step in steps] == [False] * (limit - 1) + [True]
    assert not steps[-1].done and steps[-1].action is None
