"""The stages of agent-data mutual evolution, in the real simulators with a small real policy, and `why` behind them."""

import contextlib
import dataclasses
import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from builders import relist
from command_line import exit_status, stage_command
from policies.chatserver import KEY, MODEL, serving
from small_run import job_of, make

from coevolve.agent_data.explorer import TaskExploration
from coevolve.agent_data.records import Fragment, FragmentDrop, PoolTask, TaskCounts, TaskSignal
from coevolve.agent_data.stages import grpo_round, validate_tasks
from coevolve.chat.prompts import write_action
from coevolve.config.loading import load_suite, read_machine
from coevolve.config.suite import quirks
from coevolve.envs.base import Setup
from coevolve.envs.bfcl import tasks as bfcl_tasks
from coevolve.envs.registry import domain
from coevolve.envs.synthesis import execute_solution, synthesis
from coevolve.pipeline.plan import Plan
from coevolve.policies.base import ScriptedPolicy
from coevolve.records.episodes import Task, Trajectory, Turn
from coevolve.records.pairs import PairingSummary, PreferencePair
from coevolve.records.provenance import ExplorationNotes
from coevolve.report import analysis, why_task
from coevolve.storage import files, jsonl, provenance

pytest.importorskip("bfcl_eval", reason="the wheel of envs_setup/bfcl.lock is not installed; run `make setup`")
SUITE = """
extends: [small.yaml, envs/bfcl-small.yaml]
suite: pools
iterations: {bfcl: 2}
seeds: [0]
methods: [agent_data, agent_data_static, agent_data_random, coevolve_agent_data]
envs:
  bfcl:
    tasks: {generated: {train: 24, evaluate: 4, actions: 2, seed: 7}, sft: 12}
    step_limit: 4
    workers: 4
models:
  tiny:
    context: 512
    tiny: {vocab_size: 420, hidden_size: 32, layers: 1, heads: 2, intermediate_size: 64}
    pretrain: {epochs: 4, batch_size: 4}
sft: {epochs: 8, batch_size: 4}
dpo: {epochs: 1, batch_size: 4}
rollout: {max_new_tokens: 16}
grpo: {batch_size: 8, micro_batch: 4, group: 4, save_steps: 1}
task_evolution: {steps: 2, initial_tasks: 6, initial_fragments: 16, new_tasks: 4, fragments: 12, turns: 8, actions: 2}
"""
BRANCH = "results/pools/tiny/bfcl/agent_data/seed0"


@pytest.fixture(scope="module")
def home(root, tmp_path_factory):
    folder = tmp_path_factory.mktemp("pools")
    shutil.copytree(root / "configs", folder / "configs")
    (folder / "profiles").symlink_to(root / "profiles")
    (folder / "configs/pools.yaml").write_text(SUITE)
    with contextlib.chdir(folder):
        yield folder


@pytest.fixture(scope="module")
def plan(home):
    return Plan(load_suite("configs/pools.yaml"))


@pytest.fixture(scope="module")
def first(plan):
    """The first pool, and the policy trained on it."""
    make(plan, f"{BRANCH}/iter1/policy/target/policy.json")
    return Path(BRANCH, "iter1")


def records(path, kind):
    return jsonl.read(Path(path), kind)


def pool_of(folder):
    """The tasks of a round's pool, by id."""
    return {each.task.task_id: each for each in records(folder / "tasks/pool.jsonl", PoolTask)}


def counts(path):
    return TaskCounts.model_validate_json(Path(path).read_bytes())


def replace(plan, path, given):
    """The records that a job writes, replaced by others; its provenance has the digest of the new file."""
    make(plan, path)
    jsonl.write(Path(path), given)
    relist(Path(path).parent)


def with_signals(plan, first, signals, target):
    """The jobs of round 2 behind `target` after other signals than those of the (untrained) policy."""
    replace(plan, f"{BRANCH}/iter2/signals/signals.jsonl", signals)
    for name in ("explored", "tasks"):
        shutil.rmtree(Path(BRANCH, "iter2", name), ignore_errors=True)
    make(plan, f"{BRANCH}/iter2/{target}")
    return Path(BRANCH, "iter2")


