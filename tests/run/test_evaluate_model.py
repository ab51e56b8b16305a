"""`coevolve evaluate-model`: the stages' own numbers for any checkpoint or endpoint, resumed per episode; `compare`."""

import json
import os
import re
import shutil
from pathlib import Path

import pytest
from envs.setups import source
from envs.webshop import step_templates
from policies.chatserver import KEY, MODEL, refusing, serving
from policies.shopper import PLAYER
from rollout.playing import content

from coevolve.adapters.sessions import prepare_environment
from coevolve.config.loading import load_suite, merged
from coevolve.config.yaml_files import Section, read_yaml
from coevolve.envs.webshop.tasks import goal_lists
from coevolve.errors import UserError
from coevolve.pipeline.in_process import single_environment
from coevolve.policies.scripted import ScriptedPolicy
from coevolve.records.episodes import Trajectory
from coevolve.records.evaluation import EvalRecord
from coevolve.storage import jsonl, provenance

POLICY = "results/glance/tiny/webshop/base/seed0/policy/target"
EVALUATED = "results/glance/tiny/webshop/base/seed0/eval"


@pytest.fixture
def here(root, tmp_path, monkeypatch):
    """An empty folder but for `configs`, in which the test runs."""
    (tmp_path / "configs").symlink_to(root / "configs")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_checkpoint_gets_the_numbers_of_the_dag_and_is_comparable_with_them(made, monkeypatch, coevolve):
    monkeypatch.chdir(made)
    command = ("evaluate-model", POLICY, "--suite", "configs/glance.yaml", "--env", "webshop", "--out", "mine.json")
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    code, out, err = coevolve(*command, "--threads", "1")
    assert code == 0 and os.environ["OMP_NUM_THREADS"] == "1", err
    (folder,) = (made / "results/evaluate_model").glob("*/evaluation")
    ours, theirs = (jsonl.read(path / "records.jsonl", EvalRecord) for path in (folder, made / EVALUATED))
    assert [(r.task_id, r.reward, r.stop, r.turns) for r in ours] == [
        (r.task_id, r.reward, r.stop, r.turns) for r in theirs
    ]
    result = json.loads((made / "mine.json").read_text())
    assert result["model"]["sha256"] == json.loads((made / POLICY / "policy.json").read_text())["sha256"]
    assert result["settings"]["products"] == 40 and result["settings"]["step_limit"] == 8
    assert str(made) not in json.dumps(result)
    assert f"{100 * result['splits']['test']['mean_reward']:.1f} [" in out and "an invented catalogue" in out

    code, out, _ = coevolve("compare", "mine.json", EVALUATED)
    assert code == 0 and "every setting of the evaluation is the same; both are of the same weights." in out

    before = (folder / "records.jsonl").stat().st_mtime_ns
    assert coevolve(*command)[0] == 0
    assert (folder / "records.jsonl").stat().st_mtime_ns == before

    # Results of other inputs, as a killed run leaves them, are made again: the evaluation, and what it needs.
    records = {path: provenance.read(path) for path in folder.parent.rglob("provenance.json")}
    stale = {path: record for path, record in records.items() if record.inputs}
    assert len(stale) > 1 and folder / "provenance.json" in stale
    for path, record in stale.items():
        others = record.model_copy(update={"inputs": dict.fromkeys(record.inputs, "0" * 64)})
        path.write_text(others.to_json())
        assert coevolve(*command)[0] == 0
        assert provenance.read(path).inputs == record.inputs

    changed = ("--set", "envs.webshop.step_limit=9", "--set", "envs.webshop.observation_length=299")
    code, _, err = coevolve(*command, "--tasks", "2", *changed, "--out", "few.json")
    assert code == 0, err
    _, out, _ = coevolve("compare", "mine.json", "few.json")
    assert "NOT comparable (settings that differ: 4; not stated by both: 0)" in out
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in out.splitlines() if "| differs" in line]
    settings = {row[0]: row[1:3] for row in rows}
    assert settings["step_limit"] == ["8", "9"] and settings["envs.webshop.observation_length"] == ["300", "299"]
    assert settings["tasks"] == ["6", "2"] and "task_list" in settings


