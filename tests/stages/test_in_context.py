"""The rows that only ask, through the real stages in a small WebShop, of a server that shops; the one-shot prompt."""

import json
import re
from pathlib import Path

import pytest
import yaml
from policies.chatserver import KEY, MODEL, refusing, serving
from policies.shopper import PLAYER

from coevolve.chat.prompts import demonstration
from coevolve.config.loading import load_suite
from coevolve.errors import UserError
from coevolve.methods import pairing
from coevolve.pipeline.job_file import JobFile
from coevolve.pipeline.plan import Plan
from coevolve.pipeline.run_job import execute
from coevolve.pipeline.stage import files_of
from coevolve.records.episodes import Trajectory
from coevolve.records.evaluation import EvalRecord
from coevolve.records.pairs import PairKind
from coevolve.storage import jsonl

ENDPOINT = {
    "model": MODEL, "seeds": True, "length": "max_tokens", "concurrency": 4, "timeout_seconds": 60, "retries": 2,
    "price_in": 0.5, "price_out": 4.0,
}  # fmt: skip


@pytest.fixture
def suite_file(root, tmp_path):
    """A suite with an endpoint's model and a WebShop of twelve tasks."""
    parents = ["parts/hyperparameters.yaml", "envs/webshop-small.yaml"]
    sections = {
        "extends": [str(root / "configs" / parent) for parent in parents],
        "suite": "asked", "protocol": "fixed", "seeds": [0], "methods": ["in_context"],
        "models": {"chat": {"label": "chat", "context": 100000, "endpoint": ENDPOINT}},
        "envs": {"webshop": {"tasks": {"test": 12, "sft": 6, "explore": 3, "evaluate": 9}, "workers": 8}},
    }  # fmt: skip
    path = tmp_path / "asked.yaml"
    path.write_text(yaml.safe_dump(sections))
    return path


@pytest.fixture
def server(monkeypatch, tmp_path):
    """Shops by the last episode of each conversation."""
    with serving(PLAYER, count=lambda messages: 10 * len(messages)) as running:
        monkeypatch.setenv("OPENAI_BASE_URL", running.url)
        monkeypatch.setenv("OPENAI_API_KEY", KEY)
        monkeypatch.chdir(tmp_path)
        yield running


def make(plan, path):
    """The file at `path`, and before it what it needs; an error of a job is raised."""
    job = plan.job(path)
    if job is None or Path(path).exists():
        return
    for needed in files_of(job.inputs):
        make(plan, needed)
    execute(JobFile.of(plan, job), threads=1)


def evaluated(plan):
    """The records of the one row, made."""
    (records,) = plan.records(["in_context"])
    make(plan, records.path)
    return Path(records.path)


def test_a_row_is_evaluated_with_its_example_and_says_what_it_cost(suite_file, server):
    records = evaluated(Plan(load_suite(suite_file)))
    assert str(records) == "results/asked/chat/webshop/in_context/seed0/eval/records.jsonl"
    found, episodes = jsonl.read(records, EvalRecord), jsonl.read(records.parent / "episodes.jsonl", Trajectory)
    assert len(found) == 12 and sum(record.reward for record in found) / 12 > 0.4
    (shown,) = jsonl.read(Path("results/asked/data/webshop/example.json"), Trajectory)
    assert shown.task.task_id not in {episode.task.task_id for episode in episodes}
    for episode in episodes:
        assert episode.prompt[-1 - len(demonstration(shown)) : -1] == demonstration(shown)
        assert not any(turn.token_ids for turn in episode.turns)
    spent = json.loads((records.parent / "provenance.json").read_text())["notes"]["spent"]
    asked = [10 * len(body["messages"]) for body in server.bodies]
    assert (spent["answers"], spent["prompt_tokens"]) == (len(asked), sum(asked))
    assert spent["cost"] == pytest.approx(0.5 * sum(asked) / 1e6)
    assert sum(own["prompt_tokens"] for own in spent["episodes"].values()) == sum(asked)
    assert len(spent["episodes"]) == 12
    written = [path.read_bytes() for path in Path("results").rglob("*") if path.is_file()]
    assert not [content for content in written if KEY.encode() in content or b"127.0.0.1" in content]


def test_a_row_with_an_endpoint_stands_beside_rows_of_the_suites_own_model(root, suite_file, server, tmp_path):
    asked = ["recipes.asked={extends: in_context, label: Asked, source: by an endpoint, model: chat}"]
    tiny = [f"models.tiny={json.dumps(load_suite('smoke').model_dump(mode='json')['models']['tiny'])}"]
    small = ["rollout.max_new_tokens=8"]
    Path("configs").symlink_to(root / "configs")
    own = load_suite(suite_file, ["models={}", *tiny, *asked, *small, "methods=[untrained]"])
    both = load_suite(suite_file, [*tiny, *asked, *small, "methods=[untrained, asked]", "suite=both"])
    texts = []
    for suite in (own, both):
        make(Plan(suite), f"results/{suite.suite}/paper/table1/table1.md")
        texts.append(Path(f"results/{suite.suite}/paper/table1/table1.md").read_text())
    assert "Without a model in this suite: Asked (by an endpoint)." in texts[0] and "| Asked" not in texts[0]
    assert "Without a model" not in texts[1] and f"model {both.models['tiny'].label}, chat," in texts[1]
    records = Path("results/both/chat/webshop/asked/seed0/eval/records.jsonl")
    mean = 100 * sum(record.reward for record in jsonl.read(records, EvalRecord)) / 12
    assert re.search(rf"^\| Asked +\| {mean:.1f} \[", texts[1], re.MULTILINE)


