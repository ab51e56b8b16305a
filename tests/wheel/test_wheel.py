"""The package outside of its repository: a wheel, installed, in an empty folder."""

import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest
from checkout import copy_of

EPISODES = """
import random
from pathlib import Path

import coevolve
from coevolve.envs.sciworld.env import SciWorld
from coevolve.envs.sciworld.jvm import Simulator
from coevolve.envs.sciworld.tasks import listed
from coevolve.envs.webshop.catalogue_generator import ProductShares, generate
from coevolve.envs.webshop.goals import draw_prices_and_goals
from coevolve.envs.webshop.session import ShopSession
from coevolve.envs.webshop.shop import Shop
from coevolve.envs.webshop.tagger import load_tagger
from coevolve.envs.webshop.tasks import eto_lists

print(Path(coevolve.__file__).parents[1])
generate(Path("catalogue"), products=50, seed=0, shares=ProductShares(human=0.5))
Shop.build(Path("catalogue"), Path("shop"))
shop = Shop(Path("shop"))
prices, goals = draw_prices_and_goals(shop, random.Random(0), human=True)
goal = next(goal for goal in goals if goal.options)
session = ShopSession(shop, prices, load_tagger("approximate"), goal, random.Random(0))
session.step("search[red shoes]")
session.step(f"click[{list(session.page.clickables)[2]}]")
bought = session.step("click[buy now]")
print("WebShop", bought.done, 0 <= bought.reward <= 1, len(eto_lists().train))
simulator = Simulator(256, 60.0)
world = SciWorld(simulator, "easy")
world.start(next(task for task in listed("official", "train") if task.task_id == "sciworld/find-animal/0"))
actions = ("focus on butterfly egg", "pick up butterfly egg", "teleport to kitchen", "move butterfly egg to red box")
results = [world.step(action) for action in ("teleport to outside", *actions)]
print("ScienceWorld", results[-1].done, results[-1].reward)
simulator.close()
"""


@pytest.fixture(scope="module")
def installed(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `bin` of a virtual environment with the wheel, and with this interpreter's packages below it."""
    folder = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    build = ["wheel", "--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", folder]
    subprocess.run([*pip, *build, copy_of(root, folder / "source")], check=True)
    (wheel,) = folder.glob("*.whl")
    venv.create(folder / "venv", symlinks=True)
    site = Path(sysconfig.get_path("purelib", vars={"base": str(folder / "venv")}))
    (site / "below.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    python = folder / "venv/bin/python"
    subprocess.run(
        [*pip, "--python", python, "install", "--no-deps", "--no-index", "--force-reinstall", wheel], check=True
    )
    return python.parent


def run(installed: Path, folder: Path, *command: str) -> str:
    """What a command prints in an otherwise empty environment."""
    folder.mkdir(exist_ok=True)
    variables = {"PATH": f"{installed}:/usr/bin:/bin", "HOME": str(folder)}
    done = subprocess.run(
        [installed / command[0], *command[1:]], cwd=folder, env=variables, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_episodes_are_played_outside_of_the_repository(installed: Path, tmp_path: Path) -> None:
    where, *episodes = run(installed, tmp_path, "python", "-c", EPISODES).splitlines()
    assert Path(where).is_relative_to(installed.parent)
    assert episodes == ["WebShop True True 1824", "ScienceWorld True 1.0"]


def test_a_suite_given_by_path_extends_a_shipped_one(installed: Path, tmp_path: Path) -> None:
    mine = tmp_path / "suites" / "mine.yaml"
    mine.parent.mkdir()
    mine.write_text("extends: smoke.yaml\nsuite: mine\nseeds: [7]\n")
    targets = run(installed, tmp_path, "coevolve", "targets", "--suite", str(mine))
    assert "method_coevolve" in targets and "webshop_METHOD" in targets
    merged = run(installed, tmp_path, "coevolve", "config", "--suite", "suites/mine.yaml")
    assert "[7]" in merged and "shipped/configs/suites/smoke.yaml" in merged
    plan = run(installed, tmp_path, "coevolve", "plan", "--suite", "suites/mine.yaml", "--machine", "cpu")
    assert "Suite mine on" in plan


def test_snakemake_finds_the_logger_plugin(installed: Path, tmp_path: Path) -> None:
    code = "from snakemake_interface_logger_plugins.registry import LoggerPluginRegistry as Registry\n"
    code += "print(Registry().get_plugin('coevolve').log_handler.__module__)\n"
    code += "import sys, snakemake_logger_plugin_coevolve as plugin\nprint(plugin.__file__, 'coevolve' in sys.modules)"
    module, found = run(installed, tmp_path, "python", "-c", code).splitlines()
    path, is_kit_imported = found.rsplit(" ", 1)
    assert module == "snakemake_logger_plugin_coevolve" and Path(path).is_relative_to(installed.parent)
    assert is_kit_imported == "False", "the Snakefile's folder decides which kit is used"
