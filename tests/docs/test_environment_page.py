"""The page on adding an environment is true: what it shows is put into a copy of the kit and runs there."""

import pytest

from coevolve.storage import jsonl
from coevolve.types import EvalRecord, Task, Trajectory

PACKAGE, SUITE = "coevolve/envs/guess", "configs/guess.yaml"
#: Prints the fingerprint of every job of the smoke suite, with all its environments.
FINGERPRINTS = """
from coevolve.config.suite import load_suite
from coevolve.workflow.plan import Plan
plan = Plan(load_suite("configs/smoke.yaml"))
print(*(f"{stage} {wildcards} {plan.fingerprint(stage, wildcards)}" for stage, wildcards in plan.jobs()), sep="\\n")
"""


@pytest.fixture(scope="module")
def page(read):
    return read("add_an_environment")


@pytest.fixture(scope="module")
def before(kit):
    """Fingerprints of other environments' jobs in a kit without the page's environment."""
    return kit.python(FINGERPRINTS).splitlines()


@pytest.fixture(scope="module")
def added(page, kit, before):
    """A copy of the kit with the page's environment: files are added, none is edited."""
    config, domain, _ = page.blocks("python")
    (suite,) = page.blocks("yaml")
    for name, text in (("__init__", ""), ("config", config), ("domain", domain)):
        kit.write(f"{PACKAGE}/{name}.py", text)
    kit.write(SUITE, suite)
    return kit


@pytest.fixture(scope="module")
def ran(page, added):
    """What the page's commands print."""
    return [added.shell(command) for command in page.commands]


def test_the_plan_knows_it(ran):
    assert "Suite guess on one CPU machine" in ran[0]


def test_a_policy_plays_it_and_experts_solve_it(added, ran):
    assert len(ran) == 2
    data = added.folder / "results/guess/data/guess"
    experts = jsonl.read(data / "sft.jsonl", Trajectory)
    assert len(experts) == 20
    assert {(expert.reward, expert.environment) for expert in experts} == {(1.0, "Guess 1")}
    records = added.folder / "results/guess/tiny/guess/base/untrained/eval/records.jsonl"
    evaluated = [task.task_id for task in jsonl.read(data / "evaluate.jsonl", Task)]
    assert len(evaluated) == 6
    assert [record.task_id for record in jsonl.read(records, EvalRecord)] == evaluated


def test_its_experts_replay_in_any_order(page, added):
    added.python(page.blocks("python")[2])


def test_no_other_job_reruns(added, before):
    assert len(before) > 50
    assert added.python(FINGERPRINTS).splitlines() == before


def test_an_episode_that_leaves_something_behind_is_found(page, added):
    """The page's check can fail: here the number of the episode before is kept."""
    module = f"{PACKAGE}/domain.py"
    added.edit(module, 'self._number, self._reward = int(task.data["number"] or 0), 0.0', "self._forget(task)")
    kept = '        self._number, self._reward = getattr(self, "_number", int(task.data["number"])), 0.0\n'
    added.edit(module, "    def close(", f"    def _forget(self, task):\n{kept}\n    def close(")
    done = added.ask("python", "-c", page.blocks("python")[2])
    assert done.returncode == 1
    assert "AssertionError" in done.stderr
