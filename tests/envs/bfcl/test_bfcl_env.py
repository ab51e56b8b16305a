"""BFCL as an environment: golds, hostile calls, isolation of episodes, rewards, splits and protocols."""

import copy
import gc
import hashlib
import importlib
import itertools
import json
import random
import sys
import types
from concurrent.futures import ThreadPoolExecutor
from decimal import getcontext

import builders
import mpmath
import numpy as np
import pytest
from envs.bfcl.played import golds, play
from envs.setups import section, setup_of

from coevolve.chat.prompts import write_action
from coevolve.envs.base import OVER, EnvError
from coevolve.envs.bfcl import calls, domain, env, installation, observations, scenarios, synthesis, tasks, upstream
from coevolve.envs.bfcl.simulators import Simulators
from coevolve.envs.bfcl.suspects import suspects
from coevolve.envs.replay import replay_all
from coevolve.errors import UserError

FIXED, AGENTEVOLVER = section("bfcl"), section("bfcl", "bfcl_agentevolver")
pytest.importorskip("bfcl_eval", reason="the wheel of envs_setup/bfcl.lock is not installed; run `make setup`")
BASE = scenarios.scenarios("base")


def having(*classes):
    """The first scenario with exactly these simulators."""
    return next(i for i, scenario in enumerate(BASE) if set(scenario.classes) == {*classes})


# --- golds ---------------------------------------------------------------------------------------------------


def test_all_golds_earn_one_and_each_output_is_that_of_upstreams_executor():
    counts = {"base": 1142, "miss_param": 1140, "miss_func": 1140, "long_context": 1203}
    assert {name: installation.replay_gold(name) for name in counts} == {
        name: (200, n, []) for name, n in counts.items()
    }


def test_the_command_prints_the_counts_and_fails_on_a_difference(monkeypatch):
    lines: list[str] = []
    options = types.SimpleNamespace(limit=2)
    assert installation.run(options, lines.append) == 0
    assert lines[0] == "base: 2 episodes, 16 calls, 0 differences"
    monkeypatch.setattr(calls, "MAX_CHARACTERS", 5)  # every gold call is refused here
    assert installation.run(options, lines.append) == 1


@pytest.mark.parametrize("keys", [{}, {"rules": {"reward": "binary"}}, {"tools": "json"}])
def test_experts_are_the_golds_of_all_training_tasks_and_replay_in_any_order(keys):
    setup = setup_of(section("bfcl", tasks={"train": ["base", "miss_param", "miss_func"]}, **keys))
    experts = domain.experts(setup, domain.select(setup).training)
    assert len(experts.trajectories) == 300 and experts.drops == ()
    assert {expert.reward for expert in experts.trajectories} == {1.0}
    assert all(turn.action is not None for expert in experts.trajectories for turn in expert.turns)
    with domain.pool(setup, 1) as (one,):
        order = [*experts.trajectories, *reversed(experts.trajectories)]
        assert replay_all(one, order).different == 0


# --- hostile calls -------------------------------------------------------------------------------------------

HOSTILE = [
    # No plain call.
    *("__import__('os').system('true')", "().__class__.__bases__[0].__subclasses__()", "self.ls()"),
    *("GorillaFileSystem.ls()", "ls(a=True)(1)", "(ls)(a=True) or 1", "ls(a=True); ls()"),
    *("", "ls", "1", "ls(", "ls\x00()"),
    # No tool of the episode; the parser normalises the letters of the last two to `ls`.
    *("_load_scenario({})", "__init__()", "_navigate_to_directory(path='.')", "eval('1')", "open('/etc/passwd')"),
    *("l\N{LATIN SMALL LETTER LONG S}()", "\N{FULLWIDTH LATIN SMALL LETTER L}s()"),
    # Arguments that are no literals, too many, too long or too deep.
    *("ls(a=ls())", "ls(a=[ls() for _ in range(3)])", "ls(a=1 + 1)", "ls(**{'a': True})", "ls(*[True])"),
    *("ls(" + ",".join(f"k{i}=1" for i in range(count)) + ")" for count in (33, 2_000)),
    *("echo(content='" + "x" * 1_000_000 + "')", "echo(content=" + "[" * 5_000 + "]" * 5_000 + ")"),
    *(f"echo(content={content}1)" for content in ("-" * 10_000, "1+" * 8_000, "9" * 5_000)),
    # Arguments of another type or name.
    *(f"cd({arguments})" for arguments in ("folder=b'x'", "folder={1, 2}", "folder=[1]", "folder={}", "other='x'", "")),
    *("cd('a', 'b', 'c')", "find(path=3)", "tail(file_name='x', lines='many')", "mean(numbers=['a'])"),
    # Numbers that take all time or memory.
    *("power(base=10, exponent=1000000000)", "power(10, 1e300)", "power(base=1e400, exponent=float('nan'))"),
    *(f"logarithm(value=2, base=10, precision={digits})" for digits in ("1000000000", "'1_000_000'")),
    *("logarithm(2, 10, b'1000000')", "square_root(2, 1000000000)", "square_root(2, ' 1000000 ')"),
    "round_number(number=1, decimal_places=-1000000000)",
]


