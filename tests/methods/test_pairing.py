from collections import Counter
from math import comb

import pytest
from builders import episode, task, turn
from hypothesis import given, settings
from hypothesis import strategies as st

from coevolve.errors import UserError
from coevolve.methods.pairing import KIND_AGENTS, pair, summary
from coevolve.methods.recipes import AgentRecipe
from coevolve.methods.settings import FailureSelection, PairingConfig, PairWeights
from coevolve.records.episodes import Message, StopReason
from coevolve.records.pairs import DropReason, PairKind

TARGET, FAILURE, BOTH = PairKind.EXPERT_TARGET, PairKind.EXPERT_FAILURE, PairKind.FAILURE_FAILURE
PLAIN = PairingConfig(expert_beaten="drop", max_extra_turns=None, within=False, hard_negative=None)
ETO = PairingConfig(expert_beaten="swap", max_extra_turns=5, within=False, hard_negative=None)
WITHIN = PairingConfig(expert_beaten="drop", max_extra_turns=None, within=True, hard_negative=None)


def recipe(*kinds, dpo=1.0, sft=0.0):
    return AgentRecipe(base="target", explores=True, trains_on=dict.fromkeys(kinds, PairWeights(dpo=dpo, sft=sft)))


def side(agent, name, reward, actions="ab", **fields):
    """An episode; the ids of a rollout's turn begin with its action's code point."""
    turns = (turn(a, f"seen {a}", token_ids=() if agent == "expert" else (ord(a), 2)) for a in actions)
    return episode(name, reward, turns, agent=agent, **fields)


def paired(kinds, rules=PLAIN, *, tasks=("t",), expert=(), target=(), failure=()):
    rollouts = {"target": target, "failure": failure}
    return pair(recipe(*kinds), rules, [task(name) for name in tasks], list(expert), rollouts)


def reasons(result):
    return [drop.reason for drop in result.drops]


def test_an_expert_pair_carries_both_sides_their_ids_and_the_weights():
    expert, rollout = side("expert", "t", 1.0, "ab"), side("target", "t", 0.3, "xyz")
    weights = recipe(TARGET, dpo=0.5, sft=0.25)
    result = pair(weights, PLAIN, [task("t")], [expert], {"target": [rollout]})
    (made,) = result.pairs
    assert made.prompt == expert.prompt
    assert [(m.role, m.content) for m in made.chosen] == [
        ("assistant", "Action: a"),
        ("user", "seen a"),
        ("assistant", "Action: b"),
    ]
    assert made.rejected == rollout.completion
    assert made.chosen_token_ids == ((), ())
    assert made.rejected_token_ids == ((ord("x"), 2), (ord("y"), 2), (ord("z"), 2))
    assert (made.chosen_id, made.rejected_id) == (expert.digest(), rollout.digest())
    assert (made.chosen_reward, made.rejected_reward) == (1.0, 0.3)
    assert (made.lambda_dpo, made.lambda_sft) == (0.5, 0.25)


@pytest.mark.parametrize(
    ("kind", "sides", "reason"),
    [
        (TARGET, [side("expert", "t", 1.0, "a"), side("target", "t", 1.0, "b")], DropReason.TIE),
        (BOTH, [side("target", "t", 0.5, "a"), side("failure", "t", 0.5, "b")], DropReason.TIE),
        (BOTH, [side("target", "t", 0.5, "a"), side("failure", "t", 0.5, "a")], DropReason.IDENTICAL),
        (TARGET, [side("expert", "t", 1.0, "a"), side("target", "t", 0.5, "a")], DropReason.IDENTICAL),
        (BOTH, [side("target", "t", 1.0, "a"), side("failure", "t", 0.5, "b")], DropReason.NOT_A_FAILURE),
        (BOTH, [side("target", "t", 0.5, "a"), side("failure", "t", 1.0, "b")], DropReason.NOT_A_FAILURE),
        (BOTH, [side("target", "t", 1.0, "a"), side("failure", "t", 1.0, "a")], DropReason.NOT_A_FAILURE),
        (TARGET, [side("expert", "t", 0.8, "a"), side("target", "t", 0.9, "b")], DropReason.EXPERT_BEATEN),
        (TARGET, [side("expert", "t", 1.0, "a"), side("target", "t", 0.0, "")], DropReason.EMPTY),
        (FAILURE, [side("expert", "t", 1.0, ""), side("failure", "t", 0.0, "a")], DropReason.EMPTY),
        (
            BOTH,
            [side("target", "t", 0.5, "a"), side("failure", "t", 0.0, "b", stop=StopReason.ENV_ERROR)],
            DropReason.ENV_ERROR,
        ),
        (TARGET, [side("target", "t", 0.5, "a")], DropReason.MISSING_EXPERT),
        (FAILURE, [side("expert", "t", 1.0, "a")], DropReason.MISSING_ROLLOUT),
        (BOTH, [side("target", "t", 0.5, "a")], DropReason.MISSING_ROLLOUT),
        (BOTH, [], DropReason.MISSING_ROLLOUT),
    ],
)
def test_each_reason_drops_its_candidate(kind, sides, reason):
    by_agent = {agent: [s for s in sides if s.agent == agent] for agent in ("expert", "target", "failure")}
    result = paired([kind], **by_agent)
    assert result.pairs == ()
    (drop,) = result.drops
    assert (drop.reason, drop.kind, drop.task_id) == (reason, kind, "t")
    assert set(drop.ids) == {side.digest() for side in sides}
    assert result.trajectories.dropped == len(sides)


