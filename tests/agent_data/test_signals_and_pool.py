"""Signals to the letter of the paper's table, on constructed histories; the pool, its drops and its schedule."""

import itertools
from collections import Counter

import builders
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coevolve.agent_data import explorer, prompts
from coevolve.agent_data.config import TaskEvolutionConfig
from coevolve.agent_data.records import FragmentDropReason, PoolTask, TaskSignal, Validation, task_counts, visits
from coevolve.agent_data.stages import grpo_round, signals, validate_tasks
from coevolve.records.episodes import StopReason

CONFIG = TaskEvolutionConfig.model_validate({
    "steps": 2, "initial_tasks": 5, "initial_fragments": 9, "new_tasks": 3, "fragments": 6, "exploration": "signals",
    "signals": ["forgetting", "boundary", "rare"], "success": 0.5, "window": 3, "score": "trajectory", "rare": 10.0,
    "explorer": "scripted", "turns": 4, "actions": 3, "abstraction": "rules", "validation": True, "similarity": None,
    "replay": None,
})  # fmt: skip
SOLUTIONS = {f"t{number}": (f"solve({number})",) for number in range(9)}


def task(name, request=None):
    return builders.task(name, env="world", data={"request": request or f"Solve {name}."})


def episode(name, reward, step, sample=0, actions=("look()",), observation="done", **fields):
    """An episode of a step, which its seed tells."""
    turns = [builders.turn(action, observation) for action in actions]
    return builders.episode(name, reward, turns, task=task(name), seed=step, sample=sample, **fields)


def history(*rounds):
    """Rounds of steps of `{task: rewards of its group}`; the seed tells the steps apart."""
    seeds = itertools.count()
    return [
        [
            episode(name, reward, step, sample)
            for step, groups in zip(seeds, steps, strict=False)
            for name, rewards in sorted(groups.items())
            for sample, reward in enumerate(rewards)
        ]
        for steps in rounds
    ]


def executed(turns):
    return [turn.action for turn in turns if turn.action]


def pattern(action):
    return action.partition("(")[0]


def signals_of(rounds, **changes):
    """The signals of the last round."""
    config = CONFIG.model_copy(update=changes)
    return signals.find_signals(config, rounds, SOLUTIONS, executed, pattern)


def seen(rounds, **changes):
    """(kind, task) of the signals of the last round."""
    return [(each.kind, each.task.task_id) for each in signals_of(rounds, **changes)]


# --- signals -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("steps", "forgotten"),
    [
        ([[1.0], [0.0]], True),
        ([[0.5], [0.49]], True),  # s_i >= 0.5 and s_now < 0.5
        ([[1.0], [0.0], [0.0]], True),  # within the last W = 3
        ([[1.0], [0.0], [0.0], [0.0]], False),  # solved before the last W
        ([[1.0], [], [], [], [0.0]], True),  # steps without the task are not in its window
    ],
)
def test_forgetting_is_a_score_below_a_half_after_one_from_a_half_within_the_window(steps, forgotten):
    rounds = history([{"t1": rewards} if rewards else {"t2": [0.0]} for rewards in steps])
    given_steps = [each.step for each in signals_of(rounds, signals=["forgetting"])]
    assert (len(steps) - 1 in given_steps) == forgotten
    assert seen(history([{"t1": [1]}, {"t1": [0]}, {"t1": [0]}]), window=2) == [("forgetting", "t1")]


def test_the_text_compares_trajectories_and_an_earlier_reading_means_of_groups():
    """Section 3.1: the score of the current trajectory. A group of which one episode solved the task was no success."""
    rounds = history([{"t1": [1, 0, 0, 0]}, {"t1": [0, 0, 0, 0]}])
    assert seen(rounds, signals=["forgetting"]) == [("forgetting", "t1")]
    assert seen(rounds, signals=["forgetting"], score="group") == []


def test_the_history_of_scores_spans_rounds_and_the_signal_is_of_the_last_one():
    rounds = history([{"t1": [1, 1]}], [{"t1": [0, 0]}])
    (signal,) = signals_of(rounds)
    assert (signal.kind, signal.round, signal.step, signal.scores) == ("forgetting", 2, 0, (1.0, 0.0))
    assert signal.actions == SOLUTIONS["t1"] and signal.episode == rounds[1][0].digest()
    assert (signal.pattern, signal.count, signal.total) == ("", 0, 0)  # those of rare actions
    assert seen(history([{"t1": [1, 1]}, {"t1": [0, 0]}], [{"t2": [0, 0]}])) == []  # it was forgotten a round before