@pytest.mark.parametrize("config", [FIXED, AGENTEVOLVER], ids=["fixed", "agentevolver"])
def test_hostile_calls_end_as_observations_and_change_no_state(config):
    one, precision = env.Bfcl(config), (mpmath.mp.dps, getcontext().prec)
    one.start(tasks.task_of("base", having("GorillaFileSystem", "MathAPI"), "test"))
    before = state(one._episode._policy)
    for text in HOSTILE:
        result = one.step(text.replace("\n", " "))
        assert result.observation.startswith(("Error", '{"error"', "{'error'")), (text[:80], result.observation[:200])
        assert len(result.observation) < 1_000 and not result.done
    assert state(one._episode._policy) == before
    for call in ("logarithm(value=5.0, base=2.0, precision=77)", "square_root(number=5.0, precision=77)"):
        one._episode._policy.execute(call)
    assert (mpmath.mp.dps, getcontext().prec) == precision


def state(simulators):
    return {
        name: {key: repr(value) for key, value in vars(instance).items() if key != "_random"}
        for name, instance in simulators.instances.items()
    }


def test_folders_that_contain_themselves_and_lone_surrogates_are_survived():
    one = env.Bfcl(FIXED)
    one.start(tasks.task_of("base", having("GorillaFileSystem"), "test"))
    script = ["mkdir(dir_name='d')", "cp(source='d',destination='d')", "cp(source='d',destination='e')"]
    script += ["mv(source='d',destination='e')", "find(path='.',name='d')", "du(human_readable=True)", "ls(a=True)"]
    script += ["cp(source='e',destination='e')", "find(path='.',name='d')", "echo(content='\\ud800')", "end_turn()"]
    for call in script * 3:
        one.step(call).observation.encode()  # raises for a surrogate
    assert one.step(None).score == 0.0


def test_folders_that_double_with_each_message_are_refused_before_a_walk_of_them_fills_the_memory():
    one = env.Bfcl(section("bfcl", "bfcl_agentevolver", step_limit=4))
    one.start(tasks.task_of("base", having("GorillaFileSystem"), "test"))

    def send(*listed):
        blocks = [calls.write_tool_call(calls.parse_call(call), ()) for call in listed]
        return one.step(one.parse("\n".join(blocks))).observation.split("\n")

    copies = [f"{tool}(source='d{i}',destination='d{i + 1}')" for i in range(30) for tool in ("cp", "mv")]
    first = send("mkdir(dir_name='d0')", *copies[:30])
    refused = "Error during execution: the paths below a folder would have more than 100000 characters"
    assert 0 < first.count(refused) < 15
    assert send(*copies[30:]).count(refused) == 15
    folders = one._episode._policy.instances["GorillaFileSystem"].root.contents
    before = [*folders], one._episode._policy.execute("find(path='.')")
    assert send("cp(source='d30',destination='other')", "cp(source='d30',destination='d30')") == [refused] * 2
    found, size, made = send("find(path='.')", "du(human_readable=True)", "mkdir(dir_name='e')")
    assert ([*folders][:-1], found) == before and len(found) < 300_000
    assert "disk_usage" in size and (made, [*folders][-1]) == ("None", "e")


def test_a_folder_in_a_copied_folder_grows_in_both_and_is_bounded_from_a_removed_folder_too():
    simulators = Simulators(BASE[having("GorillaFileSystem")])
    files = simulators.instances["GorillaFileSystem"]
    for call in ("mkdir('d')", "cd('d')", "mkdir('e')", "cd('..')", "cp('d', 'f')", "rm('d')", "cd('f')", "cd('e')"):
        simulators.execute(call)
    assert simulators.execute("touch('both')") == "None" and files.root.contents["f"].contents["e"].contents
    simulators.execute("cd('..')")  # the folder `e` was made in `d`, which the root no longer holds
    assert files._current_dir is not files.root.contents["f"] and files._current_dir.name == "d"
    outputs = [simulators.execute(f"{tool}('e{i or ''}', 'e{i + 1}')") for i in range(15) for tool in ("cp", "mv")]
    assert sum(output.startswith("Error") for output in outputs) >= 2
    assert len(simulators.execute("find()")) < 300_000
    simulators = Simulators(BASE[having("GorillaFileSystem")])
    outputs = [simulators.execute(f"touch(({'x' * 15_000 + str(i)!r},))") for i in range(8)]
    assert outputs[:6] == ["None"] * 6 and outputs[6] == outputs[7] and outputs[7].startswith("Error")


