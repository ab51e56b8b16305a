"""The doctor's sentences, each on a machine that really has the trouble."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml
from checkout import Copy, copy_of

from coevolve.assets import images
from coevolve.config.loading import load_suite
from coevolve.config.machine import Machine
from coevolve.envs.sciworld import installation as sciworld
from coevolve.envs.webshop import installation as webshop
from coevolve.errors import UserError
from coevolve.pipeline import devices, required_files
from coevolve.pipeline.machine import load_machine
from coevolve.pipeline.plan import Plan
from coevolve.storage import files
from coevolve.watch import doctor, node, slurm


@pytest.fixture
def repo(root, monkeypatch):
    monkeypatch.chdir(root)
    return root


def machine(root, **settings):
    raw = yaml.safe_load((root / "configs/machines/h100.yaml").read_text()) | {"launch": None}
    stages = {"default": {"cpus": 1, "memory_gb": 1, "minutes": 1}, "sft": {"gpus": settings.pop("gpus", 8)}}
    return Machine.model_validate(raw | {"stages": stages} | settings)


def test_a_slurm_that_is_not_there(repo, tmp_path, monkeypatch):
    monkeypatch.setenv(devices.USE_CPU, "1")  # a build of torch for CPUs would be reported
    for name in slurm.PROGRAMS:
        (tmp_path / name).touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    (check,) = doctor.machine(machine(repo), 8, on_slurm=True)
    assert (check.name, check.status) == ("Slurm", "ok")
    monkeypatch.setenv("PATH", str(tmp_path / "none"))
    (check,) = doctor.machine(machine(repo), 8, on_slurm=True)
    assert check.status == "wrong" and "sbatch, sinfo, squeue, scancel not on PATH" in check.text


def test_a_slurm_profile_without_slurm_ends_in_the_doctors_sentence(root, tmp_path):
    if shutil.which("sbatch"):
        pytest.skip("Slurm is installed here")
    kit = Copy(copy_of(root, tmp_path / "repo"))
    done = kit.ask("python", "-m", "snakemake", "--profile", "slurm", "--config", "suite=smoke", "machine=cpu")
    assert done.returncode != 0
    with pytest.raises(UserError) as sentence:
        slurm.programs()
    assert done.stderr.splitlines()[-1] == f"coevolve: {sentence.value}"
    assert not (kit.folder / "results/smoke/data").exists()


def test_the_command_for_a_missing_file_can_be_pasted(repo, tmp_path):
    suite = tmp_path / "my suites" / "mine.yaml"
    suite.parent.mkdir()
    suite.write_text("extends: smoke.yaml\nsuite: mine\n")
    command = [sys.executable, "-m", "coevolve", "mirror", "verify", "--suite", suite, "--root", tmp_path]
    # Without the environment's programs on PATH, as after `.venv/bin/coevolve`.
    bare = os.environ | {"PATH": "/usr/bin:/bin"}
    done = subprocess.run(command, env=bare, capture_output=True, text=True, check=False)
    hints = set(re.findall(r"run `(.*?)` on a machine with a network", done.stdout))
    assert done.returncode == 1 and len(hints) == 1, done.stdout + done.stderr
    pasted = subprocess.run(
        f"{hints.pop()} --dry-run", shell=True, env=bare, capture_output=True, text=True, check=False
    )
    assert pasted.returncode == 0, pasted.stderr


def test_a_launch_file_that_is_not_there_and_gpus_that_torch_does_not_see(repo):
    needs = machine(repo, launch="configs/accelerate/nowhere.yaml", gpus=99, gpus_per_node=99)
    launch, gpu = doctor.machine(needs, 99, on_slurm=False)
    assert launch.status == "missing" and "configs/accelerate/nowhere.yaml" in launch.text
    assert gpu.status == "wrong" and "a stage needs 99" in gpu.text


@pytest.mark.parametrize(("image", "remedy"), [("", "run `rm -rf .venv`"), ("/train.sif", "without `--torch`")])
def test_a_torch_for_cpus_is_replaced_where_it_is(monkeypatch, image, remedy):
    if not torch.__version__.endswith("+cpu"):
        pytest.skip(f"torch {torch.__version__} is no build for CPUs")
    monkeypatch.setenv("APPTAINER_CONTAINER", image)
    with pytest.raises(UserError, match=remedy):
        doctor.gpu(1)


def test_only_the_stages_of_the_suite_count(repo):
    cluster = load_machine("h100")
    asked = load_suite("in_context", ["methods=[gpt4, gpt35]", "ablations.positive_agent.default=false"])
    plans = (Plan.on(load_suite("paper"), "h100"), Plan.on(asked, "h100"), None)
    needed = [doctor.RunSetup(plan, cluster).gpus for plan in plans]
    assert needed == [needed[-1], 1, needed[-1]], "an endpoint is not trained"


def test_a_suite_without_estimates_is_examined_too(repo):
    found = doctor.RunSetup.of("paper", ["envs.webshop.expected=null"], "h100")
    assert found.suite and (found.gigabytes, found.gpus) == (doctor.MINIMUM_GB, 8)


def test_images_that_are_not_there_or_changed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert "no images were built here" in required_files.image_checks()[0].text
    images.LOCK.parent.mkdir()
    (tmp_path / "built.sif").write_bytes(b"an image")
    image = images.add("train", Path("built.sif"), "0" * 40, "base")
    assert [check.status for check in required_files.image_checks()] == ["ok"]
    image.file.write_bytes(b"another")
    assert f"{image.file} has sha256" in required_files.image_checks()[0].text
    image.file.unlink()
    (check,) = required_files.image_checks()
    assert check.status == "wrong" and "is missing" in check.text


def test_packages_of_another_version_or_none(tmp_path):
    lock = tmp_path / "requirements.lock"
    assert doctor.packages(lock).status == "missing"
    lock.write_text("pydantic==0.1\nno-such-package==1.0\n")
    check = doctor.packages(lock)
    assert check.status == "wrong" and " for 0.1, no-such-package nothing for 1.0 (2 in all); run" in check.text


def test_packages_in_front_of_the_environment_are_named_and_not_installed_again(tmp_path):
    """`make setup` would install what PYTHONPATH goes on hiding."""
    folder = tmp_path / "site"
    (folder / "no_such_package-0.9.dist-info").mkdir(parents=True)
    (folder / "no_such_package-0.9.dist-info/METADATA").write_text("Name: no-such-package\nVersion: 0.9\n")
    (tmp_path / "requirements.lock").write_text("no-such-package==1.0\n")
    check = "from coevolve.watch import doctor; print(doctor.packages(doctor.Path('requirements.lock')).text)"
    variables = os.environ | {"PYTHONPATH": f"{folder}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    command = [sys.executable, "-c", check]
    done = subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True, text=True, check=True)
    fix = f"PYTHONPATH puts those of {folder} before the environment's; run `unset PYTHONPATH`."
    assert done.stdout == f"no-such-package 0.9 for 1.0 (1 in all); {fix}\n"


def test_room_that_is_not_there(tmp_path):
    """`results` may link to another disk; where that has no such folder, no run could make a file."""
    assert doctor.disk(tmp_path / "not/yet/made", 0.0).status == "ok"
    assert "1000000000.0 GB needed; make room" in doctor.disk(tmp_path, 1e9).text
    link, target = tmp_path / "results", tmp_path / "scratch"
    link.symlink_to(target)
    problem = f"{link} links to {target}, which does not exist; make it."
    assert [doctor.disk(folder, 0.0).text for folder in (link, link / "smoke")] == [problem, problem]
    target.mkdir()
    assert doctor.disk(link, 0.0).status == "ok"


def test_a_full_disk(tmp_path):
    """A disk of 64 KiB is mounted for the command alone."""
    spaces = ["unshare", "--mount", *([] if os.geteuid() == 0 else ["--map-root-user"])]
    mount = f"mount -t tmpfs -o size=64k none {tmp_path}"
    if subprocess.run([*spaces, "sh", "-c", mount], capture_output=True, check=False).returncode:
        pytest.skip("no mount namespace here, so no small disk")
    look = f"from coevolve.watch import doctor; print(doctor.disk(doctor.Path('{tmp_path}'), 0.0))"
    command = f'{mount}; head -c 64k /dev/zero > {tmp_path}/x; {sys.executable} -c "{look}"'
    done = subprocess.run([*spaces, "sh", "-c", command], capture_output=True, text=True, check=False)
    problem = "no file can be written (No space left on device); make room or link it elsewhere."
    assert done.stdout == f"wrong   disk of {tmp_path}: {problem}\n"


def test_a_simulator_that_answers_otherwise(repo, tmp_path, monkeypatch):
    first = sciworld.GOLD.read_text().splitlines()[0]
    changed = tmp_path / "gold.jsonl"
    changed.write_text(first.replace("you", "ewe") + "\n")
    monkeypatch.setattr(sciworld, "GOLD", changed)
    check = sciworld.check(None)
    assert (check.name, check.status) == ("ScienceWorld", "wrong")
    assert "1 of 1 recorded episodes differ" in check.text


def test_a_tagger_that_is_not_installed(repo, monkeypatch):
    monkeypatch.setitem(sys.modules, "spacy", None)  # what an import finds where it is not installed
    paper = load_suite("paper").envs["webshop"]
    assert (found := webshop.check(paper)).status == "wrong" and "install both, or use `approximate`" in found.text
    small = load_suite("smoke").envs["webshop"]
    assert webshop.check(small).status == "ok"


def test_where_jobs_go_to_slurm_the_build_of_torch_is_known_by_its_version(repo, monkeypatch):
    """No GPU is here to be seen."""
    monkeypatch.delenv(devices.USE_CPU, raising=False)
    h100 = load_machine("h100").model_copy(update={"containers": False})
    for version, status in (("2.13.0", "ok"), ("2.13.0+cpu", "wrong")):
        monkeypatch.setattr(doctor.metadata, "version", lambda name, version=version: version)
        check = next(doctor.machine(h100, 8, on_slurm=True))
        assert (check.name, check.status, "sees no GPU" in check.text) == ("PyTorch", status, status == "wrong")


def test_a_suite_on_a_machine_has_its_disk_and_gpus(repo):
    setup = doctor.RunSetup.of("paper", [], "h100")
    assert not setup.on_slurm and setup.gpus == 8 and 100 < setup.gigabytes < 100_000


def test_the_command_prints_a_line_each_and_fails_where_something_is_missing(repo, tmp_path, monkeypatch):
    def run(*more):
        command = [sys.executable, "-m", "coevolve", "doctor", "--suite", "smoke", *more]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    gold = "envs.sciworld.experts.path"
    dump = tmp_path / "dump.sql"
    dump.write_text("select 1")
    settings = ["--set", f"envs.intercode_sql.dump.path={dump}"]
    done = run(*settings, "--set", f"envs.intercode_sql.dump.sha256='{files.sha256(dump)}'")
    assert done.returncode == 0, done.stdout
    assert {line.split()[0] for line in done.stdout.splitlines()} == {"ok"}
    done = run(*settings, "--set", f"{gold}={tmp_path}/nowhere.jsonl")
    assert done.returncode == 1
    assert f"missing envs.sciworld.experts: {tmp_path}/nowhere.jsonl does not exist" in done.stdout
    assert "wrong   envs.intercode_sql.dump: " in done.stdout


def test_a_node_is_checked_by_what_its_jobs_do(repo, monkeypatch):
    """Two processes meet, and every environment is started."""
    monkeypatch.setenv(devices.USE_CPU, "1")
    setup = doctor.RunSetup.of("smoke", ["methods=[sft]"], "cpu")
    checks = {check.name: check for check in node.checks(setup)}
    assert {check.status for check in checks.values()} == {"ok"}
    assert checks["two processes"].text == "reached each other by gloo" and "ScienceWorld" in checks
    assert node._gpus(1) == node._memory(1.0) == "not used: ACCELERATE_USE_CPU is set"
    with pytest.raises(UserError, match="which suite and machine"):
        next(node.checks(doctor.RunSetup.of("smoke", [], None)))