def test_every_fragment_ends_in_a_task_or_in_a_counted_drop(first):
    fragments = records(first / "explored/fragments.jsonl", Fragment)
    candidates = records(first / "explored/candidates.jsonl", PoolTask)
    pool = records(first / "tasks/pool.jsonl", PoolTask)
    drops = [records(first / f"{name}/drops.jsonl", FragmentDrop) for name in ("explored", "tasks")]
    assert len(fragments) == 16 and 2 <= len(pool) <= 6
    outcomes = [each.fragment for each in (*pool, *drops[0], *drops[1])]
    assert sorted(outcomes) == sorted(fragment.digest() for fragment in fragments)
    explored, validated = counts(first / "explored/counts.json"), counts(first / "tasks/counts.json")
    assert (explored.total.fragments, explored.total.kept) == (16, len(candidates))
    assert (validated.total.fragments, validated.total.kept, validated.pool) == (len(candidates), len(pool), len(pool))
    assert set(validated.by_signal) == {"unguided"}


def test_the_pools_tasks_earn_one_and_start_in_training_scenarios(plan, first):
    suite = plan.suite
    setup = Setup(suite.envs["bfcl"], "envs.bfcl", suite.protocol, quirks(suite))
    sealed = set(bfcl_tasks.scenario_parts("scenario")["test"])
    with domain(setup.config).pool(setup, 1) as (env,):
        for entry in records(first / "tasks/pool.jsonl", PoolTask):
            texts = synthesis(setup.config).solution_texts(setup, entry.task)
            assert [execute_solution(env, entry.task, texts, setup).reward for _ in "12"] == [1.0, 1.0]
            assert entry.validation.rewards == (1.0, 1.0) and entry.task.data["index"] not in sealed


def test_a_candidate_with_the_gold_calls_of_an_evaluated_task_is_dropped_and_counted(plan, first, tmp_path):
    planned = plan.job((first / "tasks/pool.jsonl").as_posix())
    inputs = {**planned.inputs}
    known = records(first / "tasks/pool.jsonl", PoolTask)[0]
    asked = records(Path(inputs["evaluated"]), Task)
    spaced = json.dumps([call.replace("(", " ( ") for call in known.solution])
    equal = known.task.model_copy(update={"task_id": "bfcl/test/1", "data": {**known.task.data, "gold": spaced}})
    jsonl.write(tmp_path / "evaluate.jsonl", [*asked, equal])
    inputs["evaluated"] = str(tmp_path / "evaluate.jsonl")
    (tmp_path / "out").mkdir()
    job = job_of(plan, planned, tmp_path / "work", inputs)
    validate_tasks.run(job, tmp_path / "out")
    drops = {each.name: each.reason.value for each in records(tmp_path / "out/drops.jsonl", FragmentDrop)}
    assert drops[known.task.task_id] == "evaluated"
    pool = [each.task.task_id for each in records(tmp_path / "out/pool.jsonl", PoolTask)]
    assert pool and known.task.task_id not in pool
    assert counts(tmp_path / "out/counts.json").total.drops["evaluated"] == 1


def test_a_round_trains_on_its_pool_and_keeps_the_episodes(first):
    episodes = records(first / "policy/target/episodes.jsonl", Trajectory)
    assert len(episodes) == 2 * 8 and len({each.seed for each in episodes}) == 2
    assert {each.task.task_id for each in episodes} <= pool_of(first).keys()


@pytest.fixture(scope="module")
def made_signals(first):
    """A signal of each kind, about real episodes of the first round."""
    pool = pool_of(first)
    episodes = records(first / "policy/target/episodes.jsonl", Trajectory)
    return [
        TaskSignal(
            kind=kind, task=episode.task, round=1, step=0, episode=episode.digest(), pattern="get_watchlist()",
            actions=pool[episode.task.task_id].solution, scores=(1.0, 0.0), count=1, total=200,
        )
        for kind, episode in zip(("forgetting", "boundary", "rare"), episodes[::5], strict=False)
    ]  # fmt: skip


