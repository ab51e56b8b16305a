"""`coevolve cluster`, which `make cluster` calls: from a clone to a cluster that can run a suite."""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from coevolve.assets import images
from coevolve.cli.command import Argument, argument, command, show
from coevolve.config.loading import SITE, load_suite
from coevolve.envs import registry
from coevolve.errors import UserError
from coevolve.pipeline import required_files
from coevolve.pipeline.plan import Plan
from coevolve.pipeline.registry import STAGES
from coevolve.pipeline.stage import MIRROR
from coevolve.watch import doctor, site, slurm
from coevolve.watch.doctor import RunSetup

#: The suite of `profiles/slurm`, which a run without `--config suite=...` makes.
DEFAULT_SUITE = "paper"
#: At most so many things are printed that are left to do.
LEFT = 5
INSTALL = Path("envs_setup/install.sh")
#: A profile that runs the stages which fetch, where this command runs.
FETCH = ("--profile", "smoke", "--until", "download", "snapshot", "--config", "machine=cpu")


def _option(name: str, text: str) -> Argument:
    return argument(f"--{name}", default="", help=f"{text}; empty: as found, or as given before")


@command(
    argument(
        "--suite", default=DEFAULT_SUITE, help="the suite whose files are fetched and checked (default: %(default)s)"
    ),
    _option("machine", "the machine file of the repository that the site extends, else h100"),
    _option("partition", "the partition of jobs with GPUs"),
    _option("cpu-partition", "the partition of jobs without a GPU, if it is another"),
    _option("account", "the account of the jobs"),
    _option("qos", "the quality of service of the jobs"),
    _option("gpu", "the GPU type, by its name in Slurm"),
    _option("extra", "further options of sbatch, such as --constraint=..."),
    argument("--scratch", type=Path, help="a folder that all nodes see: downloads and the suite's results go there"),
    argument("--mirror", type=Path, help="a folder with files, models, wheels and images, used before the network"),
    argument(
        "--containers",
        choices=["none", "apptainer"],
        help="run jobs in images never, or even if Apptainer is not here (default: if it and the images are here)",
    ),
)
def set_up(options: argparse.Namespace) -> int:
    """Describe this Slurm cluster in site.yaml, fetch what a suite needs, and print what is left to do."""
    known = slurm.partitions()
    if options.mirror:
        if not options.mirror.is_dir():
            raise UserError(f"MIRROR={options.mirror}: no such folder; name one with the layout of data/mirror.")
        os.environ["COEVOLVE_MIRROR"] = str(options.mirror.absolute())
    keys = ("machine", *site.GIVEN)
    given = site.given_before() | {key: value for key in keys if (value := getattr(options, key))}
    done = [*_links(options), *(_copied_images(options.mirror) if options.mirror else ())]
    engine = images.engine() or options.containers == "apptainer"
    wanted = bool(engine) and options.containers != "none"
    contained = wanted and _has_images()
    settings = site.describe(known, given, containers=contained)
    shown = ("gpus_per_node", "most", "containers", *site.GIVEN)
    facts = {key: settings[key] for key in shown}
    if reduced := ", ".join(settings["stages"]):
        facts["requests reduced to a node's"] = reduced
    show("\n".join(["Found:", *(f"  {name}: {value}" for name, value in facts.items() if value not in (None, ""))]))
    done += [f"{SITE}, extending {settings['extends']}"] if site.write(settings) else []
    setup = doctor.RunSetup.of(options.suite, [], str(SITE))
    done += [] if contained else _environments(setup)
    done += _fetched(setup, options.suite)
    show("\n".join(["Set up:", *(f"  {line}" for line in done)]) if done else "Nothing was left to set up.")
    left = _left(setup)
    failed = bool(left)
    if wanted and not contained:
        left.append("images: none were built here; run `make images`, then `make cluster`: then jobs run in them.")
    if left:
        show("\n".join([f"Left ({min(len(left), LEFT)} of {len(left)}):", *(f"  {line}" for line in left[:LEFT])]))
    gpus = f" --gpus={setup.gpus}" if setup.gpus else ""
    chosen = "" if options.suite == DEFAULT_SUITE else f" --config suite={options.suite}"
    show(f"Check a node: `srun{gpus} coevolve doctor --suite {options.suite} --machine {SITE} --node`")
    show(f"Run: `snakemake --profile slurm{chosen}`")
    return int(failed)


