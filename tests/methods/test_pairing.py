from collections import Counter
from math import comb

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coevolve.config.names import PairKind
from coevolve.config.sections import AgentRecipe, PairingConfig, PairWeights
from coevolve.errors import UserError
from coevolve.methods.pairing import KIND_AGENTS, pair, summary
from coevolve.records.drops import DropReason
from coevolve.records.episodes import Message, StopReason, Task, Trajectory, Turn
from coevolve.records.pairs import PreferencePair
from coevolve.storage import jsonl

TARGET, FAILURE, BOTH = PairKind.EXPERT_TARGET, PairKind.EXPERT_FAILURE, PairKind.FAILURE_FAILURE
PLAIN = PairingConfig(expert_beaten="drop", max_extra_turns=None, within=False, hard_negative=None)
ETO = PairingConfig(expert_beaten="swap", max_extra_turns=5, within=False, hard_negative=None)
APART = PLAIN.model_copy(update={"drop_conflicts": True})
WITHIN = PairingConfig(expert_beaten="drop", max_extra_turns=None, within=True, hard_negative=None)


def recipe(*kinds, dpo=1.0, sft=0.0):
    return AgentRecipe(base="target", explores=True, trains_on=dict.fromkeys(kinds, PairWeights(dpo=dpo, sft=sft)))


def task(name):
    return Task(env="sciworld", task_id=name, split="train")


def episode(agent, name, reward, actions="ab", *, sample=0, stop=StopReason.DONE, prompt="boil water"):
    sampled = agent != "expert"
    turns = tuple(
        Turn(text=f"Action: {a}", action=a, observation=f"seen {a}", token_ids=(ord(a), 2) if sampled else ())
        for a in actions
    )
    return Trajectory(
        task=task(name),
        agent=agent,
        sample=sample,
        protocol="fixed",
        prompt=(Message(role="user", content=prompt),),
        turns=turns,
        reward=reward,
        stop=stop,
    )


def paired(kinds, rules=PLAIN, *, tasks=("t",), expert=(), target=(), failure=()):
    rollouts = {"target": target, "failure": failure}
    return pair(recipe(*kinds), rules, [task(name) for name in tasks], list(expert), rollouts)


def reasons(result):
    return [drop.reason for drop in result.drops]


def test_an_expert_pair_carries_both_sides_their_ids_and_the_weights():
    expert, rollout = episode("expert", "t", 1.0, "ab"), episode("target", "t", 0.3, "xyz")
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


def test_the_better_of_two_failures_is_chosen_whichever_agent_it_is_of():
    for target_reward, failure_reward in ((0.7, 0.2), (0.2, 0.7)):
        target, failure = episode("target", "t", target_reward, "a"), episode("failure", "t", failure_reward, "b")
        (made,) = paired([BOTH], target=[target], failure=[failure]).pairs
        better = max(target, failure, key=lambda side: side.reward)
        assert made.chosen_id == better.digest()
        assert (made.chosen_reward, made.rejected_reward) == (0.7, 0.2)