@pytest.fixture(scope="module")
def second(plan, first, made_signals):
    return with_signals(plan, first, made_signals, "tasks/pool.jsonl")


def test_signals_guide_exploration_and_are_kept_as_provenance(first, second, made_signals):
    old, pool = (records(folder / "tasks/pool.jsonl", PoolTask) for folder in (first, second))
    new = pool[len(old) :]
    assert pool[: len(old)] == old and 1 <= len(new) <= 4
    assert all(each.round == 2 and each.signal and each.validation for each in new)
    assert {(each.signal, each.signal_task, each.episode) for each in new} <= {
        (signal.kind, signal.task.task_id, signal.episode) for signal in made_signals
    }
    fragments = records(second / "explored/fragments.jsonl", Fragment)
    assert {fragment.signal.kind for fragment in fragments} == {"forgetting", "boundary", "rare"}
    for fragment in fragments:
        assert fragment.start == fragment.signal.task
        repeated = [turn.action for turn in fragment.turns[: fragment.repeated]]
        assert repeated == list(fragment.signal.actions)[: fragment.repeated]
        assert fragment.signal.kind != "rare" or fragment.repeated == len(fragment.signal.actions) > 1
    assert sum(count.kept for count in counts(second / "tasks/counts.json").by_signal.values()) == len(new)


def test_why_walks_from_a_task_to_the_episode_that_caused_it(plan, first, second, coevolve):
    task = records(second / "tasks/pool.jsonl", PoolTask)[-1]
    name = task.task.task_id
    shown = why_task.trace(second / "tasks/pool.jsonl", name, plan.leaves_provenance)
    assert (shown.fragment.digest(), shown.episode.digest()) == (task.fragment, task.episode)
    assert shown.episode_file == (first / "policy/target/episodes.jsonl").as_posix()
    status, text, _ = coevolve("why", "--suite", "pools", name, "agent_data/seed0")
    assert status == 0
    parts = (name, task.instruction, task.fragment, task.signal, task.episode, "two executions", "all as they were")
    assert [part for part in parts if part not in text] == []
    changes = {"instruction": f"{task.instruction}\n  validated reward 1", "solution": ("a\nb",)}
    hostile = shown.model_copy(update={"task": task.model_copy(update=changes)})
    assert len(why_task.text(hostile).splitlines()) == len(text.splitlines())
    old = records(first / "tasks/pool.jsonl", PoolTask)[0].task.task_id
    status, text, _ = coevolve("why", "--suite", "pools", old)
    assert status == 0 and "exploration was unguided" in text and "all as they were" in text


def test_without_a_signal_the_pool_stays(plan, first, home):
    second = with_signals(plan, first, [], "tasks/pool.jsonl")
    assert (second / "tasks/pool.jsonl").read_bytes() == (first / "tasks/pool.jsonl").read_bytes()
    assert (second / "explored/fragments.jsonl").read_bytes() == b""
    assert counts(second / "tasks/counts.json").total.fragments == 0


def test_rows_share_the_first_round_and_differ_after_it(plan):
    home = "results/pools/tiny/bfcl"
    jobs = {(job.stage.name, job.wildcards.get("branch")) for job in plan.jobs()}
    made = {
        "agent_data": {"signals", "explore_tasks"},
        "agent_data_static": set(),
        "agent_data_random": {"explore_tasks"},
    }
    for method, stages in made.items():
        paths = {file.iteration: file.path for file in plan.records([method])}
        assert paths[1] == f"{home}/agent_data/seed0/iter1/eval/records.jsonl"
        assert paths[2] == f"{home}/{method}/seed0/iter2/eval/records.jsonl"
        ran = {stage for stage, branch in jobs if branch == f"{method}/seed0/iter2"}
        assert ran & {"signals", "explore_tasks"} == stages
    place = {"model": "tiny", "env": "bfcl", "branch": "agent_data_static/seed0/iter2", "agent": "target"}
    assert plan.require("grpo_round", place).inputs["pool"] == f"{home}/agent_data/seed0/iter1/tasks/pool.jsonl"