def test_nothing_is_evaluated(monkeypatch):
    ran = []
    for name in ("eval", "exec", "compile"):
        original = __builtins__[name] if isinstance(__builtins__, dict) else getattr(__builtins__, name)
        monkeypatch.setattr(
            f"builtins.{name}",
            lambda source, *rest, _f=original, _n=name, **named: (
                _f(source, *rest, **named) if _n == "compile" and 0x400 in (*rest, *named.values()) else ran.append(_n)
            ),
        )
    simulators = Simulators(BASE[3])
    for text in [*HOSTILE, *BASE[3].turns[0].gold]:
        simulators.execute(text)
    assert ran == []


# --- isolation -----------------------------------------------------------------------------------------------


def module_state():
    """The data in the globals of the simulators' modules, and the precision settings that they write."""
    names = importlib.import_module("bfcl_eval.constants.executable_backend_config").CLASS_FILE_PATH_MAPPING
    prefix = "bfcl_eval.eval_checker.multi_turn_eval.func_source_code."
    used = [names[api] for api in (*tasks.KINDS, "MathAPI", "MessageAPI", "TicketAPI", "TwitterAPI")]
    modules = [vars(importlib.import_module(name)) for name in (*used, prefix + "long_context")]
    data = [{k: v for k, v in module.items() if isinstance(v, dict | list) and k.isupper()} for module in modules]
    return repr([data, mpmath.mp.dps, getcontext().prec])


def test_2000_episodes_leak_neither_state_nor_memory():
    one, rng = env.Bfcl(FIXED), random.Random(0)
    numbered = itertools.product(scenarios.CATEGORIES, range(scenarios.SCENARIOS))
    listed = [tasks.task_of(category, i, "test") for category, i in numbered]

    def episode(task):
        seen = [one.start(task)]
        for turn in scenarios.scenario(task.data["category"], task.data["index"]).turns:
            seen += [one.step(call).observation for call in turn.gold]
            result = one.step("end_turn()")
        assert result.reward == 1.0 and result.done
        return hashlib.sha256("".join(seen).encode()).hexdigest()

    first = {task.task_id: episode(task) for task in listed}
    globals_before = module_state()
    gc.collect()
    blocks = sys.getallocatedblocks()
    for task in rng.choices(listed, k=1_200):
        assert episode(task) == first[task.task_id]
    one.close()
    gc.collect()
    assert sys.getallocatedblocks() - blocks < 2_000
    assert module_state() == globals_before


def test_a_card_of_the_modules_globals_is_charged_in_one_episode_only():
    """Upstream's long variants put cards of a module's globals into an instance, so a booking outlives its episode."""
    long_context = importlib.import_module("bfcl_eval.eval_checker.multi_turn_eval.func_source_code.long_context")
    before = copy.deepcopy(long_context.CREDIT_CARD_EXTENSION)
    card = max(before, key=lambda key: before[key]["balance"])
    scenario = next(s for s in scenarios.scenarios("long_context") if "TravelAPI" in s.classes)

    def balance(execute):
        token = json.loads(execute("authenticate_travel('a', 'b', 'c', 'read_write', 'd', 'e')"))["access_token"]
        execute(f"set_budget_limit({token!r}, 1.0)")
        booked = execute(f"book_flight({token!r}, {card!r}, '2024-10-10', 'SFO', 'LAX', 'economy')")
        assert '"booking_status": true' in booked, booked
        return execute(f"get_credit_card_balance({token!r}, {card!r})")

    first = balance(Simulators(scenario).execute)
    assert balance(Simulators(scenario).execute) == first
    assert before == long_context.CREDIT_CARD_EXTENSION


def test_threads_do_not_disturb_each_other():
    def played(index):
        return play(BASE[index], golds(BASE[index])).prefix_reward

    with ThreadPoolExecutor(8) as threads:
        assert set(threads.map(played, [*range(0, 200, 2)] * 2)) == {1.0}


# --- rewards -------------------------------------------------------------------------------------------------


def test_doing_nothing_earns_zero():
    for scenario in itertools.chain.from_iterable(map(scenarios.scenarios, scenarios.CATEGORIES)):
        episode = play(scenario, [[] for _ in scenario.turns])
        assert (episode.prefix_reward, episode.success) == (0.0, False)