@pytest.mark.parametrize(
    ("kind", "sides", "reason"),
    [
        (TARGET, [episode("expert", "t", 1.0, "a"), episode("target", "t", 1.0, "b")], DropReason.TIE),
        (BOTH, [episode("target", "t", 0.5, "a"), episode("failure", "t", 0.5, "b")], DropReason.TIE),
        (BOTH, [episode("target", "t", 0.5, "a"), episode("failure", "t", 0.5, "a")], DropReason.IDENTICAL),
        (TARGET, [episode("expert", "t", 1.0, "a"), episode("target", "t", 0.5, "a")], DropReason.IDENTICAL),
        (BOTH, [episode("target", "t", 1.0, "a"), episode("failure", "t", 0.5, "b")], DropReason.NOT_A_FAILURE),
        (BOTH, [episode("target", "t", 0.5, "a"), episode("failure", "t", 1.0, "b")], DropReason.NOT_A_FAILURE),
        (BOTH, [episode("target", "t", 1.0, "a"), episode("failure", "t", 1.0, "a")], DropReason.NOT_A_FAILURE),
        (TARGET, [episode("expert", "t", 0.8, "a"), episode("target", "t", 0.9, "b")], DropReason.EXPERT_BEATEN),
        (TARGET, [episode("expert", "t", 1.0, "a"), episode("target", "t", 0.0, "")], DropReason.EMPTY),
        (FAILURE, [episode("expert", "t", 1.0, ""), episode("failure", "t", 0.0, "a")], DropReason.EMPTY),
        (
            BOTH,
            [episode("target", "t", 0.5, "a"), episode("failure", "t", 0.0, "b", stop=StopReason.ENV_ERROR)],
            DropReason.ENV_ERROR,
        ),
        (TARGET, [episode("target", "t", 0.5, "a")], DropReason.MISSING_EXPERT),
        (FAILURE, [episode("expert", "t", 1.0, "a")], DropReason.MISSING_ROLLOUT),
        (BOTH, [episode("target", "t", 0.5, "a")], DropReason.MISSING_ROLLOUT),
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
    expert, rollout = episode("expert", "t", 0.8, "a"), episode("target", "t", 0.9, "b" * 20)
    result = paired([TARGET], ETO, expert=[expert], target=[rollout])
    (made,) = result.pairs
    assert (made.chosen_id, made.rejected_id) == (rollout.digest(), expert.digest())
    assert len(made.chosen_token_ids) == 20
    assert (result.kinds[TARGET].swapped, result.kinds[TARGET].cut) == (1, 0)


@pytest.mark.parametrize(("turns", "kept", "cut"), [(6, 6, 0), (7, 7, 0), (8, 7, 1), (30, 7, 1)])
def test_etos_rejected_side_keeps_the_experts_turns_and_five(turns, kept, cut):
    expert, rollout = episode("expert", "t", 1.0, "ab"), episode("target", "t", 0.1, "z" * turns)
    result = paired([TARGET], ETO, expert=[expert], target=[rollout])
    (made,) = result.pairs
    assert [m.role for m in made.rejected] == ["assistant", "user"] * (kept - 1) + ["assistant"]
    assert len(made.rejected_token_ids) == kept
    assert made.rejected_id == rollout.digest()
    assert result.kinds[TARGET].cut == cut


def test_a_rejected_side_that_is_the_chosen_one_after_the_cut_is_identical():
    rules = PairingConfig(expert_beaten="drop", max_extra_turns=0, within=False, hard_negative=None)
    result = paired(
        [TARGET], rules, expert=[episode("expert", "t", 1.0, "ab")], target=[episode("target", "t", 0.1, "abc")]
    )
    assert reasons(result) == [DropReason.IDENTICAL]


@pytest.mark.parametrize(("target", "failure"), [("ab", "abc"), ("abc", "ab")])
def test_a_tie_is_a_tie_whichever_side_would_be_cut(target, failure):
    rules = PairingConfig(expert_beaten="drop", max_extra_turns=0, within=False, hard_negative=None)
    sides = {"target": [episode("target", "t", 0.5, target)], "failure": [episode("failure", "t", 0.5, failure)]}
    assert reasons(paired([BOTH], rules, expert=[episode("expert", "t", 1.0, "xy")], **sides)) == [DropReason.TIE]


def test_nothing_is_cut_where_no_expert_gives_the_measure():
    sides = {"target": [episode("target", "t", 0.5, "a")], "failure": [episode("failure", "t", 0.1, "b" * 40)]}
    assert len(paired([BOTH], ETO, **sides).pairs[0].rejected_token_ids) == 40


@pytest.mark.parametrize(("threshold", "pairs"), [(None, 2), (0.6, 1), (0.7, 1), (0.71, 0)])
def test_failure_pairs_may_be_asked_to_hold_a_hard_negative(threshold, pairs):
    rules = PLAIN.model_copy(update={"hard_negative": threshold})
    target = [episode("target", "t", 0.7, "a"), episode("target", "u", 0.2, "a")]
    failure = [episode("failure", "t", 0.1, "b"), episode("failure", "u", 0.5, "b")]
    result = paired([BOTH], rules=rules, tasks=("t", "u"), target=target, failure=failure)
    assert len(result.pairs) == pairs
    assert [drop.reason for drop in result.drops] == [DropReason.NOT_HARD] * (2 - pairs)


def test_within_adds_pairs_inside_each_agents_failures():
    target = [episode("target", "t", 0.1 * s, "abc"[s], sample=s) for s in range(3)]
    failure = [episode("failure", "t", 0.5 + 0.1 * s, "xy"[s], sample=s) for s in range(2)]
    across, inside = (paired([BOTH], rules, target=target, failure=failure) for rules in (PLAIN, WITHIN))
    assert len(across.pairs) == 6
    assert len(inside.pairs) == 6 + 3 + 1
    assert set(across.pairs) < set(inside.pairs)


def test_within_pairs_the_only_agent_that_came_back_and_counts_the_missing_one():
    target = [
        episode("target", "t", reward, name, sample=s) for s, (reward, name) in enumerate([(0.1, "a"), (0.2, "b")])
    ]
    result = paired([BOTH], WITHIN, target=target)
    assert (result.kinds[BOTH].candidates, result.kinds[BOTH].pairs) == (2, 1)
    assert reasons(result) == [DropReason.MISSING_ROLLOUT]


def test_identical_rollouts_of_a_task_make_one_pair_and_the_rest_are_counted():
    rollouts = [episode("target", "t", 0.3, "xy", sample=sample) for sample in range(3)]
    other = episode("target", "t", 0.3, "xz", sample=3)
    result = paired([TARGET], expert=[episode("expert", "t", 1.0)], target=[*rollouts, other])
    assert [p.rejected_id for p in result.pairs] == [rollouts[0].digest(), other.digest()]
    assert result.kinds[TARGET].drops == {DropReason.DUPLICATE: 2}
    assert result.trajectories.dropped == 2


def test_identical_rollouts_of_two_agents_are_pairs_of_two_kinds():
    sides = {agent: [episode(agent, "t", 0.3, "xy")] for agent in ("target", "failure")}
    result = paired([TARGET, FAILURE], expert=[episode("expert", "t", 1.0)], **sides)
    assert [p.kind for p in result.pairs] == [TARGET, FAILURE]


@pytest.mark.parametrize(
    ("target_reward", "failure_reward", "left", "dropped"),
    [
        (0.7, 0.2, [FAILURE, BOTH], [TARGET]),  # the target's rollout is chosen in the failure pair
        (0.2, 0.7, [TARGET, BOTH], [FAILURE]),
        (0.5, 0.5, [TARGET, FAILURE], []),  # a tie makes no failure pair, so there is no conflict
        (1.0, 0.2, [FAILURE], []),
    ],
)
def test_a_rejected_side_that_another_pair_chooses_can_be_left_out(target_reward, failure_reward, left, dropped):
    expert = [episode("expert", "t", 1.0, "e")]
    target, failure = episode("target", "t", target_reward, "a"), episode("failure", "t", failure_reward, "b")
    kept, apart = (
        paired([TARGET, FAILURE, BOTH], rules, expert=expert, target=[target], failure=[failure])
        for rules in (PLAIN, APART)
    )
    assert [made.kind for made in apart.pairs] == left
    assert [drop.kind for drop in apart.drops if drop.reason is DropReason.CONFLICT] == dropped
    assert len(kept.pairs) == len(left) + len(dropped) and not kept.kinds[TARGET].drops.get(DropReason.CONFLICT)
    assert all(apart.kinds[kind].drops[DropReason.CONFLICT] == 1 for kind in dropped)


def test_the_same_text_of_the_other_agent_is_a_conflict_too():
    target = [episode("target", "t", 0.5, "ab")]
    failure = [episode("failure", "t", 0.5, "ab"), episode("failure", "t", 0.1, "c", sample=1)]
    result = paired(
        [TARGET, FAILURE, BOTH], APART, expert=[episode("expert", "t", 1.0)], target=target, failure=failure
    )
    assert [(made.kind, made.rejected[0].content) for made in result.pairs] == [
        (FAILURE, "Action: c"),
        (BOTH, "Action: c"),
    ]


def test_a_hard_negative_of_zero_is_zero():
    """InterCodeSQL's raw reward can be negative."""
    rules = PLAIN.model_copy(update={"hard_negative": 0.0})

    def kept(better):
        sides = {"target": [episode("target", "t", better, "x")], "failure": [episode("failure", "t", -0.5, "y")]}
        return len(paired([BOTH], rules, **sides).pairs)

    assert kept(-0.2) == 0 and kept(0.0) == 1


def test_order_is_task_then_kind_then_sample_whatever_order_came_in():
    tasks = ("t2", "t1")
    expert = [episode("expert", name, 1.0, "e") for name in tasks]
    target = [episode("target", name, 0.2, "ab"[s], sample=s) for name in tasks for s in range(2)]
    failure = [episode("failure", name, 0.4, "f") for name in tasks]
    forward = paired([BOTH, TARGET], tasks=tasks, expert=expert, target=target, failure=failure)
    backward = paired([TARGET, BOTH], tasks=tasks, expert=expert[::-1], target=target[::-1], failure=failure[::-1])
    assert forward.pairs == backward.pairs
    assert [(p.task_id, p.kind) for p in forward.pairs] == [
        (name, kind) for name in tasks for kind in (TARGET, TARGET, BOTH, BOTH)
    ]
    assert [p.rejected[0].content for p in forward.pairs[:2]] == ["Action: a", "Action: b"]


def test_second_experts_and_unexplored_tasks_are_counted_drops():
    expert = [episode("expert", "t", 1.0, "a"), episode("expert", "t", 0.9, "b"), episode("expert", "elsewhere", 1.0)]
    result = paired([TARGET], expert=expert, target=[episode("target", "t", 0.5, "c")])
    assert result.pairs[0].chosen_id == expert[0].digest()
    assert [(d.reason, d.kind) for d in result.drops] == [(DropReason.DUPLICATE, None), (DropReason.NOT_IN_SPLIT, None)]
    assert vars(result.trajectories) == {"total": 4, "paired": 2, "dropped": 2, "not_used": 0}


def test_a_task_listed_twice_is_paired_once():
    sides = {"expert": [episode("expert", "t", 1.0, "a")], "target": [episode("target", "t", 0.5, "b")]}
    assert len(paired([TARGET], tasks=("t", "t"), **sides).pairs) == 1


def test_trajectories_no_kind_asks_for_are_counted_apart():
    result = pair(
        recipe(), PLAIN, [task("t")], [episode("expert", "t", 1.0)], {"target": [episode("target", "t", 0.0)]}
    )
    assert vars(result.trajectories) == {"total": 2, "paired": 0, "dropped": 0, "not_used": 2}
    assert result.kinds == {}


def test_a_recipe_without_failure_agent_needs_none():
    result = pair(recipe(TARGET), ETO, [task("t")], [episode("expert", "t", 1.0, "a")], {"target": []})
    assert reasons(result) == [DropReason.MISSING_ROLLOUT]


def test_a_kind_whose_agent_did_not_explore_is_an_error():
    with pytest.raises(UserError, match=r"trains_on\.failure_failure.*failure agent.*explores: true"):
        pair(recipe(BOTH), PLAIN, [task("t")], [], {"target": []})


def test_rollouts_under_the_wrong_agents_name_are_an_error():
    with pytest.raises(UserError, match="of the failure agent was given as one of the target agent"):
        paired([TARGET], target=[episode("failure", "t", 0.5)])


def test_a_pair_has_the_chosen_sides_prompt_where_the_tasks_text_differs():
    sides = {"expert": [episode("expert", "t", 1.0, "a", prompt="boil")], "target": [episode("target", "t", 0.5, "b")]}
    result = paired([TARGET], **sides)
    assert [message.content for message in result.pairs[0].prompt] == ["boil"]
    assert result.kinds[TARGET].other_prompt == 1


def test_sides_whose_prompts_differ_before_the_task_are_an_error():
    expert, rollout = episode("expert", "t", 1.0, "a"), episode("target", "t", 0.5, "b")
    instructed = expert.model_copy(update={"prompt": (Message(role="user", content="Act."), *expert.prompt)})
    with pytest.raises(UserError, match=r"task t: the prompts of the expert trajectory .* differ"):
        paired([TARGET], expert=[instructed], target=[rollout])


def test_summary_is_plain_and_says_in_words_which_kind_is_empty():
    expert = [episode("expert", "t", 1.0, "a"), episode("expert", "far", 1.0)]
    target, failure = [episode("target", "t", 0.5, "b")], [episode("failure", "t", 0.5, "b")]
    result = paired([TARGET, BOTH], expert=expert, target=target, failure=failure, tasks=("t", "u"))
    assert summary(result).model_dump(mode="json") == {
        "kinds": {
            "expert_target": {
                "candidates": 2,
                "pairs": 1,
                "swapped": 0,
                "cut": 0,
                "other_prompt": 0,
                "drops": {"missing_rollout": 1},
            },
            "failure_failure": {
                "candidates": 2,
                "pairs": 0,
                "swapped": 0,
                "cut": 0,
                "other_prompt": 0,
                "drops": {"identical": 1, "missing_rollout": 1},
            },
        },
        "without_kind": {"not_in_split": 1},
        "trajectories": {"total": 4, "paired": 2, "dropped": 2, "not_used": 0},
        "empty": ["No failure_failure pair could be built from 2 candidates: 1 identical, 1 missing_rollout."],
    }


def test_pairs_load_as_a_dataset_unchanged(tmp_path, monkeypatch):
    datasets = pytest.importorskip("datasets")
    sides = {"expert": [episode("expert", "t", 1.0, "ab")], "target": [episode("target", "t", 0.5, "xyz")]}
    made = paired([TARGET], **sides).pairs
    jsonl.write(tmp_path / "pairs.jsonl", made)
    data = datasets.load_dataset(
        "json", data_files=str(tmp_path / "pairs.jsonl"), split="train", cache_dir=str(tmp_path / "cache")
    )
    row = data[0]
    for key in ("prompt", "chosen", "rejected"):
        assert row[key] == [{"role": m.role, "content": m.content} for m in getattr(made[0], key)]
    assert row["rejected_token_ids"] == [list(ids) for ids in made[0].rejected_token_ids]
    assert PreferencePair.model_validate(row) == made[0]
    assert jsonl.read(tmp_path / "pairs.jsonl", PreferencePair) == list(made)


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
                episodes.append(episode(agent, name, reward, actions, sample=sample, stop=stop))
    rules = PairingConfig(
        expert_beaten=draw(st.sampled_from(["drop", "swap"])),
        max_extra_turns=draw(st.sampled_from([None, 0, 1])),
        within=draw(st.booleans()),
        hard_negative=draw(st.sampled_from([None, 0.6])),
        drop_conflicts=draw(st.booleans()),
    )
    kinds = draw(st.sets(st.sampled_from(list(KIND_AGENTS))))
    return (
        names,
        {agent: [e for e in episodes if e.agent == agent] for agent in ("expert", "target", "failure")},
        rules,
        kinds,
    )


@settings(max_examples=150, deadline=None)
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


@settings(max_examples=150, deadline=None)
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


@settings(max_examples=60, deadline=None)
@given(situations())
def test_exchanging_the_agents_exchanges_the_kinds(situation):
    names, sides, rules, _ = situation
    other = {"target": "failure", "failure": "target"}
    mirrored = {
        "expert": sides["expert"],
        **{agent: [e.model_copy(update={"agent": agent}) for e in sides[other[agent]]] for agent in other},
    }
    there, back = (paired(list(KIND_AGENTS), rules, tasks=names, **group) for group in (sides, mirrored))
    for kind, image in ((TARGET, FAILURE), (FAILURE, TARGET), (BOTH, BOTH)):
        assert there.kinds[kind] == back.kinds[image]


@settings(max_examples=150, deadline=None)
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
