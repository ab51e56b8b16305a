"""The doctor's sentences, each on a machine that really has the trouble; of Slurm, what `sinfo` answers is scripted."""

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
from coevolve.follow import doctor, preflight, slurm
from coevolve.pipeline import devices, required_files
from coevolve.pipeline.machine import load_machine
from coevolve.storage import files

#: The nodes that `fake_slurm` lists: CPUs, MB, time limit, number.
NODES = "32|200000|infinite|2"
#: What Slurm 22.05 answers of two nodes (the first line), and other kinds of nodes in its format.
SINFO = "".join(
    f"{kind}|{NODES}\n"
    for kind in ("h100*|up|gpu:h100:8", "mixed|up|gpu:a100:8", "mixed|up|gpu:h100:4(S:0-1),gpu:a100:2",
                 "old|down|gpu:2", "cpu|up|(null)", "plain|up|gpu:8")
)  # fmt: skip


@pytest.fixture
def repo(root, monkeypatch):
    monkeypatch.chdir(root)
    return root


def machine(root, **settings):
    raw = yaml.safe_load((root / "configs/machines/h100.yaml").read_text()) | {"launch": None}
    stages = {"default": {"cpus": 1, "memory_gb": 1, "minutes": 1}, "sft": {"gpus": settings.pop("gpus", 8)}}
    return Machine.model_validate(raw | {"stages": stages} | settings)


@pytest.fixture
def fake_slurm(tmp_path, monkeypatch):
    """Puts commands of Slurm on PATH, of which `sinfo` runs the given shell script."""
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setenv(devices.USE_CPU, "1")  # a build of torch for CPUs would be reported

    def script(text):
        for name in slurm.PROGRAMS:
            (tmp_path / name).write_text(f"#!/bin/sh\n{text if name == 'sinfo' else ''}\n")
            (tmp_path / name).chmod(0o755)

    return script


def examine(root, **settings):
    needs = machine(root, **settings)
    gpus = doctor.RunSetup(None, needs).gpus
    return {check.name: check for check in doctor.machine(needs, gpus, on_slurm=True)}


def test_a_machine_that_has_all_is_well(repo, fake_slurm):
    fake_slurm(f"printf '{SINFO}'")
    found = examine(repo)
    assert {check.status for check in found.values()} == {"ok"}
    assert found["partition"].text == "h100"
    assert found["GPU"].text == "8 x h100 per node in `h100`"
    assert examine(repo, partition=["cpu", "old", "mixed", "h100"])["GPU"].text == "8 x h100 per node in `h100`"


@pytest.mark.parametrize(
    ("settings", "what", "words"),
    [
        ({"partition": "h10"}, "partition", "no `h10`; set `partition` to one of: cpu, h100, mixed, old, plain."),
        ({"partition": "old"}, "partition", "`old` is not up"),
        ({"partition": ["old", "h10"]}, "partition", "no `h10`; set `partition`"),
        ({"gpu": "b200"}, "GPU", "requests 8 x b200 per node, those of `h100` have h100 x 8; set `partition`, `gpu`"),
        ({"partition": "cpu", "gpu": None}, "GPU", "8 x GPU per node, those of `cpu` have none"),
        ({"partition": "plain"}, "GPU", "8 x h100 per node, those of `plain` have unnamed x 8; "),
        ({"partition": "mixed"}, "GPU", "requests 8 x h100 per node, those of `mixed` have a100 x 8, h100 x 4"),
    ],
    ids=["no partition", "closed", "one of two", "no type", "no GPU", "no name", "too few"],
)
def test_what_slurm_has_not(repo, fake_slurm, settings, what, words):
    fake_slurm(f"printf '{SINFO}'")
    check = examine(repo, **settings)[what]
    assert check.status == "wrong" and words in check.text


@pytest.mark.parametrize(
    ("listed", "kind", "gpus"),
    [
        ("gpu:2", None, 2),
        # types that begin with a digit
        ("gpu:3090:4", "3090", 4),
        ("gpu:2080ti:6(S:0-1)", "2080ti", 6),
        ("gpu:1g.10gb:7,gpu:a100:2", "1g.10gb", 7),
    ],
)
def test_as_many_gpus_as_the_nodes_have_and_one_more(listed, kind, gpus, repo, fake_slurm):
    fake_slurm(f"printf 'all*|up|{listed}|{NODES}\\n'")
    enough, more = (examine(repo, gpu=kind, gpus=number)["GPU"] for number in (gpus, gpus + 1))
    assert enough.status == "ok" and (kind is None or enough.text == f"{gpus} x {kind} per node in `all`")
    assert more.status == "wrong" and f"a stage requests {gpus + 1} x " in more.text


def test_a_slurm_that_does_not_answer_has_no_default_partition_or_is_not_there(repo, fake_slurm, tmp_path, monkeypatch):
    fake_slurm("echo 'slurm_load_partitions: Unable to contact slurm controller' >&2; exit 1")
    assert "Unable to contact slurm controller" in examine(repo)["Slurm"].text
    fake_slurm(f"printf 'a|up|gpu:h100:8|{NODES}\\n'")
    assert "Slurm has no default partition; set `partition` to one of: a." in examine(repo)["partition"].text
    monkeypatch.setattr(slurm, "TIMEOUT_SECONDS", 0.5)
    fake_slurm("exec sleep 30")
    assert "timed out" in examine(repo)["Slurm"].text
    monkeypatch.setenv("PATH", str(tmp_path / "none"))
    assert list(examine(repo)) == ["Slurm"]
    assert "sbatch, sinfo, squeue, scancel not on PATH" in examine(repo)["Slurm"].text


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
    needed = [doctor.RunSetup(suite, cluster).gpus for suite in (load_suite("paper"), asked, None)]
    assert needed == [needed[-1], 1, needed[-1]], "an endpoint is not trained"