ADAPTERS = "models.tiny.lora={rank: 2, alpha: 4, dropout: 0.0, target_modules: all-linear}"


@pytest.mark.parametrize(
    ("settings", "reference"),
    [
        (["recipes.agent_data.settings.grpo.beta=0.0"], None),
        ([], "results/pools/tiny/bfcl/base/seed0/policy/target/policy.json"),
        ([ADAPTERS], None),
    ],
)
def test_the_kl_term_of_a_later_round_refers_to_the_methods_start_policy(home, settings, reference):
    other = Plan(load_suite("pools", settings))
    inputs = other.job(f"{BRANCH}/iter2/policy/target/policy.json").inputs
    assert inputs.get("reference") == reference
    assert inputs["policy"] == f"{BRANCH}/iter1/policy/target/policy.json"


def test_a_round_measures_the_kl_divergence_from_its_reference_input(home, plan, first, tmp_path):
    """At the first step the policy is still the round's start, whose divergence from itself would be 0."""
    other = Plan(load_suite("pools"))
    planned = other.job(f"{BRANCH}/iter1/policy/target/policy.json")
    apart = f"{BRANCH.replace('agent_data', 'base')}/policy/failure/policy.json"
    make(plan, apart)
    job = job_of(other, planned, tmp_path / "work", planned.inputs | {"reference": apart})
    assert grpo_round.run(job, tmp_path / "out").history[0]["kl"] > 0.0


# --- co-evolving agents on a pool of tasks -------------------------------------------------------------------

JOINED = BRANCH.replace("agent_data", "coevolve_agent_data")
#: How many user turns of a task each agent answers with the gold call, by the parity of the task's place in the pool.
SOLVED = {"target": (9, 1), "failure": (0, 0)}


def scripted(plan, agent, pool):
    """The agent's rollout of the pool, with the actions that `SOLVED` says in place of the policy's."""
    path = f"{JOINED}/iter1/rollout/{agent}/episodes.jsonl"
    make(plan, path)
    suite, played = plan.suite, records(path, Trajectory)
    setup = Setup(suite.envs["bfcl"], "envs.bfcl", suite.protocol, quirks(suite))
    place = {entry.task.task_id: number for number, entry in enumerate(pool)}
    with domain(setup.config).pool(setup, 1) as (env,):
        for episode in played:
            texts = synthesis(setup.config).solution_texts(setup, episode.task)
            calls, ends = texts[::2], texts[1::2]
            solved = SOLVED[agent][place[episode.task.task_id] % 2]
            known = [text for pair in zip(calls[:solved], ends[:solved], strict=True) for text in pair]
            run = execute_solution(env, episode.task, [*known, *ends[solved:]], setup)
            yield episode.model_copy(update={"turns": run.turns, "reward": run.reward, "stop": run.stop})


@pytest.fixture(scope="module")
def joined(plan, first):
    """Both agents' rollouts of the first pool with different rewards, and all that follows until iteration 2's end."""
    pool = records(first / "tasks/pool.jsonl", PoolTask)
    for agent in SOLVED:
        replace(plan, f"{JOINED}/iter1/rollout/{agent}/episodes.jsonl", list(scripted(plan, agent, pool)))
    for file in plan.records(["coevolve_agent_data"]):
        make(plan, file.path)
    return Path(JOINED)


def test_both_agents_explore_the_pool_with_its_solutions_as_experts(first, joined):
    pool = pool_of(first).keys()
    experts = {each.task.task_id: each for each in records(joined / "iter1/pool/experts.jsonl", Trajectory)}
    episodes = [
        each for name in SOLVED for each in records(joined / f"iter1/rollout/{name}/episodes.jsonl", Trajectory)
    ]
    assert {each.task.task_id for each in episodes} == experts.keys() == pool  # that of `agent_data`
    assert all(each.prompt == experts[each.task.task_id].prompt for each in episodes)
    assert {each.reward for each in experts.values()} == {1.0}
    grown = pool_of(joined / "iter2").keys()
    later = {each.task.task_id for each in records(joined / "iter2/rollout/failure/episodes.jsonl", Trajectory)}
    assert pool < grown == later


