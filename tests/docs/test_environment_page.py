"""The page on adding an environment is true: its package is installed beside a copy of the kit, and runs."""

import contextlib
import shutil

import pytest

from coevolve.config.loading import load_suite
from coevolve.pipeline.job_server import JobServer
from coevolve.pipeline.plan import Plan
from coevolve.records.episodes import Task, Trajectory
from coevolve.records.evaluation import EvalRecord
from coevolve.storage import jsonl, provenance

PACKAGE, SUITE = "guess-game", "configs/guess.yaml"
#: Installs without an index or a network, into a folder of its own.
INSTALL = "python -m pip --quiet --disable-pip-version-check install --no-index --no-deps --no-build-isolation"
#: Prints the fingerprint of every job of the smoke suite, with all its environments.
FINGERPRINTS = """
from coevolve.config.loading import load_suite
from coevolve.pipeline.plan import Plan
plan = Plan(load_suite("configs/suites/smoke.yaml"))
print(*(f"{job.stage.name} {job.wildcards} {plan.fingerprint(job)}" for job in plan.jobs()), sep="\\n")
"""


@pytest.fixture(scope="module")
def page(read):
    return read("add_an_environment")


@pytest.fixture(scope="module")
def before(root):
    """Fingerprints of other environments' jobs in this kit, without the page's environment."""
    with contextlib.chdir(root):
        plan = Plan(load_suite("configs/suites/smoke.yaml"))
        return [f"{job.stage.name} {job.wildcards} {plan.fingerprint(job)}" for job in plan.jobs()]


@pytest.fixture(scope="module")
def added(page, kit, tmp_path_factory):
    """The copy of the kit, with the page's package beside it and a folder on its path for what is installed."""
    ((project,), modules, (suite,)) = (page.blocks(language) for language in ("toml", "python", "yaml"))
    kit.write(f"{PACKAGE}/pyproject.toml", project)
    for name, text in zip(("__init__", "config", "domain", "installation"), ("", *modules), strict=True):
        kit.write(f"{PACKAGE}/guess_game/{name}.py", text)
    kit.write(SUITE, suite)
    kit.packages = tmp_path_factory.mktemp("packages")
    return kit


@pytest.fixture(scope="module")
def ran(page, added):
    """What the page's commands print; the first installs the package."""
    install, *commands = page.commands
    assert install == f"pip install --editable ./{PACKAGE}"
    done = added.ask("coevolve", "plan", "--suite", "guess", "--machine", "cpu")
    assert done.returncode == 2 and "no environment `guess`; known are bfcl, " in done.stderr
    added.shell(install.replace("pip install", f"{INSTALL} --target '{added.packages}'"))
    added.write(added.packages / "sitecustomize.py", f"import site\nsite.addsitedir({str(added.packages)!r})\n")
    return [added.shell(command) for command in commands]


def test_the_plan_knows_it(ran):
    assert "Suite guess on one CPU machine" in ran[0]


def test_a_policy_plays_it_and_experts_solve_it(added, ran):
    assert len(ran) == 4
    data = added.folder / "results/guess/data/guess"
    experts = jsonl.read(data / "sft.jsonl", Trajectory)
    assert len(experts) == 20
    assert {(expert.reward, expert.environment) for expert in experts} == {(1.0, "Guess 1")}
    evaluation = added.folder / "results/guess/tiny/guess/base/untrained/eval"
    evaluated = [task.task_id for task in jsonl.read(data / "evaluate.jsonl", Task)]
    assert len(evaluated) == 6
    assert [record.task_id for record in jsonl.read(evaluation / "records.jsonl", EvalRecord)] == evaluated
    for made in (data, evaluation):
        assert provenance.read(made / provenance.NAME).versions["guess-game"] == "1.0"


def test_other_models_and_trainers_play_it(added, ran):
    assert "| test    | 6 " in ran[2]
    code = """
from coevolve.adapters.sessions import open_sessions
with open_sessions("guess", suite="guess") as pool:
    print(pool.acquire().reset("train", 0))
"""
    assert added.python(code) == "I think of a number from 1 to 60.\n"


def test_its_experts_replay_in_any_order(ran):
    assert ran[3].endswith(" turns compared; 0 episodes differ\n")


