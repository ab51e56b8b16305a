"""The images: one source for all files, a lock of what is there, and a build with a stage run in what it built."""

import contextlib
import importlib.metadata
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from coevolve.assets import images
from coevolve.config.loading import load_suite
from coevolve.errors import UserError
from coevolve.pipeline.plan import Plan
from coevolve.pipeline.registry import ENDS, STAGES

#: They go to the network, so they run on the login node, outside of images.
OUTSIDE = {"download", "snapshot"}
#: The images that stages run in.
IMAGES = {stage.image for stage in STAGES.values()} - {""}
ROOT = Path(__file__).parents[2]
DOCKERFILES = sorted(ROOT.glob("containers/*/Dockerfile"))
GENERATED = [path for path in DOCKERFILES if path.with_name("apptainer.def").exists()]
BASE = "docker.io/library/python@sha256:" + "0" * 64


def test_the_page_lists_the_stages_of_each_image(root):
    table = (root / "containers/README.md").read_text().partition("| contents | stages |\n")[2].partition("\n\n")[0]
    rows = re.findall(r"^\| `(\w+)` \| .* \| (.*) \|$", table, re.MULTILINE)
    listed = {image: set(re.findall(r"\w+", text.partition(", and the products")[0])) for image, text in rows}
    for image in IMAGES:
        assert listed[image] == {stage.name for stage in STAGES.values() if stage.image == image} - {*ENDS}
    assert {STAGES[product].image for product in ENDS} == {"envs"}


def name(path):
    return path.parent.name


def test_committed_files_are_those_that_generate_writes(root, tmp_path):
    spec = importlib.util.spec_from_file_location("generate", root / "containers/generate.py")
    generate = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generate)
    generate.main(tmp_path)
    generated = {path.relative_to(tmp_path) for path in tmp_path.rglob("*") if path.is_file()}
    committed = {path.relative_to(root) for path in root.glob("containers/*/apptainer.def")}
    assert generated == committed | {path.with_name("Dockerfile") for path in committed}
    for path in generated:
        same = (root / path).read_text() == (tmp_path / path).read_text()
        assert same, f"{path}: run `python containers/generate.py`"


def test_every_stage_has_its_image(root):
    recipes = images.load_recipes(root / images.RECIPES).images
    assert {name for name, stage in STAGES.items() if stage.image not in recipes} == OUTSIDE
    assert {name for name, stage in STAGES.items() if stage.network} == OUTSIDE
    assert {STAGES[name].image for name in OUTSIDE} == {""}


@pytest.mark.parametrize("key", ["grpo", "recipes.grpo.settings.grpo"])
def test_grpo_that_plays_with_vllm_has_an_image_of_its_own(root, key):
    suite = root / "configs/suites/paper.yaml"
    before, after = (Plan(load_suite(suite, overrides)) for overrides in ([], [f"{key}.engine=vllm"]))
    others = {name for name, stage in STAGES.items() if before.image(stage) != after.image(stage)}
    assert others == {"grpo", "grpo_round"} and {after.image(STAGES[name]) for name in others} == {"online"}
    assert after.image(STAGES["grpo"]) in images.load_recipes(root / images.RECIPES).images


IMPORT = """
import importlib, sys
absent, modules = (set(names.split(",")) for names in sys.argv[1:])
class WithoutAbsent:
    def __init__(self, finder):
        self.finder = finder
    def __getattr__(self, name):
        return getattr(self.finder, name)
    def find_spec(self, name, path=None, target=None):
        return None if name.partition(".")[0] in absent else self.finder.find_spec(name, path, target)
sys.meta_path[:] = map(WithoutAbsent, sys.meta_path)
for module in sorted(modules):
    importlib.import_module(module)
"""


def with_dependencies(names):
    """The names of packages, and of all that they require, as far as they are installed here."""
    found, left = set(), [Requirement(name) for name in names]
    while left:
        package = left.pop()
        name = canonicalize_name(package.name)
        extras = [{"extra": extra} for extra in ("", *package.extras)]
        new = {(name, extra["extra"]) for extra in extras} - found
        found |= new
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            required = map(Requirement, importlib.metadata.requires(name) or ()) if new else ()
            left += [each for each in required if not each.marker or any(map(each.marker.evaluate, extras))]
    return {name for name, _ in found}


@pytest.mark.parametrize("image", sorted(IMAGES))
def test_an_image_has_what_its_stages_import(root, image):
    """The modules of all stages are imported as if nothing was installed but the image's packages."""
    definition = (root / f"containers/{image}/apptainer.def").read_text()
    direct = re.search(r"coevolve.packages (.*)", definition).group(1).split()
    present = with_dependencies(direct) | {"bfcl-eval", "coevolve"}
    absent = {
        module
        for module, packages in importlib.metadata.packages_distributions().items()
        if not present & {canonicalize_name(package) for package in packages}
    }
    assert {"snakemake", "mypy"} <= absent and not {"numpy", "pydantic"} & absent
    stages = {stage.module for stage in STAGES.values() if stage.image == image}
    modules = {"coevolve.cli.stage", "coevolve.pipeline.run_job", *stages}
    command = [sys.executable, "-c", IMPORT, ",".join(absent), ",".join(modules)]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr.strip().splitlines()[-1]