def test_a_suite_without_estimates_is_examined_too(repo):
    found = doctor.RunSetup.of("paper", ["envs.webshop.expected=null"], "h100", None)
    assert found.suite and (found.gigabytes, found.gpus) == (doctor.MINIMUM_GB, 8)


@pytest.mark.parametrize(
    ("text", "profile"),
    [
        ("config: {suite: micro, machine: cpu}", doctor.Profile("micro", "cpu")),
        ("config: [suite=micro, machine=cpu]", doctor.Profile("micro", "cpu")),
        ("configfile: own.yaml", doctor.Profile("micro", "cpu")),
        ("software-deployment-method:\n", doctor.Profile()),
        ("config: [3]", "config.yaml: key `config`: write each setting as `name=value`."),
        ("config: {suite: 2024_01}", "--config suite: Snakemake reads this name as 202401"),
        ("config: {machine: }", "--config machine=: it is empty"),
    ],
)
def test_a_profile_is_read_as_snakemake_takes_it_or_does_not(tmp_path, monkeypatch, text, profile):
    (tmp_path / "config.yaml").write_text(text)
    (tmp_path / "own.yaml").write_text("suite: micro\nmachine: cpu\n")
    monkeypatch.chdir(tmp_path)
    if isinstance(profile, doctor.Profile):
        assert doctor.Profile.read(".") == profile
    else:
        with pytest.raises(UserError, match=re.escape(profile)):
            doctor.Profile.read(".")


def test_no_apptainer_and_images_that_are_not_there_or_changed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match="`apptainer` is not on PATH"):
        doctor._apptainer()
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


def test_the_environments_of_images_are_not_looked_for_outside(repo, tmp_path):
    profile = yaml.safe_load((repo / "profiles/slurm/config.yaml").read_text())
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(profile | {"software-deployment-method": ["apptainer"]}))
    for folder, looked in (("profiles/slurm", True), (str(tmp_path), False)):
        names = [check.name for check in doctor.run_checks(doctor.RunSetup.of("smoke", [], "cpu", folder))]
        assert ("database server" in names, "Apptainer" in names) == (looked, not looked)


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
    check = "from coevolve.follow import doctor; print(doctor.packages(doctor.Path('requirements.lock')).text)"
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
    look = f"from coevolve.follow import doctor; print(doctor.disk(doctor.Path('{tmp_path}'), 0.0))"
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


def test_a_profile_brings_its_suite_and_machine(repo):
    found = doctor.RunSetup.of(None, [], None, "one-node")
    assert not found.profile.slurm and found.suite and found.suite.suite == "paper"
    assert found.machine and found.machine.gpu == "h100"
    assert 100 < found.gigabytes < 100_000
    assert doctor.RunSetup.of(None, [], "h100", "slurm").profile.slurm
    with pytest.raises(UserError, match=r"profile `slurn`: no slurn/config\.yaml here"):
        doctor.RunSetup.of(None, [], None, "slurn")


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
    others = [line for line in done.stdout.splitlines() if " results of smoke: " not in line]  # of earlier runs here
    assert {line.split()[0] for line in others} == {"ok"}
    done = run(*settings, "--set", f"{gold}={tmp_path}/nowhere.jsonl")
    assert done.returncode == 1
    assert f"missing envs.sciworld.experts: {tmp_path}/nowhere.jsonl does not exist" in done.stdout
    assert "wrong   envs.intercode_sql.dump: " in done.stdout


def test_a_node_is_checked_by_what_its_stages_do(repo, monkeypatch):
    """For the stages that train, with two processes that meet, and for those of the environments alone."""
    monkeypatch.setattr(preflight, "FILE_MB", 1)
    monkeypatch.setenv(devices.USE_CPU, "1")
    setup, measured = doctor.RunSetup.of("smoke", ["methods=[sft]"], "cpu", None), {}
    trains = {check.name: check.text for check in preflight.checks(setup, "train", 1, measured)}
    assert trains["PyTorch"] == torch.__version__ and trains["two processes"] == "reached each other by gloo"
    assert trains["GPU"] == "not used: ACCELERATE_USE_CPU is set"
    there = "results/smoke" if Path("results/smoke").exists() else "results"  # after `make smoke`
    assert re.fullmatch(rf"[\d,]+ MB/s written and [\d,]+ read, in {there}", trains["speed of the disk"])
    assert measured["read_mb_a_second"] > 0
    plays = [check.name for check in preflight.checks(setup, "envs", 0, {})]
    assert "ScienceWorld" in plays and not {"PyTorch", "GPU"} & {*plays}
    if not torch.cuda.is_available():
        monkeypatch.delenv(devices.USE_CPU)
        without = next(check for check in preflight.checks(setup, "train", 1, {}) if check.name == "GPU")
        assert without.status == "wrong" and "sees 0, a stage needs 1" in without.text
    monkeypatch.setitem(sys.modules, "torch", None)
    for image, remedy in (("train_0123.sif", "build the image again with `make images`"), ("", "run `make -B setup`")):
        monkeypatch.setenv("APPTAINER_CONTAINER", image)
        with pytest.raises(UserError, match=f"`import torch` fails .*; {remedy}"):
            preflight._version("torch")
