"""Selected and dropped trajectories of rejection sampling; none is lost."""

import pytest
from builders import episode
from hypothesis import given, settings
from hypothesis import strategies as st

from coevolve.errors import UserError
from coevolve.methods.rejection_sampling import select
from coevolve.methods.settings import SelectionConfig
from coevolve.records.episodes import StopReason
from coevolve.records.pairs import DropReason

SUCCESSES = SelectionConfig(min_reward=1.0, per_task=None, with_experts=True, experts="sft")


def expert(name="t", actions="ab", reward=1.0):
    return episode(name, reward, actions, agent="expert")


def rollout(name="t", actions="cd", reward=1.0, **more):
    return episode(name, reward, actions, **more)


def rules(**changes):
    return SUCCESSES.model_copy(update=changes)


def reasons(result):
    return [drop.reason for drop in result.drops]


def test_successes_join_the_experts_and_failures_do_not():
    experts, rollouts = (
        [expert("t"), expert("u")],
        [rollout("u", "x"), rollout("v", "y"), rollout("t", "z", reward=0.9)],
    )
    result = select(SUCCESSES, experts, rollouts)
    assert result.selected == (*experts, *rollouts[:2])
    assert reasons(result) == [DropReason.LOW_REWARD] and result.drops[0].ids == (rollouts[2].digest(),)
    assert result.summary == {
        "experts": {"total": 2, "selected": 2, "drops": {}},
        "rollouts": {"total": 3, "selected": 2, "drops": {"low_reward": 1}},
        "tasks": {"explored": 3, "solved": 2},
    }


@pytest.mark.parametrize("with_experts", [True, False])
def test_the_same_actions_in_the_same_task_count_once(with_experts):
    """Equal actions in another wording are duplicates; in another task they are not."""
    again = rollout("t", "ab", sample=1)
    worded = tuple(turn.model_copy(update={"text": f"Hm. {turn.text}"}) for turn in again.turns)
    again = again.model_copy(update={"turns": worded})
    result = select(
        rules(with_experts=with_experts), [expert("t", "ab")], [rollout("t", "ab"), again, rollout("u", "ab")]
    )
    kept = [(t.agent, t.task.task_id) for t in result.selected]
    if with_experts:
        assert kept == [("expert", "t"), ("target", "u")]
        assert reasons(result) == [DropReason.DUPLICATE] * 2
    else:
        assert kept == [("target", "t"), ("target", "u")] and result.selected[0].sample == 0
        assert reasons(result) == [DropReason.NOT_USED, DropReason.DUPLICATE]


def test_of_too_many_successes_the_best_and_then_the_first_stay():
    rollouts = [rollout(actions=a, reward=r, sample=n) for n, (a, r) in enumerate([("p", 0.8), ("q", 1.0), ("r", 0.8)])]
    result = select(rules(per_task=2, min_reward=0.7), [expert()], rollouts)
    assert [t.sample for t in result.selected[1:]] == [0, 1]
    assert reasons(result) == [DropReason.SURPLUS] and result.drops[0].ids == (rollouts[2].digest(),)
    (best,) = select(rules(per_task=1, min_reward=0.7), [], rollouts).selected
    assert best.sample == 1
    assert len(select(rules(per_task=1), [expert(), expert("u")], [rollout("t"), rollout("u")]).selected) == 4


def test_experts_stay_whatever_they_earned_and_broken_or_empty_episodes_go():
    broken, empty = rollout("u", stop=StopReason.ENV_ERROR), rollout("v", "")
    result = select(SUCCESSES, [expert(reward=0.72)], [broken, empty])
    assert [t.reward for t in result.selected] == [0.72]
    assert reasons(result) == [DropReason.ENV_ERROR, DropReason.EMPTY]


@pytest.mark.parametrize(
    ("experts", "rollouts", "misplaced"),
    [
        ([rollout()], [], "target agent lies among the experts"),
        ([], [expert()], "expert agent lies among the rollouts"),
    ],
)
def test_files_given_in_each_others_place_are_refused(experts, rollouts, misplaced):
    with pytest.raises(UserError, match=f"task t: a trajectory of the {misplaced}; give"):
        select(SUCCESSES, experts, rollouts)


EPISODES = st.lists(
    st.builds(
        rollout,
        st.sampled_from("tu"),
        st.text("ab", max_size=2),
        st.sampled_from([0.0, 0.5, 1.0]),
        sample=st.integers(0, 3),
        stop=st.sampled_from(list(StopReason)),
    ),
    max_size=12,
)
EXPERTS = st.lists(st.builds(expert, st.sampled_from("tu"), st.text("ab", max_size=2)), max_size=4)
RULES = st.builds(
    SelectionConfig,
    min_reward=st.sampled_from([0.0, 0.5, 1.0]),
    per_task=st.sampled_from([None, 1, 2]),
    with_experts=st.booleans(),
)


@settings(max_examples=200)
@given(RULES, EXPERTS, EPISODES)
def test_everything_that_came_in_is_selected_or_dropped_once(rules, experts, rollouts):
    result = select(rules, experts, rollouts)
    given = sorted(t.digest() for t in (*experts, *rollouts))
    assert given == sorted([t.digest() for t in result.selected] + [i for drop in result.drops for i in drop.ids])
    actions = [(t.task.task_id, tuple(turn.action for turn in t.turns)) for t in result.selected]
    assert len(actions) == len(set(actions))
    from_rollouts = [t for t in result.selected if t.agent == "target"]
    assert all(t.reward >= rules.min_reward and t.stop is not StopReason.ENV_ERROR for t in from_rollouts)
    if rules.per_task:
        assert all(sum(t.task.task_id == name for t in from_rollouts) <= rules.per_task for name in "tu")