def test_a_rollout_that_beats_the_expert_is_chosen_where_the_rule_is_swap():
    expert, rollout = side("expert", "t", 0.8, "a"), side("target", "t", 0.9, "b" * 20)
    result = paired([TARGET], ETO, expert=[expert], target=[rollout])
    (made,) = result.pairs
    assert (made.chosen_id, made.rejected_id) == (rollout.digest(), expert.digest())
    assert len(made.chosen_token_ids) == 20
    assert (result.kinds[TARGET].swapped, result.kinds[TARGET].cut) == (1, 0)


@pytest.mark.parametrize(("turns", "kept", "cut"), [(6, 6, 0), (7, 7, 0), (8, 7, 1), (30, 7, 1)])
def test_etos_rejected_side_keeps_the_experts_turns_and_five(turns, kept, cut):
    expert, rollout = side("expert", "t", 1.0, "ab"), side("target", "t", 0.1, "z" * turns)
    result = paired([TARGET], ETO, expert=[expert], target=[rollout])
    (made,) = result.pairs
    assert [m.role for m in made.rejected] == ["assistant", "user"] * (kept - 1) + ["assistant"]
    assert len(made.rejected_token_ids) == kept
    assert made.rejected_id == rollout.digest()
    assert result.kinds[TARGET].cut == cut


@pytest.mark.parametrize(
    ("kind", "rewards", "actions", "reason"),
    [
        (TARGET, (1.0, 0.1, 0.0), ("ab", "abc", ""), DropReason.IDENTICAL),
        (BOTH, (1.0, 0.5, 0.5), ("xy", "ab", "abc"), DropReason.TIE),
        (BOTH, (1.0, 0.5, 0.5), ("xy", "abc", "ab"), DropReason.TIE),
    ],
)
def test_sides_are_compared_after_the_cut_and_tied_before_it(kind, rewards, actions, reason):
    sides = zip(("expert", "target", "failure"), rewards, actions, strict=True)
    by_agent = {agent: [side(agent, "t", reward, said)] for agent, reward, said in sides}
    assert reasons(paired([kind], PLAIN.model_copy(update={"max_extra_turns": 0}), **by_agent)) == [reason]


@pytest.mark.parametrize(("threshold", "pairs"), [(None, 3), (0.6, 1), (0.7, 1), (0.71, 0), (0.0, 2), (-0.2, 3)])
def test_failure_pairs_may_be_asked_to_hold_a_hard_negative(threshold, pairs):
    """A raw reward of InterCodeSQL can be negative; without experts no side is cut."""
    rules = ETO.model_copy(update={"hard_negative": threshold})
    better = {"t": 0.7, "u": 0.5, "v": -0.2}
    target = [side("target", name, reward, "a") for name, reward in better.items()]
    failure = [side("failure", name, reward - 0.5, "b" * 40) for name, reward in better.items()]
    result = paired([BOTH], rules=rules, tasks=tuple(better), target=target, failure=failure)
    assert [len(made.rejected_token_ids) for made in result.pairs] == [40] * pairs
    assert reasons(result) == [DropReason.NOT_HARD] * (3 - pairs)