@pytest.mark.parametrize(("share", "count"), [(0.1, 52), (0.3, 78), (0.5, 62)])
def test_golds_without_a_share_of_their_calls_earn_a_share_and_one_only_if_the_official_checker_agrees(share, count):
    rng, between = random.Random(0), 0
    for scenario in BASE:
        turns = [[call for call in turn if rng.random() >= share] for turn in golds(scenario)]
        episode = play(scenario, turns)
        between += 0.0 < episode.prefix_reward < 1.0
        assert (episode.prefix_reward == 1.0) == episode.success == upstream.is_valid(scenario, turns)
        upstream.forget()
    assert between == count


def test_extra_reads_are_allowed_and_a_missing_end_is_not_a_success():
    scenario = BASE[3]
    assert play(scenario, [["ls(a=True)", *turn, "pwd()"] for turn in golds(scenario)]).success
    *before_last, last = golds(scenario)
    episode = play(scenario, before_last)
    for call in last:
        episode.call(call)
    assert episode.prefix_reward == 0.5 and not episode.success


def test_an_episode_tells_the_user_turns_and_is_over_after_the_last():
    one = env.Bfcl(FIXED)
    with pytest.raises(EnvError):
        one.step("ls()")
    start = one.start(tasks.task_of("miss_func", 3, "test"))
    assert "\ncp(source: string, destination: string)" in start and "\nfind(" not in start
    assert one.step(None).observation.startswith("Error: I found no call")
    offer = one.step("end_turn()").observation
    assert offer.startswith("User: More tools are available now:\n") and "find(path: string = '.'" in offer
    for turn in scenarios.scenario("miss_func", 3).turns[1:]:
        for call in turn.gold:
            assert not one.step(one.parse(write_action(call))).done
        result = one.step("end_turn()")
    assert (result.observation, result.reward, result.done) == (env.LAST, 1.0, True)
    assert one.step("ls()").observation == OVER and one.step("ls()").reward == 1.0
    with pytest.raises(UserError, match="must hold `category` and `index`"):
        one.start(builders.task("x", env="bfcl"))
    with pytest.raises(UserError, match="no scenario `base/200`"):
        one.start(builders.task("x", env="bfcl", data={"category": "base", "index": 200}))


@pytest.mark.parametrize(
    "data",
    [{}, {"gold": "ls()"}, {"gold": "5"}, {"gold": '["ls()"]', "turns": '["List.", "Again."]'}],
    ids=["no gold", "no JSON", "no list", "a turn too many"],
)
def test_a_synthetic_task_with_unusable_data_is_one_sentence(data):
    task = builders.task("x", env="bfcl", data={"category": "base", "index": 0, "request": "Go."} | data)
    with pytest.raises(UserError, match="task `x`: `data` must hold `gold`"):
        tasks.scenario_of(task)


def test_refused_calls_are_recognised():
    def refused(text):
        return observations.is_refused("", builders.turn("", text))

    assert refused("Error during execution: no tool `x`") and refused('{"error": "cd: no such directory"}')
    assert not refused('{"current_directory": "/"}') and not refused("User: Error?")


# --- AgentEvolver's rules ------------------------------------------------------------------------------------


def test_agentevolvers_rules_end_the_turn_with_a_message_without_a_call_and_reward_the_end_alone():
    one = env.Bfcl(AGENTEVOLVER)
    scenario = BASE[3]
    assert one.start(tasks.task_of("base", 3, "test")).count('"description"') > 10
    for turn in scenario.turns:
        action = one.parse("\n".join(env.write_call(AGENTEVOLVER, scenario, call) for call in turn.gold))
        assert action is not None and action.count("\n") == len(turn.gold) - 1
        result = one.step(action)
        assert (result.reward, result.done) == (0.0, False)
        result = one.step(one.parse(env.DONE))
    assert (result.reward, result.done) == (1.0, True)
    python = env.Bfcl(section("bfcl", "bfcl_agentevolver", rules={"calls": "python"}))
    assert python.parse("Action: ls(") is None and python.parse("Action: ls()") == "ls()"
    selection = domain.select(setup_of(AGENTEVOLVER))
    assert [task.data["index"] for task in selection.sft] == [*range(100)]
    assert [task.data["index"] for task in selection.evaluate] == [*range(100, 200)]
    assert len(domain.experts(setup_of(AGENTEVOLVER), selection.sft).trajectories) == 100


# --- splits --------------------------------------------------------------------------------------------------


