"""The audit of BFCL is true: every number of `docs/environments/bfcl_audit.md` is measured with the wheel."""

import copy
import json
import os

import pytest

from coevolve.envs.bfcl import calls, scenarios, upstream
from coevolve.envs.bfcl.episode import Episode
from coevolve.envs.bfcl.simulators import Simulators
from coevolve.envs.bfcl.suspects import suspects

pytest.importorskip("bfcl_eval", reason="the wheel of envs_setup/bfcl.lock is not installed; run `make setup`")


@pytest.fixture(scope="module")
def page(root):
    return (root / "docs/environments/bfcl_audit.md").read_text()


@pytest.fixture(scope="module")
def base():
    return scenarios.scenarios("base")


def gold(scenario):
    return [list(turn.gold) for turn in scenario.turns]


def without_no_call(scenario):
    """The gold calls, with a call of a tool that does not exist in turns without a call."""
    return [turn or ["no_such_tool()"] for turn in gold(scenario)]


def passes(scenario, turns):
    """Whether the official checker accepts what a service records that leaves out turns without a call."""
    recorded = [turn for turn in turns if turn]
    upstream.forget()  # instances that no episode has used
    return len(recorded) == len(scenario.turns) and upstream.is_valid(scenario, recorded)


def test_a_turn_without_a_call_is_a_turn(page):
    names = ("base", "miss_func", "miss_param")
    listed = [scenarios.scenarios(name) for name in names]
    honest, bogus = ([sum(passes(s, turns(s)) for s in each) for each in listed] for turns in (gold, without_no_call))
    assert (honest, bogus) == ([198, 0, 0], [200, 200, 200])
    assert "| base 198 of 200, miss_func and miss_param 0 of 200 |" in page and "| 200 of 200 each |" in page


@pytest.mark.parametrize("category", ["miss_func", "miss_param"])
def test_the_wheels_second_function_refuses_such_calls(category):
    checker = pytest.importorskip("bfcl_eval.eval_checker.multi_turn_eval.multi_turn_checker")
    for scenario in scenarios.scenarios(category):
        turns = [[[call] for call in turn] for turn in without_no_call(scenario)]
        assert not checker.multi_turn_irrelevance_checker(turns, gold(scenario))["valid"]


def test_instances_outlive_an_episode(page, base):
    changed = valid = 0
    for scenario in base:
        upstream.forget()
        first = [upstream.execute(scenario, turn) for turn in gold(scenario)]
        changed += first != [upstream.execute(scenario, turn) for turn in gold(scenario)]
        upstream.is_valid(scenario, gold(scenario))
        valid += upstream.is_valid(scenario, gold(scenario))
    upstream.forget()
    assert (changed, valid) == (182, 200) and "second play | 182 of 200 |" in page
    for scenario in base[:20]:
        first = [Simulators(scenario).execute(call) for call in scenario.turns[0].gold[:1]]
        assert first == [Simulators(scenario).execute(call) for call in scenario.turns[0].gold[:1]]


def test_instances_of_long_context_share_cards(page):
    from bfcl_eval.eval_checker.multi_turn_eval.func_source_code import long_context, travel_booking

    def shares_cards(scenario):
        instance = travel_booking.TravelAPI()
        instance._load_scenario(copy.deepcopy(scenario.state.get("TravelAPI", {})), long_context=True)
        return any(instance.credit_card_list[key] is card for key, card in long_context.CREDIT_CARD_EXTENSION.items())

    travelling = [scenario for scenario in scenarios.scenarios("long_context") if "TravelAPI" in scenario.classes]
    assert len(travelling) == sum(map(shares_cards, travelling)) == 50 and "module's globals | 50 |" in page