def test_by_the_letter_of_eq_8_nothing_is_ordered_by_reward():
    """(i) and (ii) have no condition on the reward, (iii) prefers the target's failure; only failures are in (iii)."""
    letter = PLAIN.model_copy(update={"order": "letter"})
    rewards = {"t": (1.0, 0.2, 0.9), "u": (1.0, 0.5, 0.5), "v": (0.8, 1.0, 0.1)}
    sides = {
        agent: [side(agent, name, of[n], said) for name, of in rewards.items()]
        for n, (agent, said) in enumerate((("expert", "ab"), ("target", "cd"), ("failure", "ef")))
    }
    made = {(p.task_id, p.kind): (p.chosen_reward, p.rejected_reward)
            for p in paired([TARGET, FAILURE, BOTH], letter, tasks=tuple(rewards), **sides).pairs}  # fmt: skip
    of_experts = {(t, kind): (r[0], r[n]) for t, r in rewards.items() for n, kind in ((1, TARGET), (2, FAILURE))}
    assert made == of_experts | {("t", BOTH): (0.2, 0.9), ("u", BOTH): (0.5, 0.5)}  # in `v` the target succeeds
    ordered = paired([BOTH], tasks=tuple(rewards), **sides).pairs
    assert [(p.chosen_reward, p.rejected_reward) for p in ordered] == [(0.9, 0.2)]


def test_identical_rollouts_of_an_agent_make_one_pair_and_the_rest_are_counted():
    rollouts = [side("target", "t", 0.3, "xy", sample=sample) for sample in range(3)]
    other, failure = side("target", "t", 0.3, "xz", sample=3), side("failure", "t", 0.3, "xy")
    experts = [side("expert", "t", 1.0)]
    sides = {"expert": experts, "target": [*rollouts, other], "failure": [failure]}
    result = paired([TARGET, FAILURE], tasks=("t", "t"), **sides)  # a task that is listed twice counts once
    assert [p.rejected_id for p in result.pairs] == [rollouts[0].digest(), other.digest(), failure.digest()]
    assert (result.kinds[TARGET].drops, result.kinds[FAILURE].drops) == ({DropReason.DUPLICATE: 2}, {})
    assert result.trajectories.dropped == 2
    unused = paired([], **sides)
    assert vars(unused.trajectories) == {"total": 6, "paired": 0, "dropped": 0, "not_used": 6} and unused.kinds == {}


def test_the_same_text_of_the_other_agent_is_a_conflict_too():
    target = [side("target", "t", 0.5, "ab")]
    failure = [side("failure", "t", 0.5, "ab"), side("failure", "t", 0.1, "c", sample=1)]
    result = paired(
        [TARGET, FAILURE, BOTH],
        PLAIN.model_copy(update={"drop_conflicts": True}),
        expert=[side("expert", "t", 1.0)],
        target=target,
        failure=failure,
    )
    assert [(made.kind, made.rejected[0].content) for made in result.pairs] == [
        (FAILURE, "Action: c"),
        (BOTH, "Action: c"),
    ]


def test_order_is_task_then_kind_then_sample_whatever_order_came_in():
    tasks = ("t2", "t1")
    expert = [side("expert", name, 1.0, "e") for name in tasks]
    target = [side("target", name, 0.2, "ab"[s], sample=s) for name in tasks for s in range(2)]
    failure = [side("failure", name, 0.4, "f") for name in tasks]
    forward = paired([BOTH, TARGET], tasks=tasks, expert=expert, target=target, failure=failure)
    backward = paired([TARGET, BOTH], tasks=tasks, expert=expert[::-1], target=target[::-1], failure=failure[::-1])
    assert forward.pairs == backward.pairs
    assert [(p.task_id, p.kind) for p in forward.pairs] == [
        (name, kind) for name in tasks for kind in (TARGET, TARGET, BOTH, BOTH)
    ]
    assert [p.rejected[0].content for p in forward.pairs[:2]] == ["Action: a", "Action: b"]


def test_second_experts_and_unexplored_tasks_are_counted_drops():
    expert = [side("expert", "t", 1.0, "a"), side("expert", "t", 0.9, "b"), side("expert", "elsewhere", 1.0)]
    result = paired([TARGET], expert=expert, target=[side("target", "t", 0.5, "c")])
    assert result.pairs[0].chosen_id == expert[0].digest()
    assert [(d.reason, d.kind) for d in result.drops] == [(DropReason.DUPLICATE, None), (DropReason.NOT_IN_SPLIT, None)]
    assert vars(result.trajectories) == {"total": 4, "paired": 2, "dropped": 2, "not_used": 0}


def test_a_kind_whose_agent_did_not_explore_is_an_error():
    with pytest.raises(UserError, match=r"trains_on\.failure_failure.*failure agent.*explores: true"):
        pair(recipe(BOTH), PLAIN, [task("t")], [], {"target": []})


def test_rollouts_under_the_wrong_agents_name_are_an_error():
    with pytest.raises(UserError, match="of the failure agent was given as one of the target agent"):
        paired([TARGET], target=[side("failure", "t", 0.5)])