def _left(setup: RunSetup) -> list[str]:
    """What the doctor misses, a line each; files and models, which have the same remedy, are one."""
    wrong = [check for check in doctor.run_checks(setup) if check.status != "ok"]
    keys = {file.key for file in required_files.required_files(setup.suite)} if setup.suite else set()
    files = [check for check in wrong if check.name in keys]
    lines = [f"{check.name}: {check.text}" for check in wrong if check not in files]
    if files:
        such = f"{len(files)} files and models, such as {files[0].name}: {files[0].text}"
        lines.append(f"{such} Or give them by `make cluster MIRROR=FOLDER` (docs/run/cluster.md).")
    return lines


def _links(options: argparse.Namespace) -> Iterator[str]:
    """Make `data/mirror` and the suite's results links to the scratch folder, where they do not exist yet."""
    for link in (Path(MIRROR), Path(Plan(load_suite(options.suite)).home)) if options.scratch else ():
        if not (link.exists() or link.is_symlink()):
            target = options.scratch.absolute() / "coevolve" / link.name
            target.mkdir(parents=True, exist_ok=True)
            link.parent.mkdir(exist_ok=True)
            link.symlink_to(target)
            yield f"{link} links to {target}"


def _copied_images(mirror: Path) -> Iterator[str]:
    """Copy the images and their lock from the mirror folder, if it has them and none are here."""
    lock = mirror / "images" / images.LOCK.name
    if lock.is_file() and not images.LOCK.exists():
        images.FOLDER.mkdir(parents=True, exist_ok=True)
        for file in (*lock.parent.glob("*.sif"), lock):
            shutil.copy(file, images.FOLDER if file != lock else images.LOCK)
        yield f"images of {lock.parent}"


def _has_images() -> bool:
    """Whether the images of all stages are in the lock, and their files are there."""
    try:
        return bool(images.named({stage.image for stage in STAGES.values()} - {""}))
    except UserError:
        return False


def _environments(setup: RunSetup) -> Iterator[str]:
    """Install what the suite's environments need beyond pip, and vLLM's environment if the suite samples with vLLM."""
    if setup.suite is None:
        return
    for section in setup.suite.envs.values():
        with contextlib.suppress(UserError):  # the doctor names it among what is left
            registry.install([section])
    if setup.suite.sampler.engine == "vllm":
        yield from _sampling()


def _sampling() -> Iterator[str]:
    """The environment of the stages that sample, from the lock of the image in whose place it is."""
    folder, lock = images.environment("sample"), images.packages_lock("sample")
    made = folder / ".installed"
    if made.exists() and made.stat().st_mtime >= lock.stat().st_mtime:
        return
    for words in ([sys.executable, "-m", "venv", str(folder)], [str(INSTALL), str(folder), str(lock)]):
        if subprocess.run(words, env=os.environ | _wheels(), check=False).returncode:
            return  # its reason is printed; the doctor names vLLM among what is left
    made.touch()
    yield f"{folder.name}, the environment of the stages that sample, from {lock}"


def _wheels() -> dict[str, str]:
    """Pip's variables for the wheels of the mirror folder, if it has any."""
    wheels = Path(os.environ.get("COEVOLVE_MIRROR", ""), "wheels")
    return {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheels)} if wheels.is_dir() else {}


def _fetched(setup: RunSetup, suite: str) -> Iterator[str]:
    """Fetch the suite's files and models that are missing, from the mirror folder or the network."""
    if setup.suite is None:
        return
    files = [file for file in required_files.required_files(setup.suite) if file.fetched]
    missing = [file.path for file in files if not Path(file.path).exists()]
    if not missing:
        return
    words = [sys.executable, "-m", "snakemake", *FETCH, f"suite={suite}"]
    subprocess.run(words, check=False)  # a failure's sentence is printed; the doctor names what is missing still
    if fetched := [path for path in missing if Path(path).exists()]:
        yield f"{len(fetched)} of {len(missing)} files and models in data/mirror"


COMMANDS = {"cluster": set_up}