def test_the_executor_evaluates_text(page, base):
    hole = ["__import__('os').getpid()", "(lambda: 6 * 7)()", "().__class__.__name__.upper()"]
    assert upstream.execute(base[3], hole) == [str(os.getpid()), "42", "TUPLE"]
    upstream.forget()
    outputs = [Simulators(base[3]).execute(text) for text in hole]
    assert all(output.startswith("Error during execution:") for output in outputs)
    listed = [scenario for category in scenarios.CATEGORIES for scenario in scenarios.scenarios(category)]
    parsed = [calls.parse_call(call) for scenario in listed for turn in scenario.turns for call in turn.gold]
    assert len(parsed) == 4625 and len(listed) == 800 and "all 4,625 gold calls" in page
    copies = [call.kwargs for call in parsed if call.name == "cp"]
    assert len(copies) == 60 and all(copy["source"] != copy["destination"] for copy in copies)


def doubled(times):
    script = ["mkdir(dir_name='d0')", "cd(folder='d0')", "touch(file_name='only_one')", "cd(folder='..')"]
    for i in range(times):
        script += [f"cp(source='d{i}',destination='d{i + 1}')", f"mv(source='d{i}',destination='d{i + 1}')"]
    return [*script, "find(path='.',name='only_one')"]


def test_copies_share_their_contents(page, base):
    files = next(scenario for scenario in base if scenario.classes == ("GorillaFileSystem",))
    simulators = Simulators(files)
    outputs = [simulators.execute(call) for call in doubled(10)]
    upstream.forget()
    assert upstream.execute(files, doubled(10)) == outputs
    assert outputs[-1].count("only_one") == 1024 and "ten pairs of calls | 1,024 |" in page
    refused = "Error during execution: the paths below a folder would have more than 100000 characters"
    assert [simulators.execute(call) for call in doubled(30)[4:-1]].count(refused) >= 20
    into_itself = Simulators(files)
    assert into_itself.execute("mkdir(dir_name='d')") == "None"
    assert into_itself.execute("cp(source='d',destination='d')") == refused


def test_the_categories_share_their_scenarios(page, base):
    others = {name: scenarios.scenarios(name) for name in scenarios.CATEGORIES if name != "base"}
    shared = {name: sum(a.state == b.state for a, b in zip(base, each, strict=True)) for name, each in others.items()}
    assert shared == {"miss_param": 191, "miss_func": 193, "long_context": 194} and "| 191 to 194 of 200 |" in page
    assert len({json.dumps(scenario.state, sort_keys=True) for scenario in base}) == 195


def equal_attributes(scenario):
    """The share of attributes that equal the gold state before the first call."""
    untouched, final = Simulators(scenario), Simulators(scenario)
    for turn in scenario.turns:
        for call in turn.gold:
            final.execute(call)
    pairs = [
        (value, vars(final.instances[name])[key])
        for name, instance in untouched.instances.items()
        for key, value in vars(instance).items()
        if not key.startswith("_")
    ]
    return sum(a == b for a, b in pairs) / len(pairs)


def prefix_reward(scenario, turns):
    episode = Episode(scenario, skip_empty=False)
    for turn in turns:
        for call in turn:
            episode.call(call)
        episode.end_turn()
    return episode.prefix_reward


def test_rewards_of_no_call_and_of_all(page, base):
    assert f"equal attributes | {sum(map(equal_attributes, base)) / len(base):.2f} |" in page
    assert {prefix_reward(scenario, [[] for _ in scenario.turns]) for scenario in base} == {0.0}
    assert {prefix_reward(scenario, gold(scenario)) for scenario in base} == {1.0}


def test_suspect_tasks(page):
    counts = {name: sum(task.startswith(f"bfcl/{name}/") for task in suspects()) for name in scenarios.CATEGORIES}
    assert counts == {"base": 22, "miss_param": 24, "miss_func": 23, "long_context": 26}
    assert ", ".join(f"{name} {number}" for name, number in counts.items()) in page
    assert suspects()["bfcl/miss_func/49"] == "turn 1: the gold calls `tail` before it is offered"