def test_pairs_are_built_on_the_pool_and_train_both_agents(first, joined):
    """Eq. 6 and 8 on the pool: the failure agent learns from failures only, the target from all three kinds."""
    counts = {
        name: PairingSummary.from_json((joined / f"iter1/pairs/{name}/summary.json").read_bytes()) for name in SOLVED
    }
    kinds = {name: {kind.value: count.pairs for kind, count in counts[name].kinds.items()} for name in SOLVED}
    failed = [each for each in records(joined / "iter1/rollout/target/episodes.jsonl", Trajectory) if each.is_failure]
    ranked = {each.task.task_id for each in failed if each.reward > 0}
    assert ranked and kinds["failure"] == {"failure_failure": len(ranked)}  # equal pairs of a task count once
    assert kinds["target"]["failure_failure"] == len(ranked)
    assert kinds["target"]["expert_failure"] > len(ranked) and kinds["target"]["expert_target"] > 0
    for agent in SOLVED:
        pairs = records(joined / f"iter1/pairs/{agent}/pairs.jsonl", PreferencePair)
        assert {pair.task_id for pair in pairs} <= pool_of(first).keys()
        before = files.sha256(Path(f"results/pools/tiny/bfcl/base/seed0/policy/{agent}/model.safetensors"))
        assert files.sha256(joined / f"iter1/policy/{agent}/model.safetensors") != before
        played = records(joined / f"iter2/rollout/{agent}/episodes.jsonl", Trajectory)[0].policy
        assert played.sha256 == json.loads((joined / f"iter1/policy/{agent}/policy.json").read_text())["sha256"]


def test_a_failure_of_the_failure_agent_is_a_signal_and_why_shows_it(plan, joined, coevolve):
    signals = records(joined / "iter2/signals/signals.jsonl", TaskSignal)
    failures = {each.digest() for each in records(joined / "iter1/rollout/failure/episodes.jsonl", Trajectory)}
    assert {each.kind for each in signals} >= {"boundary"}
    assert {each.episode for each in signals if each.kind == "boundary"} <= failures
    task = next(each for each in records(joined / "iter2/tasks/pool.jsonl", PoolTask) if each.signal == "boundary")
    status, shown, _ = coevolve("why", "--suite", "pools", task.task.task_id, "coevolve_agent_data/seed0")
    assert status == 0
    parts = (task.instruction, task.episode, "boundary", "failure agent", "rollout/failure", "all as they were")
    assert [part for part in parts if part not in shown] == []