@pytest.mark.parametrize("path", DOCKERFILES, ids=name)
def test_bases_are_pinned_by_digest(path, root):
    text = path.read_text()
    bases = re.findall(r"^(?:FROM (?!\$)|ARG BASE_IMAGE=)(\S+)$", text, re.MULTILINE)
    assert bases and all(re.search(r"@sha256:[0-9a-f]{64}$", base) for base in bases)
    common = images.load_recipes(root / images.RECIPES).base
    assert {base for base in bases if "/python:" in base} <= {common}


@pytest.mark.parametrize("path", [*GENERATED, *(path.with_name("apptainer.def") for path in GENERATED)], ids=str)
def test_there_is_no_secret_and_pip_goes_by_the_lock(path, root):
    text = path.read_text()
    assert not re.search(r"password|secret|token\b|api_key|https?://", text, re.IGNORECASE)
    own_locks = (path.with_name("requirements.lock"), root / f"envs_setup/{name(path)}.lock")
    lock = next((own for own in own_locks if own.exists()), root / "requirements.lock").relative_to(root)
    locked = {line.split("==")[0].lower() for line in (root / lock).read_text().splitlines()}
    installs = re.findall(r"pip install ([^&\n]*)", text)
    assert installs
    hashed = "--no-cache-dir --no-deps --require-hashes --requirement /build/envs_setup/bfcl.lock"
    for install in installs:
        if install.strip() in (hashed, "--no-cache-dir --no-deps --no-build-isolation /build"):
            continue  # pinned by the hashes of its own file; this package
        before, _, after = install.partition(f"--constraint /build/{lock} ")
        assert set(shlex.split(before)) == {"--no-cache-dir", "--no-build-isolation"}
        packages = [] if after.strip() == "--requirement /build/envs_setup/tagger.lock" else shlex.split(after)
        assert {re.split("==", package)[0].lower() for package in packages} <= locked


def test_the_tests_of_an_image_exist(root):
    for recipe in images.load_recipes(root / images.RECIPES).images.values():
        assert recipe.tests and all((root / path.split("::")[0]).exists() for path in recipe.tests)


@pytest.fixture
def built(tmp_path, root):
    """A lock with every image of the repository in it; the files hold little."""
    lock = tmp_path / "images.lock"
    for image in images.load_recipes(root / images.RECIPES).images:
        built_file = tmp_path / f".{image}.sif"
        built_file.write_text(image)
        images.add(image, built_file, "c" * 40, BASE, lock)
    return lock


def test_a_built_image_is_named_by_its_digest_and_found_by_its_stages(built, root):
    found = images.named(IMAGES, built)
    assert set(found) == IMAGES == {"envs", "train", "sample"}
    assert re.fullmatch(r"train-[0-9a-f]{12}\.sif", found[STAGES["sft"].image].file.name)
    assert found[STAGES["sft"].image].file.read_text() == "train"
    assert images.problems(built) == []


def test_a_rebuilt_image_replaces_its_entry_and_spares_the_file(built, root, tmp_path):
    old = images.named(IMAGES, built)["train"]
    built_file = tmp_path / "new.sif"
    built_file.write_text("another")
    images.add("train", built_file, "d" * 40, BASE, built)
    new = images.named(IMAGES, built)
    assert new["train"].file != old.file and old.file.exists()
    assert new["sample"].file.read_text() == "sample"


def refusal(lock) -> str:
    with pytest.raises(UserError) as refused:
        images.named(IMAGES, lock)
    assert str(refused.value).count("\n") == 0
    return str(refused.value)


def test_without_a_lock_one_sentence_says_how_to_build(tmp_path, root):
    assert re.search("no images were built here; run `make images`", refusal(tmp_path / "images.lock"))
    assert len(images.problems(tmp_path / "images.lock")) == 1


def test_an_image_whose_file_is_changed_or_gone_is_named(built, root):
    file = images.named(IMAGES, built)["train"].file
    file.write_text("tampered")
    (problem,) = images.problems(built)
    assert str(file) in problem and "copy it again" in problem
    file.unlink()
    assert f"{file} of the image `train` is missing" in refusal(built)
    assert [str(file) in problem for problem in images.problems(built)] == [True]