def test_splits_are_disjoint_by_scenario_and_pinned():
    config = section("bfcl", tasks={"train": ["base", "miss_param", "miss_func"]}, splits=[*tasks.EVALUATED])
    selection = domain.select(setup_of(config))
    indices = {"train": {task.data["index"] for task in selection.training}}
    for task in selection.evaluate:
        indices.setdefault(task.split, set()).add(task.data["index"])
    assert {name: len(part) for name, part in indices.items()} == {
        "train": 100, "validation": 20,
        "test": 80, "test_miss_param": 80, "test_miss_func": 80, "test_long_context": 80,
    }  # fmt: skip
    tests = [part for name, part in indices.items() if name.startswith("test")]
    assert all(part == tests[0] for part in tests)
    assert indices["train"] | indices["validation"] | tests[0] == set(range(200))
    assert len(selection.sft) == 300 and not selection.overlap
    assert [kind for kind in tasks.KINDS if any(task.kind == kind for task in selection.sft)] == [*tasks.KINDS]
    digests = {
        name: hashlib.sha256(",".join(map(str, part)).encode()).hexdigest()[:16]
        for name, part in tasks.scenario_parts("scenario").items()
    }
    assert digests == {"train": "8f96f9130810ac11", "validation": "70f1150ef6d7a967", "test": "e689b8bb035becfe"}


def test_suspect_tasks_have_a_reason_and_can_be_left_out():
    assert all(reason.startswith("turn ") for reason in suspects().values())
    clean = domain.select(setup_of(section("bfcl", tasks={"suspects": "remove"})))
    every = domain.select(setup_of(FIXED))
    evaluated, left = ({t.task_id for t in selection.evaluate} for selection in (every, clean))
    assert evaluated - left == suspects().keys() & evaluated
    assert clean.sft == every.sft


# --- generated tasks -----------------------------------------------------------------------------------------


def test_generated_tasks_are_solvable_different_and_split_by_scenario():
    generated = {"train": 24, "evaluate": 12, "actions": 2}

    def generating(seed):
        of_kind = {"generated": generated | {"seed": seed}, "kinds": ["TradingBot"]}
        return setup_of(section("bfcl", tasks=of_kind, splits=["test"], tools="names"))

    setup = generating(7)
    split, parts = domain.select(setup), tasks.scenario_parts("scenario")
    assert len(split.sft) == 24 and len(split.evaluate) == 12 and {task.split for task in split.evaluate} == {"test"}
    for part, of_part in (("train", split.sft), ("test", split.evaluate)):
        assert {task.data["index"] for task in of_part} <= set(parts[part])
        assert len({task.data["gold"] for task in of_part}) == len(of_part)
        experts = domain.experts(setup, of_part)
        assert {expert.reward for expert in experts.trajectories} == {1.0} and experts.drops == ()
    solutions = [{task.data["gold"] for task in of_part} for of_part in (split.sft, split.evaluate)]
    assert solutions[0].isdisjoint(solutions[1])
    assert {len(json.loads(gold)) for gold in solutions[0]} == {1, 2}
    assert "generated tasks" in setup.config.note and FIXED.note == ""
    assert domain.select(generating(7)) == split != domain.select(generating(8))
    with domain.pool(setup, 1) as (one,):
        start = one.start(split.sft[0])
    assert "(" not in start.splitlines()[1] and "get_watchlist" in start.splitlines()[1]


def test_proposed_calls_have_all_required_arguments_and_some_optional_ones():
    setup, rng, optional = setup_of(FIXED), np.random.default_rng(0), []
    start = domain.select(setup).sft[0]
    documents = tasks.scenario_of(start).documents
    for _ in range(400):
        call = calls.parse_call(synthesis.propose(setup, start, [], (), rng))
        parameters = documents[call.name]["parameters"]
        assert {*parameters["required"]} <= call.kwargs.keys() <= parameters["properties"].keys()
        optional += [key in call.kwargs for key in parameters["properties"].keys() - {*parameters["required"]}]
    assert len(optional) > 50 and sum(optional) / len(optional) == pytest.approx(synthesis.OPTIONAL, abs=0.1)


def test_more_generated_tasks_than_there_are_is_an_error(monkeypatch):
    monkeypatch.setattr("coevolve.envs.bfcl.generated.TRIES", 1)
    generated = {"train": 200, "evaluate": 1, "actions": 1, "seed": 7}
    with pytest.raises(UserError, match=r"key `tasks.generated`: \d+ of 200 tasks could be made; lower the number"):
        domain.select(setup_of(section("bfcl", tasks={"generated": generated}, splits=["test"])))