@pytest.mark.parametrize(
    ("groups", "tasks"),
    [
        ([{"t1": [1.0]}, {"t1": [0.0]}], []),  # in different steps
        ([{"t1": [1, 0], "t2": [0, 1], "t3": [1, 1]}], ["t1", "t2"]),
    ],
)
def test_boundary_is_a_group_with_successes_and_failures(groups, tasks):
    assert [name for _, name in seen(history(groups), signals=["boundary"])] == tasks


def test_a_boundary_shows_the_first_failure_of_the_tasks_last_step():
    (signal,) = signals_of(history([{"t1": [1, 0]}, {"t1": [0.5, 0, 0]}]), signals=["boundary"])
    assert (signal.step, signal.scores) == (1, (0.5, 0.0, 0.0))
    assert signal.episode == episode("t1", 0, 1, sample=1).digest()
    broken = episode("t1", 0, 0, sample=1, stop=StopReason.ENV_ERROR)  # no failure
    assert seen([[episode("t1", 1, 0), broken]]) == seen([[broken]]) == []


@pytest.mark.parametrize(
    ("others", "is_rare"),
    [(8, False), (9, False), (10, True)],  # 1 of 9 and 1 of 10 are not below 10 %, 1 of 11 is
)
def test_rare_is_a_share_below_theta(others, is_rare):
    rounds = [[episode("t1", 1, 0, actions=["rare(1)"]), episode("t2", 1, 0, actions=["look()"] * others)]]
    rare = [(each.pattern, each.kind, each.task.task_id, each.count, each.total) for each in signals_of(rounds)]
    assert rare == [("rare", "rare", "t1", 1, others + 1)] * is_rare


def test_a_rare_signal_ends_with_its_action_and_counts_the_last_round_only():
    rare = episode("t1", 1, 1, actions=["look()", "rare(7)", "look()"])
    rounds = [[episode("t1", 1, 0, actions=["rare(1)"] * 9)], [rare, episode("t2", 1, 1, actions=["look()"] * 20)]]
    (signal,) = signals_of(rounds)
    assert (signal.actions, signal.episode, signal.round) == (("look()", "rare(7)"), rare.digest(), 2)


def test_the_rollouts_of_two_agents_are_one_step():
    """A task that the target solves and the failure agent fails is a boundary case of one visit, not two visits."""

    def both(target, failure, seed):
        agents = (("target", seed, target), ("failure", seed + 1, failure))
        return [
            episode("t1", reward, at, sample, agent=agent)
            for agent, at, rewards in agents
            for sample, reward in enumerate(rewards)
        ]

    rounds = [both([1, 1], [1, 1], 10), both([1, 0], [0, 0], 20)]
    assert [(each.kind, each.step, each.scores) for each in signals_of(rounds)] == [
        ("forgetting", 0, (1.0, 0.0)),  # the lowest of both agents
        ("boundary", 0, (1.0, 0.0, 0.0, 0.0)),
    ]
    solved = both([1, 1], [0, 1], 30)
    assert [each.episode for each in signals_of([solved])] == [solved[2].digest()]  # the failure agent's


@pytest.mark.parametrize("kind", ["forgetting", "boundary", "rare"])
def test_a_signal_that_is_not_listed_is_not_given(kind):
    everything = history([{"t1": [1, 1]}, {"t1": [0, 1, 0], "t2": [1] * 9}])
    everything[0].append(episode("t3", 1, 1, actions=["rare()"]))
    assert {name for name, _ in seen(everything)} == {"forgetting", "boundary", "rare"}
    rest = [name for name in CONFIG.signals if name != kind]
    assert {name for name, _ in seen(everything, signals=rest)} == set(rest)


@given(st.lists(st.lists(st.sampled_from([0.0, 0.4, 0.5, 1.0]), min_size=2, max_size=4), min_size=1, max_size=7))
def test_signals_are_those_of_the_table(groups):
    """The table's own words, computed another way; a group's mean is one score."""
    last = visits(history([{"t1": rewards} for rewards in groups]))
    for reading, scores in (("trajectory", groups), ("group", [[sum(rewards) / len(rewards)] for rewards in groups])):
        forgotten = {
            step
            for step, now in enumerate(scores)
            if min(now) < 0.5 and any(s_i >= 0.5 for visit in scores[max(0, step - 2) : step] for s_i in visit)
        }
        config = CONFIG.model_copy(update={"score": reading})
        assert {each.step for each in signals.forgetting(last, 1, config, SOLUTIONS)} == forgotten
    mixed = {step for step, rewards in enumerate(groups) if {reward >= 0.5 for reward in rewards} == {True, False}}
    assert {each.step for each in signals.boundary(last, 0.5, SOLUTIONS)} == mixed


# --- where exploration starts --------------------------------------------------------------------------------


def signal(kind="boundary", name="t1", actions=("a()", "b()", "c()")):
    return TaskSignal(kind=kind, task=task(name), round=1, step=0, episode="e", actions=actions, pattern="c")