def test_a_pair_has_the_chosen_sides_prompt_where_the_tasks_text_differs():
    sides = {"expert": [side("expert", "t", 1.0, "a", prompt="boil")], "target": [side("target", "t", 0.5, "b")]}
    result = paired([TARGET], **sides)
    assert [message.content for message in result.pairs[0].prompt] == ["boil"]
    assert result.kinds[TARGET].other_prompt == 1


def test_sides_whose_prompts_differ_before_the_task_are_an_error():
    expert, rollout = side("expert", "t", 1.0, "a"), side("target", "t", 0.5, "b")
    instructed = expert.model_copy(update={"prompt": (Message(role="user", content="Act."), *expert.prompt)})
    with pytest.raises(UserError, match=r"task t: the prompts of the expert trajectory .* differ"):
        paired([TARGET], expert=[instructed], target=[rollout])


def test_summary_is_plain_and_says_in_words_which_kind_is_empty():
    expert = [side("expert", "t", 1.0, "a"), side("expert", "far", 1.0)]
    target, failure = [side("target", "t", 0.5, "b")], [side("failure", "t", 0.5, "b")]
    result = paired([TARGET, BOTH], expert=expert, target=target, failure=failure, tasks=("t", "u"))
    of_two = {"candidates": 2, "swapped": 0, "cut": 0, "other_prompt": 0}
    assert summary(result).model_dump(mode="json") == {
        "kinds": {
            "expert_target": of_two | {"pairs": 1, "drops": {"missing_rollout": 1}},
            "failure_failure": of_two | {"pairs": 0, "drops": {"identical": 1, "missing_rollout": 1}},
        },
        "without_kind": {"not_in_split": 1},
        "trajectories": {"total": 4, "paired": 2, "dropped": 2, "not_used": 0},
        "empty": ["No failure_failure pair could be built from 2 candidates: 1 identical, 1 missing_rollout."],
    }


@pytest.mark.parametrize(
    ("rule", "kept"),
    [
        ({"keep": "hardest"}, [0.9, 0.6]),
        ({"keep": "easiest"}, [0.1, 0.4]),
        ({"keep": "nearest", "reward": 0.5}, [0.4, 0.6]),
        ({"keep": "nearest", "reward": 0.8}, [0.9, 0.6]),
        ({"keep": "random"}, None),
    ],
)
def test_of_several_failures_only_the_selected_ones_are_paired_and_the_others_are_counted(rule, kept):
    """Copies, broken and empty episodes take no place of a failure; successes and the other agent keep theirs."""
    rewards = {"a": 0.4, "b": 0.9, "c": 0.1, "d": 0.6}
    failures = [side("failure", "t", reward, action, sample=n) for n, (action, reward) in enumerate(rewards.items())]
    useless = [
        side("failure", "t", 0.9, "b", sample=4),
        side("failure", "t", 0.95, "e", sample=5, stop=StopReason.ENV_ERROR),
        side("failure", "t", 0.95, "", sample=6),
        side("failure", "t", 1.0, "f", sample=7),
    ]
    expert, target = side("expert", "t", 1.0, "x"), side("target", "t", 0.5, "g")
    rules = PLAIN.model_copy(update={"failures": FailureSelection(per_task=2, **rule)})
    result = paired((TARGET, FAILURE, BOTH), rules, expert=[expert], target=[target], failure=failures + useless)
    if kept is None:
        kept = [e.reward for e in sorted(failures, key=lambda each: each.digest())[:2]]
    rejected = [made.rejected_reward for made in result.pairs if made.kind is FAILURE]
    assert sorted(rejected) == sorted(kept)
    assert sorted({made.chosen_reward + made.rejected_reward - 0.5 for made in result.pairs if made.kind is BOTH}) == (
        pytest.approx(sorted(kept))
    )
    assert [made.kind for made in result.pairs].count(TARGET) == 1
    of_experts = Counter(drop.reason for drop in result.drops if drop.kind is FAILURE)
    assert of_experts == {
        DropReason.NOT_SELECTED: 3, DropReason.ENV_ERROR: 1, DropReason.EMPTY: 1, DropReason.TIE: 1
    }  # fmt: skip


def test_selected_failures_are_as_many_in_every_order():
    failures = [side("failure", "t", reward, action) for action, reward in {"a": 0.4, "b": 0.9, "c": 0.1}.items()]
    for per_task, expected in ((1, 1), (2, 2), (3, 3), (8, 3)):
        for keep in ("hardest", "easiest", "random"):
            rules = PLAIN.model_copy(update={"failures": FailureSelection(keep=keep, per_task=per_task)})
            result = paired((FAILURE,), rules, expert=[side("expert", "t", 1.0, "x")], failure=failures)
            assert len(result.pairs) == expected


