"""An environment is one package and one entry in a suite: it reaches no job of another."""

import subprocess
import sys

import pytest
from checkout import copy_of, environment

from coevolve.envs.registry import is_refused, optional
from coevolve.envs.section import has_module, known_kinds, section_class
from coevolve.pipeline.registry import STAGES
from coevolve.records.episodes import Turn
from coevolve.storage.code_digest import reachable

KINDS = ["bfcl", "intercode_sql", "sciworld", "webshop"]
#: Prints each job of the smoke suite and of the gold stage with its fingerprint.
FINGERPRINTS = """
from coevolve.config.loading import load_suite
from coevolve.pipeline.plan import Plan
plan = Plan(load_suite("configs/suites/smoke.yaml"))
for job in [*plan.jobs(), plan.require("gold", {"env": "sciworld"})]:
    named = sorted(job.wildcards.items())
    print(job.stage.name, job.wildcards.get("env", "-"), named, plan.fingerprint(job), sep="\\t")
"""


@pytest.fixture(scope="module")
def kit(root, tmp_path_factory):
    return copy_of(root, tmp_path_factory.mktemp("kit"))


def fingerprints(kit):
    command = [sys.executable, "-c", FINGERPRINTS]
    done = subprocess.run(command, cwd=kit, env=environment(kit), capture_output=True, text=True, check=True)
    lines = [line.split("\t") for line in done.stdout.splitlines()]
    return {(stage, env, names): digest for stage, env, names, digest in lines}


@pytest.fixture(scope="module")
def before(kit):
    return fingerprints(kit)


ENTER = {"data", "rollout", "evaluate"}
#: More code of a definition, by its module.
DEFINED = {"config": "SciWorldConfig.__repr__", "domain": "pool", "jvm": "Simulator", "gold": "generate"}
EDIT = "\n\n{0} = {0}\n"


@pytest.mark.parametrize(
    ("module", "own", "products"),
    [
        ("config", ENTER | {"gold"}, True),
        ("domain", ENTER | {"gold"}, False),
        ("jvm", ENTER | {"gold"}, False),
        ("gold", {"gold"}, False),
    ],
)
def test_an_edit_reruns_the_jobs_of_its_own_environment_and_the_products_that_read_it(
    kit, before, module, own, products
):
    path = kit / f"coevolve/envs/sciworld/{module}.py"
    text = path.read_text()
    path.write_text(text + EDIT.format(DEFINED[module]))
    try:
        after = fingerprints(kit)
    finally:
        path.write_text(text)
    changed = {job[:2] for job in before if after[job] != before[job]}
    assert before.keys() == after.keys()
    assert {stage for stage, env in changed if env == "sciworld"} == own
    assert {env for _, env in changed} <= {"sciworld", "-"}
    assert bool({env for _, env in changed} & {"-"}) == products


def test_modules_of_the_command_line_and_an_environment_that_a_suite_does_not_name_rerun_nothing(kit, before):
    with (kit / "coevolve/envs/sciworld/installation.py").open("a") as file:
        file.write(EDIT.format("run"))
    package = kit / "coevolve/envs/extra"
    package.mkdir()
    (package / "__init__.py").touch()
    section = "class ExtraConfig(EnvSection):\n    extra: int\n"
    (package / "config.py").write_text(f"from coevolve.envs.section import EnvSection\n\n\n{section}")
    assert fingerprints(kit) == before


def test_every_package_has_a_section_and_a_domain_and_no_stage_reaches_one():
    assert known_kinds() == KINDS
    for kind in KINDS:
        assert section_class(kind).__module__ == f"coevolve.envs.{kind}.config"
        assert has_module(kind, "domain")
    packages = tuple(f"coevolve.envs.{kind}" for kind in KINDS)
    for stage in STAGES.values():
        assert [name for name in reachable(f"{stage.module}.run") if name.startswith(packages)] == []


@pytest.mark.parametrize("kind", KINDS)
def test_a_section_and_a_replays_arguments_load_without_the_simulator_or_the_server(kind):
    code = (
        "import argparse, sys\n"
        "from coevolve.envs.section import section_class\n"
        "from coevolve.envs.registry import optional\n"
        f"section_class({kind!r})\n"
        f"if hasattr(installation := optional({kind!r}, 'installation'), 'HELP'):\n"
        "    installation.add_arguments(argparse.ArgumentParser())\n"
        "sys.exit(bool({'bfcl_eval', 'mpmath', 'py4j', 'scienceworld', 'pymysql', 'torch'} & sys.modules.keys()))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_modules_of_a_package_are_optional():
    assert optional("no_such_kind", "installation") is None
    assert optional("webshop", "gold") is None
    assert not is_refused("no_such_kind", "", Turn(text="", action="look", observation="No known action"))