def test_scores_do_not_depend_on_the_number_of_episodes_at_once(made, tmp_path, monkeypatch, coevolve):
    """One policy, sampled twice in each of 40 tasks: records and episodes with 1, 7 and 64 environments."""
    monkeypatch.chdir(made)
    fixed = ("--env", "webshop-small", "--context", "512", "--set", "rollout.max_new_tokens=24")
    fixed += ("--set", "evaluation.samples=2", "--set", "evaluation.temperature=1.0")
    fixed += ("--set", "envs.webshop.tasks.evaluate=null", "--set", "envs.webshop.step_limit=4")
    found = []
    for number in (1, 7, 64):
        root = tmp_path / str(number)
        code, _, err = coevolve(
            "evaluate-model", POLICY, *fixed, "--set", f"envs.webshop.workers={number}", "--root", root
        )
        assert code == 0, err
        (folder,) = root.glob("*/evaluation")
        episodes = jsonl.read(folder / "episodes.jsonl", Trajectory)
        found.append(((folder / "records.jsonl").read_bytes(), content(episodes)))
    assert len(found[0][1]) == 80 and found[0] == found[1] == found[2]


def test_an_endpoint_is_evaluated_and_goes_on_after_a_failure(here, monkeypatch, coevolve):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/v1")
    with serving(PLAYER, count=lambda messages: 10 * len(messages)) as server:
        command = ["evaluate-model", server.url, "--name", MODEL, "--env", "webshop-small", "--tasks", "8"]
        command += ["--set", "envs.webshop.workers=2", "--context", "100000"]
        command += ["--set", "models.model.endpoint.length=max_completion_tokens"]
        server.faults.extend([lambda chat: False] * 16 + [refusing(401)])
        code, _, err = coevolve(*command)
        assert code == 2 and "not accepted" in err
        before = len(server.bodies)
        code, out, err = coevolve(*command)
        assert code == 0, err
    assert all("max_completion_tokens" in body and "max_tokens" not in body for body in server.bodies)
    (folder,) = (here / "results/evaluate_model").glob("*/evaluation-8")
    turns = sum(len(episode.turns) for episode in jsonl.read(folder / "episodes.jsonl", Trajectory))
    assert len(server.bodies) - before < turns < len(server.bodies)  # finished episodes were not played again
    assert f"| {MODEL}" in out and "Tokens: " in out
    assert f"Model that the responses name: {MODEL}-2026 fp_1 ({len(server.bodies) - 1})." in out
    result = json.loads((folder.parent / "evaluation-8.json").read_text())
    assert result["splits"]["test"]["tasks"] == 8 and result["spent"]["answers"] == len(server.bodies) - 1
    assert KEY not in json.dumps(result) and "127.0.0.1" not in json.dumps(result)