@pytest.mark.parametrize(
    ("image", "entry", "sentence"),
    [
        ("sample", None, "`sample` is not in it"),
        ("train", {"sha256": "1" * 64}, "does not end with"),
        ("train", {"sha256": "short"}, "sha256"),
        ("train", {"digest": "x"}, "digest"),
    ],
)
def test_a_lock_edited_by_hand_is_refused(built, root, image, entry, sentence):
    entries = yaml.safe_load(built.read_text())
    before = entries["images"].pop(image)
    if entry:
        entries["images"][image] = before | entry
    built.write_text(yaml.safe_dump(entries))
    assert sentence in refusal(built)


@pytest.mark.parametrize(("arguments", "sentence"), [(["nonsense"], "no image `nonsense`"), (["mysql"], "not on PATH")])
def test_a_build_that_cannot_start_is_one_sentence(root, arguments, sentence):
    done = build(root, *arguments, PATH="")
    assert done.returncode != 0
    assert sentence in done.stderr and "Traceback" not in done.stderr


def test_paths_of_a_build_are_those_of_the_users_folder(root, tmp_path):
    """Apptainer, which is scripted here, runs in another folder."""
    clone, own, programs = tmp_path / "clone", tmp_path / "own", tmp_path / "bin"
    subprocess.run(["git", "clone", "--quiet", root, clone], check=True)
    shutil.copy(root / "containers/build.py", clone / "containers")
    for folder in (own, programs):
        folder.mkdir()
    (own / "base.sif").touch()
    (programs / "apptainer").write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" > {tmp_path}/given\nexit 1\n')
    (programs / "apptainer").chmod(0o755)
    command = [sys.executable, clone / "containers/build.py", "--base", "base.sif", "--bind", "pip.conf:/etc/pip.conf"]
    variables = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}", "PYTHONPATH": str(root)}
    done = subprocess.run([*command, "mysql"], cwd=own, env=variables, capture_output=True, text=True, check=False)
    assert "`apptainer build` ended with status 1" in done.stderr
    given = (tmp_path / "given").read_text().splitlines()
    assert f"--build-arg=BASE_IMAGE={own}/base.sif" in given and "--build-arg=BOOTSTRAP=localimage" in given
    assert f"--bind={own}/pip.conf:/etc/pip.conf" in given


def test_a_build_outside_of_a_clone_is_one_sentence(root, tmp_path):
    """In an unpacked archive, where there is no commit to build from."""
    shutil.copytree(root / "containers", tmp_path / "unpacked/containers")
    (tmp_path / "apptainer").write_text("#!/bin/sh\n")
    (tmp_path / "apptainer").chmod(0o755)
    variables = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "GIT_CEILING_DIRECTORIES": str(tmp_path)}
    done = build(tmp_path / "unpacked", "mysql", PYTHONPATH=str(root), **variables)
    assert done.stderr == f"build.py: {tmp_path}/unpacked: no git, or no clone; {done.stderr.partition('clone; ')[2]}"
    assert done.returncode == 1 and len(done.stderr.splitlines()) == 1


@pytest.mark.slow
def test_the_smallest_image_builds_and_runs_a_stage(root, tmp_path):
    """COEVOLVE_BUILD: options that containers/build.py needs on this machine, such as `--base`; empty for none."""
    if not shutil.which("apptainer") or "COEVOLVE_BUILD" not in os.environ:
        pytest.skip("apptainer is not on PATH, or COEVOLVE_BUILD (options of containers/build.py) is not set")
    clone = tmp_path / "clone"
    subprocess.run(["git", "clone", "--quiet", root, clone], check=True)
    (clone / "data/mirror").mkdir(parents=True)
    shutil.copytree(root / "data/mirror/spider", clone / "data/mirror/spider")
    done = build(clone, *shlex.split(os.environ["COEVOLVE_BUILD"]), "mysql")
    assert done.returncode == 0, done.stderr[-4000:]
    (image,) = (clone / images.FOLDER).glob("mysql-*.sif")
    task = Plan(load_suite(root / "configs/suites/smoke.yaml")).arguments("data", {"env": "intercode_sql"})
    stage = f"$COEVOLVE_PYTHON -m coevolve stage data --suite smoke {task}"
    # What the kit needs of a root to run the server as nobody, should this be one.
    rights = ["--add-caps=CAP_CHOWN,CAP_DAC_OVERRIDE,CAP_FOWNER,CAP_KILL,CAP_SETGID,CAP_SETUID"] * (os.geteuid() == 0)
    inside = ["apptainer", "exec", *rights, "--cleanenv", "--home", clone, f"--env=COEVOLVE_CACHE={tmp_path}/cache"]
    done = subprocess.run([*inside, image, "bash", "-c", stage], cwd=clone, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    provenance = (clone / "results/smoke/data/intercode_sql/provenance.json").read_text()
    assert image.stem in provenance


def build(root: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "containers/build.py", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(root), **environment}
    return subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=False)