def test_no_other_job_reruns(added, ran, before):
    """Neither when the package is installed nor when it is edited; no file of the kit changed."""
    assert len(before) > 50
    assert added.python(FINGERPRINTS).splitlines() == before
    assert not (added.folder / "coevolve/envs/guess").exists()


def test_an_edit_reruns_its_jobs_and_a_copy_that_is_older_is_refused(added, ran, tmp_path):
    def fingerprints():
        return added.python(FINGERPRINTS.replace("configs/suites/smoke.yaml", SUITE)).splitlines()

    module, made = added.folder / PACKAGE / "guess_game/domain.py", fingerprints()
    text = module.read_text()
    module.write_text(text.replace(", 0.0\n", ", 0.1\n"))
    stages = {line.split()[0] for line in set(fingerprints()) - set(made)}
    assert {"data", "rollout", "evaluate"} <= stages and "train" not in stages
    module.write_text(text)
    editable, added.packages = added.packages, tmp_path / "copied"
    added.shell(f"{INSTALL} --target '{added.packages}' ./{PACKAGE}")
    assert fingerprints() == made
    module.write_text(text.replace(", 0.0\n", ", 0.1\n"))
    done = added.ask("coevolve", "plan", "--suite", "guess", "--machine", "cpu")
    module.write_text(text)
    added.packages = editable
    assert done.returncode == 2
    assert f"run `pip install --editable {added.folder / PACKAGE}`." in done.stderr


STEP = "    def step(self, action: str | None) -> StepResult:\n"
#: What is evaluated here ends before an action means anything: short ones, and one retry.
SHORT = ("rollout.max_new_tokens=1", "rollout.retries=1")


@pytest.fixture(scope="module")
def evaluate(added, ran):
    """Evaluates the untrained policy again, in processes forked from one that has imported torch."""
    words = ["python", "-m", "coevolve", "stage", "evaluate", "--suite", "guess", "--out", "results/ended"]
    words += [word for name in ("model=tiny", "env=guess", "branch=base/untrained") for word in ("--on", name)]
    words += [word for override in SHORT for word in ("--set", override)]
    with contextlib.chdir(added.folder):
        server = JobServer(["evaluate"], added.variables)
    yield lambda: added.ask(*words)
    server.stop()


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("raise SystemExit(0)", "`step` failed with SystemExit: 0 ({file}); correct the environment."),
        ("__import__('os')._exit(0)", "guess: the environment ended 6 of 6 episodes by an error (process "),
        (
            "raise __import__('coevolve.envs.base', fromlist=['EnvError']).EnvError('no power')",
            "guess: the environment ended 6 of 6 episodes by an error (no power); key `evaluation.max_env_errors` "
            "allows a share of 0.01; repair it and run the same command again, which plays them again.",
        ),
    ],
)
def test_a_step_that_ends_the_process_and_a_broken_environment_end_no_evaluation_well(added, evaluate, line, sentence):
    module = added.folder / PACKAGE / "guess_game/domain.py"
    text = module.read_text()
    module.write_text(text.replace(STEP, f"{STEP}        {line}\n"))
    done = evaluate()
    number = text.splitlines(keepends=True).index(STEP) + 2
    assert done.returncode == 2, done.stderr
    assert sentence.format(file=f"{module}:{number}") in done.stderr.splitlines()[-1]
    assert not (added.folder / "results/ended").exists()
    module.write_text(text)
    done = evaluate()
    assert done.returncode == 0, done.stderr
    assert len(jsonl.read(added.folder / "results/ended/records.jsonl", EvalRecord)) == 6
    shutil.rmtree(added.folder / "results/ended")


def test_an_episode_that_leaves_something_behind_is_found(added, ran):
    """The page's check can fail: here the number of the episode before is kept."""
    module = added.folder / PACKAGE / "guess_game/domain.py"
    text = module.read_text().replace(
        'self._number, self._reward = int(task.data["number"] or 0), 0.0',
        'self._number, self._reward = getattr(self, "_number", int(task.data["number"])), 0.0',
    )
    assert text != module.read_text()
    module.write_text(text)
    done = added.ask("coevolve", "replay", "guess")
    assert done.returncode == 1
    assert " 0 episodes differ" not in done.stdout and " episodes differ" in done.stdout
