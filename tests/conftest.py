"""Where things are, and in what order they are tested."""

import functools
import lzma
import os
import shutil
from pathlib import Path

import pytest
from filelock import FileLock
from hypothesis import HealthCheck, settings

# On a busy machine an example of Hypothesis takes as long as it takes.
settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy")

# Tests run side by side, on policies too small for a second thread; PyTorch reads it when it is imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# A JVM of a test lives for seconds: compiling its code as for hours takes longer than running it.
os.environ.setdefault("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1")

ROOT = Path(__file__).parents[1]
#: The beginning of the error for a machine without a database server.
NO_SERVER = "no MySQL on PATH"
#: The files that take longest, the longest first: begun last, one of them would keep one process busy and others idle.
LONGEST = (
    "dag/test_dag.py",
    "docs/test_environment_page.py",
    "stages/test_bad_input.py",
    "envs/test_workers.py",
    "docs/test_stage_page.py",
    "docs/test_endpoint_page.py",
    "docs/test_model_page.py",
    "train/test_online.py",
    "train/test_grpo.py",
    "train/test_ppo.py",
    "envs/sciworld/test_sciworld.py",
    "envs/sciworld/test_gold.py",
    "stages/test_isolation.py",
    "stages/test_recorded_settings.py",
    "invariant/test_curves.py",
    "train/test_train_resume.py",
    "train/test_training.py",
    "envs/test_environments.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    order = {ROOT / "tests" / name: number for number, name in enumerate(LONGEST)}
    items.sort(key=lambda item: order.get(item.path, len(order)))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]):
    """A test that fails where there is no database server is skipped with that reason; `.ci/run` requires one."""
    if call.excinfo is not None and NO_SERVER in str(call.excinfo.value) and (reason := missing_server()):
        skipped = pytest.skip.Exception(reason).with_traceback(call.excinfo.tb)
        call.excinfo = pytest.ExceptionInfo.from_exception(skipped)
    return (yield)


@functools.cache
def missing_server() -> str:
    """Why this machine has no database server; empty if it has one."""
    from coevolve.envs.intercode_sql.server_program import DEFAULT_CONFIG, find_server_program
    from coevolve.errors import UserError

    try:
        find_server_program(DEFAULT_CONFIG)
        return ""
    except UserError as error:
        return str(error)


@pytest.fixture(scope="session")
def root() -> Path:
    """The repository."""
    return ROOT


@pytest.fixture
def coevolve(capsys):
    """Runs a command in the current folder; returns its exit status, stdout and stderr."""
    from command_line import exit_status

    def run(*arguments):
        status = exit_status(*arguments)
        printed = capsys.readouterr()
        return status, printed.out, printed.err

    return run


@pytest.fixture(scope="session")
def upstream(tmp_path_factory) -> Path:
    """What upstream's programs answered, unpacked from `tests/data`."""
    folder = tmp_path_factory.mktemp("upstream")
    for packed in (ROOT / "tests/data").glob("*/*.xz"):
        (folder / packed.parent.name).mkdir(exist_ok=True)
        (folder / packed.parent.name / packed.stem).write_bytes(lzma.decompress(packed.read_bytes()))
    return folder


@pytest.fixture(scope="session")
def made(root, tmp_path_factory, worker_id):
    """A folder in which the whole suite `glance` was run; this process's copy of the one run of a test session."""
    from small_run import run_suite

    common = tmp_path_factory.getbasetemp() if worker_id == "master" else tmp_path_factory.getbasetemp().parent
    run = common / "small_run"
    with FileLock(f"{run}.lock"):
        if not (run / "finished").exists():
            shutil.rmtree(run, ignore_errors=True)
            run.mkdir()
            run_suite(root, run)
            (run / "finished").touch()
    return shutil.copytree(run, tmp_path_factory.mktemp("made") / "run", symlinks=True)


@pytest.fixture(scope="session")
def browser(tmp_path_factory):
    """A browser for pages, where there is one."""
    from report.view.chromium import Browser

    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if program is None:
        pytest.skip("no chromium on this machine (Debian: apt-get install chromium): its pages are not opened")
    one = Browser(program, tmp_path_factory.mktemp("profile"))
    yield one
    one.close()


@pytest.fixture(scope="session")
def other_environment(root, tmp_path_factory):
    """Gives the Python of an environment of another tool, by the names of its lock files in envs_setup."""
    import other_environments

    made = {}

    def environment(*names):
        if names not in made:
            locks = [root / f"envs_setup/{name}.lock" for name in names]
            made[names] = other_environments.make(locks, tmp_path_factory.mktemp(names[0]))
        return made[names]

    return environment