def test_what_was_paid_for_before_a_failure_is_kept_and_counted(suite_file, server):
    plan = Plan(load_suite(suite_file))
    # The first episodes have ended by then, and others have begun.
    server.faults.extend([lambda chat: False] * 30 + [refusing(401)])
    with pytest.raises(UserError, match="not accepted"):
        evaluated(plan)
    before = len(server.bodies)
    cheaper = Plan(load_suite(suite_file, ["models.chat.endpoint.concurrency=1", "models.chat.endpoint.price_in=2.0"]))
    records = evaluated(cheaper)
    spent = json.loads((records.parent / "provenance.json").read_text())["notes"]["spent"]
    assert spent["answers"] == len(server.bodies) - 1
    whole = sum(len(e.turns) for e in jsonl.read(records.parent / "episodes.jsonl", Trajectory))
    assert before < whole + before - 1 > len(server.bodies) - before  # some episodes were not played again


def test_another_endpoint_is_refused(suite_file, server, monkeypatch):
    plan = Plan(load_suite(suite_file))
    make(plan, "results/asked/chat/webshop/base/untrained/policy/target/policy.json")
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/v1")
    with pytest.raises(UserError, match="another endpoint"):
        evaluated(plan)


def test_a_model_at_another_endpoint_is_not_reused(suite_file, server, monkeypatch):
    wildcards = {"model": "chat", "env": "webshop", "branch": "base/untrained"}
    result = "chat/webshop/base/untrained/policy/target"

    def source(folder):
        """Where the result in the folder of a suite was taken from."""
        out = Path(f"results/{folder}/{result}")
        plan = Plan(load_suite(suite_file))
        execute(JobFile.of(plan, plan.require("untrained", wildcards), out=out), threads=1, reuse=True)
        return json.loads((out / "provenance.json").read_text()).get("reused_from")

    assert [source("first"), source("second")] == [None, f"results/first/{result}"]
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/v1")
    assert source("third") is None


@pytest.mark.parametrize(
    ("override", "same"),
    [
        *[(f"{key}=1", True) for key in ("concurrency", "timeout_seconds", "retries", "price_in", "price_out")],
        ("model=other", False),
        ("seeds=false", False),
    ],
)
def test_only_what_decides_answers_asks_again(suite_file, override, same):
    def fingerprint(*overrides):
        plan = Plan(load_suite(suite_file, overrides))
        on = {"model": "chat", "env": "webshop", "branch": "in_context/seed0"}
        return plan.fingerprint(plan.require("evaluate", on))

    assert (fingerprint(f"models.chat.endpoint.{override}") == fingerprint()) == same


def test_an_endpoint_only_asks(suite_file):
    with pytest.raises(UserError, match="`sft` trains"):
        load_suite(suite_file, ["methods=[sft]"])


def test_the_example_reaches_training_only_if_it_is_to(suite_file, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    openings = {}
    for trained in ("true", "false"):
        plan = Plan(load_suite(suite_file, ["prompt.examples=1", f"prompt.trained={trained}"]), root=trained)
        make(plan, f"{trained}/asked/data/webshop/sft.jsonl")
        (shown,) = jsonl.read(Path(f"{trained}/asked/data/webshop/example.json"), Trajectory)
        experts = jsonl.read(Path(f"{trained}/asked/data/webshop/sft.jsonl"), Trajectory)
        openings[trained] = {expert.prompt[:-1] for expert in experts}
        assert shown.task.task_id in {expert.task.task_id for expert in experts}
        alike = [expert for expert in experts if expert.task.kind == experts[0].task.kind]
        assert (shown.reward, -len(shown.turns)) == max((e.reward, -len(e.turns)) for e in alike)
    opening = shown.prompt[:-1]
    assert openings == {"true": {(*opening, *demonstration(shown))}, "false": {opening}}


def test_pairs_lack_an_example_that_experts_lack(suite_file, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    suite = load_suite(suite_file)
    make(Plan(suite), "results/asked/data/webshop/sft.jsonl")
    shown, expert, *_ = jsonl.read(Path("results/asked/data/webshop/sft.jsonl"), Trajectory)
    asked = (*expert.prompt[:-1], *demonstration(shown), expert.prompt[-1])
    worse = {"agent": "target", "prompt": asked, "reward": 0.0, "turns": expert.turns[:1]}
    rollout, recipe = expert.model_copy(update=worse), suite.recipes["eto"].agents["target"]
    given = (recipe, suite.pairing, [expert.task], [expert], {"target": [rollout]})
    with pytest.raises(UserError, match=r"prompts .* differ"):
        pairing.pair(*given)
    (pair,) = pairing.pair(*given, excluded_example=demonstration(shown)).pairs
    assert (pair.kind, pair.prompt, pair.rejected_id) == (PairKind.EXPERT_TARGET, expert.prompt, rollout.digest())


def test_the_plan_takes_out_what_training_lacks(root):
    def given(*overrides):
        plan = Plan(load_suite(root / "configs/suites/smoke_methods.yaml", overrides))
        found = {(job.stage.name, name) for job in plan.jobs() for name in job.inputs}
        return {(stage, name) for stage, name in found if name in ("example", "excluded_example")}

    played = {(stage, "example") for stage in ("rollout", "evaluate", "ppo", "grpo")}
    assert given() == set()
    assert given("prompt.examples=1") == played | {("steps", "example")}
    taken = {(stage, "excluded_example") for stage in ("pairs", "select", "steps", "reference")}
    assert given("prompt.examples=1", "prompt.trained=false") == played | taken
    alone = 'recipes.eto.settings={"prompt": {"examples": 1}, "pairing": {"expert_beaten": "swap"}}'
    taken = {("pairs", "excluded_example"), ("reference", "excluded_example")}
    assert given(alone) == {("rollout", "example"), ("evaluate", "example")} | taken