NAMED = ("http://127.0.0.1:9/v1", "--name", "m", "--env")
SMALL = ("--env", "webshop-small")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["nowhere", *SMALL], "nowhere: no checkpoint in transformers' format"),
        (["torn", *SMALL], "torn/model.safetensors: not a whole file of weights"),
        (["garbled", *SMALL], "garbled/config.json: not readable as JSON"),
        (["listed", *SMALL], "listed/config.json: no JSON object"),
        (["paired", *SMALL], "paired/config.json: no JSON object"),
        (["deep", *SMALL], "deep/config.json: not readable as JSON (maximum recursion depth"),
        ([NAMED[0], *SMALL], "Give --name MODEL."),
        ([*NAMED, "webshp"], "did you mean `webshop`?"),
        ([*NAMED, "guess"], "environment without a suite `guess`: "),
        ([*NAMED, "webshop-small", "--split", "tset"], "should be 'test' or"),
        ([*NAMED, "bare.yaml"], "bare.yaml: key `envs` is empty; add an"),
        ([*NAMED, "sciworl", "--suite", "smoke"], "did you mean `sciworld`?"),
        # Overrides without an effect.
        ("seeds=[7]", "`seeds` is fixed here; leave it out, and give a seed by `--seed`."),
        ("methods=[no_such]", "`methods` is fixed here"),
        ("models.nonsense.foo=1", "`models` has only `models.model` here; write models.model.KEY=VALUE."),
        ("envs.sciworld.step_limit=9", "`envs` has only `envs.webshop` here; write envs.webshop.KEY=VALUE."),
        ("models.model.endpoint.lenght=max_tokens", "did you mean `length`?"),
    ],
)
def test_bad_input_is_one_sentence(here, coevolve, arguments, sentence):
    (here / "bare.yaml").write_text("envs:\n")
    configs = {"torn": '{"max_position_embeddings": 64}', "garbled": "{", "listed": "[1]", "paired": '[["a", 1]]'}
    configs |= {"deep": '{"a":' * 20_000 + "1" + "}" * 20_000}
    for folder, config in configs.items():
        (here / folder).mkdir()
        (here / folder / "config.json").write_text(config)
        (here / folder / "model.safetensors").write_bytes(b"half of it")
    if isinstance(arguments, str):
        arguments = [*NAMED, "webshop", "--suite", "smoke", "--set", arguments]
    code, _, err = coevolve("evaluate-model", *arguments)
    assert code == 2 and sentence in err and len(err.splitlines()) == 1
    assert not (here / "results").exists()


def test_a_named_protocol_takes_its_settings_and_mixes_with_no_other(here, coevolve):
    """The settings that decide a published number, by protocol: goals, products, steps, temperature, tokens."""
    model = Section({"label": "m", "path": "m", "context": 4096, "parameters": 1.0}, {})
    found = {}
    for name in ("eto", "verl_agent", "webshop"):
        suite, env = single_environment(f"webshop-{name}", None, [], model, seed=0)
        shop = suite.envs[env]
        lists = goal_lists(shop.tasks, 12_087)
        sampling = suite.evaluation.temperature, suite.rollout.max_new_tokens, suite.prompt.examples
        products = Path(shop.catalogue.products.path).name
        found[name] = (suite.protocol, len(lists.test), products, shop.goals, shop.step_limit, *sampling)
        assert suite.protocols[name].webshop_timeout == "zero"
    full = "items_shuffle.json"
    assert found == {
        "eto": ("eto", 200, full, "human", 10, 0.0, 512, 1),
        "verl_agent": ("verl_agent", 128, "items_shuffle_1000.json", "synthetic", 15, 0.4, 512, 0),
        "webshop": ("webshop", 500, full, "human", 100, 0.0, 256, 0),
    }
    command = ("evaluate-model", "http://127.0.0.1:9/v1", "--name", "m", "--env")
    for arguments, sentence in (
        (("webshop-eto", "--protocol", "fixed"), "the settings of `envs.webshop` are for `eto` alone"),
        (("webshop-eto", "--protocol", "webshop"), "configs/envs/webshop-eto-webshop.yaml does not exist"),
        (("sciworld", "--protocol", "eto"), "configs/envs/sciworld-eto.yaml does not exist"),
        (("webshop", "--suite", "smoke", "--protocol", "eto"), "are for the protocols paper and fixed"),
    ):
        code, _, err = coevolve(*command, *arguments)
        assert code == 2 and sentence in err and len(err.splitlines()) == 1, err