@st.composite
def situations(draw):
    """Tasks and random episodes of them, some missing, empty, tied, identical, broken, or of a task not explored."""
    names = ["t0", "t1", "t2"]
    episodes = []
    for agent, most in (("expert", 2), ("target", 3), ("failure", 3)):
        for name in [*names, "elsewhere"]:
            for sample in range(draw(st.integers(0, most))):
                reward = draw(st.sampled_from([0.0, 0.25, 0.75, 1.0]))
                actions = draw(st.text("ab", max_size=4))
                stop = draw(st.sampled_from(list(StopReason)))
                episodes.append(side(agent, name, reward, actions, sample=sample, stop=stop))
    rules = PairingConfig(
        expert_beaten=draw(st.sampled_from(["drop", "swap"])),
        max_extra_turns=draw(st.sampled_from([None, 0, 1])),
        within=draw(st.booleans()),
        hard_negative=draw(st.sampled_from([None, 0.6])),
        drop_conflicts=draw(st.booleans()),
        failures=draw(st.sampled_from([None, FailureSelection(keep="hardest", per_task=1)])),
    )
    kinds = draw(st.sets(st.sampled_from(list(KIND_AGENTS))))
    return (
        names,
        {agent: [e for e in episodes if e.agent == agent] for agent in ("expert", "target", "failure")},
        rules,
        kinds,
    )


@settings(max_examples=150)
@given(situations())
def test_every_candidate_and_every_trajectory_is_accounted_for(situation):
    names, sides, rules, kinds = situation
    result = paired(kinds, rules, tasks=names, **sides)

    def rollouts(agent, name):
        return sum(e.task.task_id == name for e in sides[agent])

    expected = Counter()
    for name in names:
        n, m = rollouts("target", name), rollouts("failure", name)
        expected[TARGET] += max(n, 1)
        expected[FAILURE] += max(m, 1)
        expected[BOTH] += max(n * m, 1) + rules.within * (comb(n, 2) + comb(m, 2))
    for kind in kinds:
        made = sum(p.kind is kind for p in result.pairs)
        dropped = sum(d.kind is kind for d in result.drops)
        assert made + dropped == expected[kind] == result.kinds[kind].candidates
    named = {i for p in result.pairs for i in (p.chosen_id, p.rejected_id)} | {i for d in result.drops for i in d.ids}
    unnamed = [e for group in sides.values() for e in group if e.digest() not in named]
    assert len(unnamed) == result.trajectories.not_used
    assert result.trajectories.total == sum(map(len, sides.values()))


@settings(max_examples=150)
@given(situations())
def test_every_pair_prefers_the_higher_reward_and_joins_the_agents_of_its_kind(situation):
    names, sides, rules, kinds = situation
    by_id = {e.digest(): e for group in sides.values() for e in group}
    for made in paired(kinds, rules, tasks=names, **sides).pairs:
        chosen, rejected = by_id[made.chosen_id], by_id[made.rejected_id]
        agents = {chosen.agent, rejected.agent}
        assert made.chosen_reward > made.rejected_reward
        assert chosen.task == rejected.task
        assert StopReason.ENV_ERROR not in (chosen.stop, rejected.stop)
        assert made.chosen and made.rejected and made.chosen != made.rejected
        if made.kind is BOTH:
            assert chosen.is_failure and rejected.is_failure
            assert agents == {"target", "failure"} or (rules.within and len(agents) == 1)
        else:
            assert agents == {"expert", "target" if made.kind is TARGET else "failure"}
            assert chosen.agent == "expert" or rules.expert_beaten == "swap"


@settings(max_examples=150)
@given(situations())
def test_conflicts_are_the_pairs_that_differ_and_none_is_left(situation):
    names, sides, rules, kinds = situation
    kept, apart = (
        paired(kinds, rules.model_copy(update={"drop_conflicts": value}), tasks=names, **sides)
        for value in (False, True)
    )
    chosen = {made.chosen_id for made in kept.pairs}
    texts = {(made.task_id, made.chosen) for made in kept.pairs}
    expected = [
        made for made in kept.pairs if made.rejected_id not in chosen and (made.task_id, made.rejected) not in texts
    ]
    assert list(apart.pairs) == expected
    conflicts = [drop for drop in apart.drops if drop.reason is DropReason.CONFLICT]
    assert len(conflicts) == len(kept.pairs) - len(expected)
    assert [drop for drop in apart.drops if drop.reason is not DropReason.CONFLICT] == list(kept.drops)