def test_every_signal_or_without_guidance_every_task_is_explored_equally_often():
    given_signals = [signal(name=f"t{number}") for number in range(4)]
    starts = explorer.guided(given_signals, 10, 3, np.random.default_rng(0))
    counts = Counter(start.start.task_id for start in starts)
    assert sum(counts.values()) == 10 and set(counts.values()) == {2, 3}
    assert explorer.guided([], 50, 3, np.random.default_rng(0)) == []
    starts = explorer.unguided([task(f"t{n}") for n in range(4)], 8, 3, np.random.default_rng(0))
    assert Counter(start.start.task_id for start in starts) == {f"t{n}": 2 for n in range(4)}
    assert {start.actions for start in starts} <= {1, 2, 3}
    assert not any(start.signal or start.extra for start in starts)


@pytest.mark.parametrize("most", [1, 2, 3, 5])
def test_a_fragment_repeats_the_beginning_or_all_that_led_to_a_rare_action_and_goes_on(most):
    starts, rare = (
        explorer.guided([signal(kind)], 60, most, np.random.default_rng(0)) for kind in ("boundary", "rare")
    )
    assert {start.repeated for start in starts} == {("a()", "b()", "c()")[:n] for n in range(min(3, most - 1) + 1)}
    assert all(len(start.repeated) < start.actions <= most for start in starts)
    assert {start.extra for start in starts} == {0}
    assert {(start.repeated, start.extra) for start in rare} == {(("a()", "b()", "c()"), 3)}
    assert {start.actions for start in rare} == {3 + further for further in range(1, most + 1)}


# --- the pool ------------------------------------------------------------------------------------------------


def candidate(name, *solution, number=1, instruction=None, kind=None):
    return PoolTask(
        task=task(name), instruction=instruction or f"Do {name}.", solution=solution, round=number,
        fragment=f"f-{name}", signal=kind, explorer="scripted", written_by="rules",
    )  # fmt: skip


def key(each):
    return tuple(action.replace(" ", "") for action in each.solution)


def always(each):
    return Validation(rewards=(1.0, 1.0), observations=("o", "o"))


def test_every_candidate_joins_or_is_dropped_with_a_reason():
    old = [candidate("old", "a(1)")]
    new = [
        candidate("again", "a( 1 )", number=2, kind="rare"),
        candidate("sealed", "s(1)", number=2),
        candidate("bad", "b(1)", number=2),
        candidate("good", "c(1)", number=2, kind="boundary"),
        candidate("twin", "c(1)", number=2, kind="boundary"),
        candidate("second", "d(1)", number=2),
        candidate("third", "e(1)", number=2),
    ]
    added, drops = validate_tasks.extend(
        None, old, new, 2, key,
        lambda each: FragmentDropReason.UNREWARDED if each.solution == ("b(1)",) else always(each),
        evaluated={("s(1)",)},
    )  # fmt: skip
    assert [each.task.task_id for each in added] == ["good", "second"]
    assert [(each.name, each.reason.value) for each in drops] == [
        ("again", "duplicate"), ("sealed", "evaluated"), ("bad", "unrewarded"), ("twin", "duplicate"),
        ("third", "surplus"),
    ]  # fmt: skip
    counts = task_counts(2, added, drops, 3)
    assert counts.total.model_dump() == {
        "fragments": 7, "kept": 2, "drops": {"duplicate": 2, "evaluated": 1, "surplus": 1, "unrewarded": 1},
    }  # fmt: skip
    assert {name: (count.fragments, count.kept) for name, count in counts.by_signal.items()} == {
        "unguided": (4, 1), "boundary": (2, 1), "rare": (1, 0),
    }  # fmt: skip
    assert counts.pool == 3 and added[0].validation.rewards == (1.0, 1.0)


def test_similar_instructions_are_dropped_from_the_jaccard_index_on():
    same = [
        candidate("a", "a()", instruction="Buy one red cup now"),
        candidate("b", "b()", instruction="buy ONE red cup now, please"),  # 5 of 6 words
        candidate("c", "c()", instruction="buy one red mug now"),  # 4 of 6
    ]
    kept = {None: 3, 0.8: 2, 5 / 6: 2, 0.9: 3, 0.6: 1}
    for limit, number in kept.items():
        added, drops = validate_tasks.extend(limit, [], same, 9, key, None)
        assert len(added) == number, limit
        assert {each.reason for each in drops} <= {FragmentDropReason.SIMILAR}
        assert {each.validation for each in added} == {None}  # unexecuted
    for first, second, index in (("a b", "b c", 1 / 3), ("a", "a", 1.0), ("", "", 1.0), ("", "a", 0.0)):
        assert validate_tasks.jaccard(frozenset(first.split()), frozenset(second.split())) == pytest.approx(index)