def shop_of_messages(root):
    """Writes `shop.yaml` and its templates: the small shop under `verl_agent`, a message a step."""
    raw = read_yaml(root / "configs/envs/webshop-small.yaml").plain() | {"protocol": "verl_agent"}
    prompt = source(Path(shutil.copy(step_templates.__file__, "templates.py")))
    prompt |= {"first": "FIRST", "later": "LATER", "history": 2, "longest": 13000}
    raw["envs"]["webshop"] |= {"protocol": "verl_agent", "observation_length": None, "prompt": prompt}
    Path("shop.yaml").write_text(json.dumps(raw))


def buys(conversation):
    """An answer that searches for the task's words and buys the first product."""
    (message,) = conversation.prompt
    listed = re.findall("^'(.*)',$", message.content, re.MULTILINE)
    found = "CLICK[Buy Now]" if "click[buy now]" in listed else listed[-1]
    searched = message.content.splitlines()[1].replace("Shop: ", "search[") + "]"
    return f"<think>So.</think><action>{found if len(listed) > 2 else searched}</action>"


def test_an_endpoint_gets_single_message_a_step_and_the_records_hold_it(here, root, monkeypatch, coevolve):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/v1")
    shop_of_messages(root)
    with serving(ScriptedPolicy(buys)) as server:
        command = ("evaluate-model", server.url, "--name", MODEL, "--env", "shop.yaml", "--context", "100000")
        _, out, _ = coevolve(*command)
    (folder,) = (here / "results/evaluate_model").glob("*/evaluation")
    episodes = jsonl.read(folder / "episodes.jsonl", Trajectory)
    saw = [text for e in episodes for text in (e.prompt[-1].content, *(turn.observation for turn in e.turns[:-1]))]
    sent = [[(each["role"], each["content"]) for each in body["messages"]] for body in server.bodies]
    assert sorted(sent) == sorted([("user", text)] for text in saw)
    assert len({body["seed"] for body in server.bodies}) == len(saw)
    assert {(e.stop, len(e.turns)) for e in episodes} == {("done", 3)} and "not the prompts" not in out
    rewards = [episode.reward for episode in episodes]
    score, success = (f"{100 * sum(each) / len(each):.1f} [" for each in (rewards, [r == 1.0 for r in rewards]))
    assert max(rewards) > 0 and score in out and success in out
    assert coevolve("reverify", folder, "--cache", here / "agreed")[0] == 0


def test_a_checkpoint_reads_single_message_a_step(made, root, monkeypatch, coevolve):
    monkeypatch.chdir(made)
    shop_of_messages(root)
    out, command = made / "messages", ("evaluate-model", POLICY, "--env", "shop.yaml")
    assert coevolve(*command, "--set", "rollout.max_new_tokens=24", "--root", out)[0] == 0
    (folder,) = out.glob("*/evaluation")
    assert coevolve("reverify", folder, "--cache", out)[0] == 0


def test_what_trains_or_shows_an_example_has_no_messages_a_step(here, root, coevolve):
    shop_of_messages(root)
    suite = {"extends": ["small.yaml", str(here / "shop.yaml")], "suite": "messages", "iterations": {"webshop": 1}}
    for method, override in (("coevolve", ()), ("untrained", ("--set", "prompt.examples=1"))):
        Path("suite.yaml").write_text(json.dumps(suite | {"methods": [method]}))
        code, _, err = coevolve("plan", "--suite", "suite.yaml", *override)
        assert code == 2 and f"`{method}` trains or has examples, but `envs.webshop` shows one message a step" in err
    with pytest.raises(UserError, match="trainers read conversations"):
        prepare_environment("shop.yaml")


def test_an_environment_needs_no_number_of_iterations(root, tmp_path):
    study, path = root / "configs/suites/studies/micro_methods.yaml", tmp_path / "shop.yaml"
    path.write_text(json.dumps({"envs": {"shop": merged(study).plain()["envs"]["webshop"]}}))
    model = Section({"label": "m", "path": "m", "context": 100, "parameters": 1.0}, {})
    suite, name = single_environment(str(path), None, [], model, seed=0)
    assert name == "shop" and suite.envs["shop"] == load_suite(study).envs["webshop"]
