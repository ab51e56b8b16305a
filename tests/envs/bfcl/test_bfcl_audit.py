"""The audit of BFCL is true: every number of `docs/environments/bfcl_audit.md` is measured with the wheel."""

import copy
import json
import os

import pytest
from envs.bfcl.played import golds, play, with_bogus_calls

from coevolve.envs.bfcl import calls, scenarios, upstream
from coevolve.envs.bfcl.simulators import Simulators
from coevolve.envs.bfcl.suspects import suspects

pytest.importorskip("bfcl_eval", reason="the wheel of envs_setup/bfcl.lock is not installed; run `make setup`")


@pytest.fixture(scope="module")
def page(root):
    return (root / "docs/environments/bfcl_audit.md").read_text()


@pytest.fixture(scope="module")
def base():
    return scenarios.scenarios("base")


def passes(scenario, turns):
    """Whether the official checker accepts what a service records that leaves out turns without a call."""
    recorded = [turn for turn in turns if turn]
    upstream.forget()  # instances that no episode has used
    return len(recorded) == len(scenario.turns) and upstream.is_valid(scenario, recorded)


@pytest.mark.parametrize(
    ("turns", "passed"), [(golds, [198, 0, 0, 198]), (with_bogus_calls, [200] * 4)], ids=["golds", "bogus calls"]
)
def test_a_turn_without_a_call_is_a_turn(page, turns, passed):
    """Where it is not recorded, conversations fail, but with a bogus call; the kit's `skip_empty` does the same."""
    found = [[passes(s, turns(s)) for s in scenarios.scenarios(name)] for name in scenarios.CATEGORIES]
    assert found == [
        [play(s, turns(s), skip_empty=True).success for s in scenarios.scenarios(name)] for name in scenarios.CATEGORIES
    ]
    assert [sum(each) for each in found] == passed
    assert "| base 198 of 200, miss_func and miss_param 0 of 200 |" in page and "| 200 of 200 each |" in page


def test_instances_outlive_an_episode(page, base):
    changed = valid = 0
    for scenario in base:
        upstream.forget()
        first = [upstream.execute(scenario, turn) for turn in golds(scenario)]
        changed += first != [upstream.execute(scenario, turn) for turn in golds(scenario)]
        upstream.is_valid(scenario, golds(scenario))
        valid += upstream.is_valid(scenario, golds(scenario))
    upstream.forget()
    assert (changed, valid) == (182, 200) and "second play | 182 of 200 |" in page


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


def test_the_share_of_equal_attributes_rewards_an_episode_without_calls(page, base):
    assert f"equal attributes | {sum(map(equal_attributes, base)) / len(base):.2f} |" in page


def test_suspect_tasks(page):
    counts = {name: sum(task.startswith(f"bfcl/{name}/") for task in suspects()) for name in scenarios.CATEGORIES}
    assert counts == {"base": 22, "miss_param": 24, "miss_func": 23, "long_context": 26}
    assert ", ".join(f"{name} {number}" for name, number in counts.items()) in page
    assert suspects()["bfcl/miss_func/49"] == "turn 1: the gold calls `tail` before it is offered"