def run_of(reward=1.0, observation="done", actions=("a()",), **fields):
    return episode("t1", reward, 0, actions=actions, observation=observation, **fields)


@pytest.mark.parametrize(
    ("runs", "outcome"),
    [
        ((run_of(), run_of()), "valid"),
        ((run_of(), run_of(stop=StopReason.STEP_LIMIT)), "not_executable"),
        ((run_of(actions=()), run_of(actions=())), "not_executable"),
        ((run_of(), run_of(observation="other")), "not_repeatable"),
        ((run_of(0.5), run_of(0.5)), "unrewarded"),
    ],
)
def test_a_reference_solution_is_judged_by_two_executions(runs, outcome):
    judged = validate_tasks.judge(runs, 1, executed)
    assert (judged.rewards == (1.0, 1.0)) if outcome == "valid" else (judged == outcome)


# --- the schedule of a round ---------------------------------------------------------------------------------

POOL = [candidate(f"old{n}", f"o({n})") for n in range(6)] + [
    candidate(f"new{n}", f"n({n})", number=2) for n in range(3)
]


def visited(replay, number=2, tasks=POOL, steps=4, per_step=5, seed=1):
    schedule = grpo_round.round_schedule(tasks, number, steps, per_step, replay, seed)
    assert [len(step) for step in schedule] == [per_step] * steps
    return Counter(each.task_id for step in schedule for each in step)


@pytest.mark.parametrize(("replay", "old"), [(0.0, 0), (0.25, 5), (0.5, 10), (1.0, 20)])
def test_replay_is_the_share_of_visits_to_earlier_tasks(replay, old):
    counts = visited(replay)
    assert sum(count for name, count in counts.items() if name.startswith("old")) == old


def test_all_tasks_are_visited_equally_often_without_replay_or_tasks_of_both_kinds():
    assert set(visited(None).values()) == {2, 3} and len(visited(None)) == 9
    assert visited(0.0, tasks=POOL[:6]).keys() == {f"old{n}" for n in range(6)}
    assert visited(1.0, tasks=POOL[6:]).keys() == {f"new{n}" for n in range(3)}
    first, again, other = (grpo_round.round_schedule(POOL, 2, 4, 5, 0.5, seed) for seed in (1, 1, 2))
    assert first == again != other


# --- prompts of explorers that are models --------------------------------------------------------------------


def test_an_exploration_prompt_has_the_signals_context():
    assert "{" not in prompts.exploration_prompt(None, 3) and "3 actions" in prompts.exploration_prompt(None, 3)
    texts = {kind: prompts.exploration_prompt(signal(kind), 3) for kind in ("forgetting", "boundary", "rare")}
    assert len(set(texts.values())) == 3
    assert all("Solve t1." in text and "a(); b(); c()" in text for text in texts.values())
    assert "`c`" in texts["rare"]


@pytest.mark.parametrize("hostile", ["{actions}", "{0.__class__}", "%s", "{"])
def test_braces_in_a_task_are_text(hostile):
    odd = signal().model_copy(update={"task": task("t1", hostile)})
    assert hostile in prompts.exploration_prompt(odd, 3)
    (message,) = prompts.abstraction_prompt([(hostile, "")])
    assert hostile in message.content


@pytest.mark.parametrize(
    ("reply", "draft"),
    [
        ("Task: Do it.\nSolution:\na()", ("Do it.", ("a()",))),
        ("Well.\nTask:  Do\n it. \nSolution:\n b()\n\na()\n", ("Do it.", ("b()", "a()"))),
        ("Task: Do it.", ("Do it.", ("a()", "b()"))),
        ("Do it.", None),
        ("Task: \nSolution:\na()", None),
        ("Task: Do it.\nSolution:\nrm()", None),  # an action that was not executed
        ("", None),
    ],
)
def test_a_models_reply_is_a_draft_or_nothing(reply, draft):
    read = prompts.read_draft(reply, ["a()", "b()"])
    assert (read and (read.instruction, read.solution)) == draft


# --- the configuration ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes",
    [
        {"window": 1}, {"steps": 0}, {"success": 1.5}, {"explorer": "endpoint"}, {"abstraction": "model"},
        {"signals": ["surprise"]}, {"replay": -0.1}, {"rare": 0.0}, {"exploration": "curiosity"},
    ],
)  # fmt: skip
def test_a_setting_that_means_nothing_is_refused(changes):
    (key,) = changes
    with pytest.raises(ValueError, match=rf"(?m)^(  Value error, `)?{key}\b"):
        TaskEvolutionConfig.model_validate(CONFIG.model_dump() | changes)
