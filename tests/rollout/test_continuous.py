"""Episodes that advance on their own, with a policy whose completions finish in any order."""

import threading
from collections import Counter

import numpy as np
import pytest
from rollout.keydoor import KeyDoor, gold, recorded, tasks
from rollout.playing import content, play
from rollout.runs import run

from coevolve.policies.base import ContinuousPolicy, ScriptedPolicy
from coevolve.policies.vllm import AdmissionQueue

RESERVE = 30


class OutOfOrder(ContinuousPolicy):
    """Completes one of the conversations that its cache holds, whichever its generator draws, with another policy."""

    def __init__(self, policy, cache=10**6):
        self._policy, self._rng = policy, np.random.default_rng(3)
        self._queue, self._running = AdmissionQueue(cache), {}
        self.submitted, self.finished, self.forgotten, self.most = [], [], [], 0

    @property
    def ref(self):
        return self._policy.ref

    def submit(self, conversations, sampling):
        for each in conversations:
            self.submitted.append(each.key)
            length = sum(len(turn.token_ids) for turn in each.turns) + RESERVE
            self._queue.add(each.key, length, (each, sampling))

    def poll(self):
        self._running |= self._queue.admit(idle=not self._running)
        self.most = max(self.most, len(self._running))
        key = str(self._rng.choice(sorted(self._running)))
        conversation, sampling = self._running.pop(key)
        self.finished.append(key)
        return {key: self._policy.complete([conversation], sampling)[0]}

    def forget(self, key):
        self._queue.release(key)
        self._running.pop(key, None)
        self._policy.forget(key)
        self.forgotten.append(key)


@pytest.mark.parametrize("cache", [10**6, 100])
def test_the_order_of_completions_and_the_cache_change_no_trajectory(tmp_path, cache):
    """The cache of 100 tokens limits the conversations in flight to three, and one for an idle engine."""
    policies = []

    def wrap(policy):
        policies.append(OutOfOrder(policy, cache))
        return policies[0]

    in_steps = run(tmp_path / "steps.jsonl", envs=5)
    alone = run(tmp_path / "alone.jsonl", envs=8, wrap=wrap)
    assert content(alone) == content(in_steps)
    assert policies[0].finished != policies[0].submitted
    assert sorted(policies[0].finished) == sorted(policies[0].submitted)
    assert (1 < policies[0].most <= 4) == (cache == 100)


def test_no_episode_waits_for_the_environment_of_another(tmp_path):
    """The first step of one episode ends after all other episodes; in steps, half of those would wait for it."""
    others_ended = threading.Event()
    policy = OutOfOrder(recorded({f"door{number}": gold(number) for number in range(12)}))
    forget = policy.forget

    def count(key):
        forget(key)
        if len(policy.forgotten) == 11:
            others_ended.set()

    policy.forget = count

    class Slow(KeyDoor):
        def step(self, action):
            assert others_ended.wait(60)
            return super().step(action)

    played = play(tmp_path / "episodes.jsonl", [Slow(), KeyDoor(), KeyDoor(), KeyDoor()], tasks(12), policy)
    assert [episode.reward for episode in played] == [1.0] * 12


def test_a_policy_in_batches_completes_half_of_the_environments_at_a_time(tmp_path):
    """All episodes have five turns, so the two halves keep their episodes."""
    batches = Counter()

    class Counting(ScriptedPolicy):
        def complete(self, conversations, sampling):
            batches[tuple(each.key for each in conversations)] += 1
            return super().complete(conversations, sampling)

    policy = Counting(recorded({f"door{number}": gold(number) for number in range(7)}).script)
    play(tmp_path / "episodes.jsonl", [KeyDoor() for _ in range(7)], tasks(7), policy)
    assert [*batches.values()] == [5, 5] and sorted(map(len, batches)) == [3, 4]


def test_after_an_error_no_request_is_left(tmp_path):
    class Broken(KeyDoor):
        def step(self, action):
            raise IndexError("a bug")

    policy = OutOfOrder(recorded({f"door{number}": gold(number) for number in range(4)}))
    with pytest.raises(IndexError, match="a bug"):
        play(tmp_path / "episodes.jsonl", [KeyDoor(), Broken(), KeyDoor()], tasks(4), policy)
    assert not policy._running and not policy._queue.admit(idle=True)


def test_the_oldest_episodes_are_held_and_an_idle_engine_gets_work():
    queue = AdmissionQueue[str](100)
    for key, tokens in {"a": 40, "b": 50, "c": 20, "d": 5}.items():
        queue.add(key, tokens, f"{key}1")
    assert queue.admit(idle=True) == [("a", "a1"), ("b", "b1")]  # `d` would fit, but `c` is older
    queue.add("a", 60, "a2")
    assert queue.admit(idle=False) == [("a", "a2")]  # grew; `b` is not held any more
    queue.add("b", 55, "b2")
    assert queue.admit(idle=False) == []
    assert queue.admit(idle=True) == [("b", "b2")]
    queue.release("a")
    assert queue.admit(idle=False) == [("c", "c1"), ("d", "d1")]