def test_a_second_run_of_the_row_has_nothing_to_do(home, root, plan, joined):
    """Snakemake's plan of the row's last evaluation; the results' settings and code are the present ones."""
    last = plan.records(["coevolve_agent_data"])[-1].path
    command = [sys.executable, "-m", "snakemake", "-s", root / "Snakefile", "--profile", "profiles/smoke"]
    done = subprocess.run(
        [*command, "--config", "suite=pools", "-n", "--", last], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0 and "Nothing to be done" in done.stdout + done.stderr, done.stderr
    made = [provenance.read(path) for path in joined.rglob("provenance.json")]
    stages = {"pool_experts", "rollout", "pairs", "train", "signals", "validate_tasks"}
    assert {record.stage for record in made} >= stages
    assert not [record.stage for record in made if plan.changed_since(record)]


# --- explorers -----------------------------------------------------------------------------------------------


def suite_of(home, name, extra):
    """The file of a suite with one method."""
    suite = home / f"configs/{name}.yaml"
    suite.write_text(f"extends: pools.yaml\nsuite: pools\nmethods: [{name}]\n{extra}")
    return suite


def explored(home, plan, name, extra):
    """The first exploration of a row with another explorer."""
    suite = suite_of(home, name, extra)
    target = f"results/pools/tiny/bfcl/{name}/seed0/iter1/tasks/pool.jsonl"
    make(Plan(load_suite(suite)), target)
    return Path(target).parents[1]


def endpoint_command(home, out, extra=""):
    """The command of the first exploration by a model behind an endpoint, with another folder for its results."""
    suite = suite_of(home, "agent_data_endpoint", BEHIND_ENDPOINT + extra)
    plan = Plan(load_suite(suite))
    job = plan.job("results/pools/tiny/bfcl/agent_data_endpoint/seed0/iter1/explored/candidates.jsonl")
    return stage_command((job.stage.name, job.wildcards), suite, out, job.inputs)


def test_the_agent_explores(home, plan, first):
    """A tiny policy writes no task: every fragment is a counted drop."""
    folder = explored(home, plan, "agent_data_policy", "task_evolution: {initial_fragments: 6}\n")
    fragments = records(folder / "explored/fragments.jsonl", Fragment)
    assert len(fragments) == 6 and all(len(fragment.turns) <= 4 for fragment in fragments)
    assert {fragment.explorer.name for fragment in fragments} == {"tiny+pretrain+sft"}
    assert counts(folder / "tasks/counts.json").pool == 0
    made = provenance.read(folder / "explored/provenance.json")
    sampled = sum(len(turn.token_ids) for fragment in fragments for turn in fragment.turns)
    compute = analysis.compute("a row", [made], read_machine(home / "configs/machines/cpu.yaml"))
    assert compute.sampled_tokens == sampled > 0


def test_the_tokens_of_drafts_and_of_further_turns_are_sampled_tokens(home, plan, first, tmp_path):
    """Drafts of the fragments of another explorer; a second run reads them back."""
    target = "results/pools/tiny/bfcl/agent_data_policy/seed0/iter1/explored/candidates.jsonl"
    other = Plan(load_suite("pools", ["methods=[agent_data_policy]"]))
    job = job_of(other, other.job(target), tmp_path)
    turn = Turn(text="", action="get_watchlist()", observation="[]", token_ids=(1, 2, 3))
    fragments = [
        fragment.model_copy(update={"turns": (turn, turn), "repeated": 1})
        for fragment in records(first / "explored/fragments.jsonl", Fragment)[:2]
    ]
    noted = []
    for _ in range(2):
        explored = TaskExploration(job)
        explored.written_drafts(fragments)
        noted.append(explored.notes(fragments, {}))
    drafts = [json.loads(line)["tokens"] for line in (tmp_path / "drafts.jsonl").read_text().splitlines()]
    assert len(drafts) == 2 and min(drafts) > 0
    assert noted == [ExplorationNotes(counts={}, sampled_tokens=3 + 3 + sum(drafts))] * 2


TASK = """Task: What is on my <b>watchlist\x1b[2J</b>?
Solution:
get_watchlist()"""


def explore_or_write(conversation):
    """Explores with one call, and writes its task."""
    last = conversation.prompt[-1].content
    return TASK if "Write the task" in last else write_action("get_watchlist()")


ENDPOINT = (
    f"{{model: {MODEL}, seeds: true, length: max_tokens, concurrency: 2, timeout_seconds: 60, retries: 0,"
    " price_in: 0.0, price_out: 0.0}"
)
BEHIND_ENDPOINT = f"""
recipes: {{agent_data_endpoint: {{settings: {{task_evolution: {{endpoint: {ENDPOINT}}}}}}}}}
task_evolution: {{initial_fragments: 3}}
"""


@contextlib.contextmanager
def connected(monkeypatch, policy):
    """A server that answers with the policy; the environment variables have its address."""
    with serving(policy) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        monkeypatch.setenv("OPENAI_API_KEY", KEY)
        yield server


@contextlib.contextmanager
def answering(monkeypatch, policy):
    """The last messages of the requests to a server that answers with the policy."""
    with connected(monkeypatch, ScriptedPolicy(policy)) as server:
        yield lambda: [body["messages"][-1]["content"] for body in server.bodies]


def test_a_model_behind_an_endpoint_explores_and_writes_the_task(home, plan, first, monkeypatch, coevolve):
    with answering(monkeypatch, explore_or_write) as requests:
        folder = explored(home, plan, "agent_data_endpoint", BEHIND_ENDPOINT)
        asked = requests()
    (task,) = records(folder / "tasks/pool.jsonl", PoolTask)
    assert (task.instruction, task.solution) == ("What is on my <b>watchlist\x1b[2J</b>?", ("get_watchlist()",))
    assert (task.explorer, task.written_by) == (MODEL, MODEL)
    assert {each.reason.value for each in records(folder / "tasks/drops.jsonl", FragmentDrop)} == {"duplicate"}
    assert sum("Explore this environment" in text for text in asked) >= 3
    assert sum("Write the task" in text and "get_watchlist()" in text for text in asked) == 3
    notes = provenance.read(folder / "explored/provenance.json").notes
    assert notes.spent["answers"] == len(asked) and notes.spent["prompt_tokens"] > 0 and notes.sampled_tokens == 0
    assert notes.counts == json.loads((folder / "explored/counts.json").read_text())
    suite = "configs/agent_data_endpoint.yaml"
    _, shown, _ = coevolve("why", "--suite", suite, task.task.task_id, "agent_data_endpoint")
    assert "<b>watchlist\\u001b[2J</b>" in shown and "\x1b" not in shown


def test_an_exploration_is_reused_at_the_same_address_only(home, plan, first, monkeypatch):
    result = "tiny/bfcl/agent_data_endpoint/seed0/iter1/explored"

    def source(folder):
        """Where the result in the folder of a suite was taken from."""
        out = f"results/{folder}/{result}"
        assert exit_status(*endpoint_command(home, out), "--reuse") == 0
        return provenance.read(Path(out, provenance.NAME)).reused_from

    with answering(monkeypatch, explore_or_write):
        assert [source("asking1"), source("asking2")] == [None, f"results/asking1/{result}"]
        with answering(monkeypatch, explore_or_write) as requests:
            assert source("asking3") is None and requests()


class CutOffWriter(ScriptedPolicy):
    """Writes no task to its end."""

    def complete(self, conversations, sampling):
        completions = super().complete(conversations, sampling)
        return [dataclasses.replace(each, truncated=each.text == TASK) for each in completions]


def test_a_task_that_was_cut_off_is_a_counted_drop(home, plan, first, monkeypatch, tmp_path):
    """Its beginning alone would be a task. The model writes with the settings that it explores with."""
    command = endpoint_command(home, tmp_path / "explored", "rollout: {top_p: 0.5}\n")
    with connected(monkeypatch, CutOffWriter(explore_or_write)) as server:
        assert exit_status(*command) == 0
        sampled = {(body["temperature"], body["top_p"], body["max_tokens"]) for body in server.bodies}
    assert sampled == {(1.0, 0.5, 16)}
    counted = counts(tmp_path / "explored/counts.json").total
    assert (counted.kept, counted.drops) == (0, {"truncated": 3})
    assert [each.reason for each in records(tmp_path / "explored/drops.jsonl", FragmentDrop)] == ["truncated"] * 3


# --- resumption ----------------------------------------------------------------------------------------------


def test_a_killed_exploration_repeats_no_finished_request(home, plan, first, monkeypatch, tmp_path):
    """Killed while the model writes the second of three tasks: only this one and the third are requested again."""
    whole, killed = (endpoint_command(home, tmp_path / name) for name in ("whole", "killed"))
    processes, written = [], []

    def killing(conversation):
        if (answer := explore_or_write(conversation)) == TASK and processes:
            written.append(conversation)
            if len(written) == 2:
                processes[0].kill()
        return answer

    with answering(monkeypatch, killing) as requests:
        assert exit_status(*whole) == 0
        processes.append(subprocess.Popen([sys.executable, "-m", "coevolve", *killed]))
        assert processes[0].wait() == -signal.SIGKILL and not (tmp_path / "killed").exists()
        before = len(requests())
        assert exit_status(*killed) == 0
        repeated = requests()[before:]
    assert len(repeated) == 2 and all("Write the task" in text for text in repeated)
    for name in ("fragments.jsonl", "candidates.jsonl", "drops.jsonl", "counts.json"):
        assert (tmp_path / "killed" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes(), name
