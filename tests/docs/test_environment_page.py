"""The page on adding an environment is true: what it shows is put into a copy of the kit and runs there."""

import pytest

from coevolve.storage import jsonl
from coevolve.types import EvalRecord, Task, Trajectory

SECTIONS, SUITE = "coevolve/config/environments.py", "configs/guess.yaml"


@pytest.fixture(scope="module")
def page(read):
    return read("add_an_environment")


@pytest.fixture(scope="module")
def added(page, kit):
    """A copy of the kit with the page's environment."""
    module, section, _ = page.blocks("python")
    (suite,) = page.blocks("yaml")
    kit.write("coevolve/envs/guess/__init__.py", "")
    kit.write("coevolve/envs/guess/domain.py", module)
    kit.edit(SECTIONS, "\n\nEnvConfig = ", f"\n\n{section}\n\nEnvConfig = ")
    kit.edit(SECTIONS, "import Annotated,", "import Annotated, ClassVar,")
    kit.edit(SECTIONS, "| WebShopConfig, Field(", "| WebShopConfig | GuessConfig, Field(")
    kit.edit(SECTIONS, '"webshop": WebShopConfig,', '"webshop": WebShopConfig, "guess": GuessConfig,')
    kit.edit("configs/machines/cpu.yaml", "webshop: 0.001}", "webshop: 0.001, guess: 0.001}")
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


def test_all_jobs_reach_the_section_and_no_stage_the_package(added):
    code = "from coevolve.storage.provenance import reachable; print(*reachable('coevolve.stages.rollout'))"
    found = added.python(code).split()
    assert "coevolve.config.environments" in found
    assert [name for name in found if "guess" in name] == []


def test_an_episode_that_leaves_something_behind_is_found(page, added):
    """The page's check can fail: here the number of the episode before is kept."""
    module = "coevolve/envs/guess/domain.py"
    added.edit(module, 'self._number, self._reward = int(task.data["number"] or 0), 0.0', "self._forget(task)")
    kept = '        self._number, self._reward = getattr(self, "_number", int(task.data["number"])), 0.0\n'
    added.edit(module, "    def close(", f"    def _forget(self, task):\n{kept}\n    def close(")
    done = added.ask("python", "-c", page.blocks("python")[2])
    assert done.returncode == 1
    assert "AssertionError" in done.stderr
