"""The site: what Slurm's commands print becomes a machine file. Formats: Slurm 22.05's."""

import hashlib

import pytest
import yaml
from checkout import Copy, copy_of

from coevolve.assets import images
from coevolve.config.loading import SITE
from coevolve.errors import UserError
from coevolve.pipeline.machine import load_machine, snakemake_resources
from coevolve.watch import site, slurm

#: partition, state, gres, CPUs, MB, time limit, number of nodes: of kinds of nodes as users report them.
SINFO = """\
debug*|up|(null)|64|256000|30:00|2
gpu|up|gpu:a100-sxm4:4(S:0-1)|64|512000|1-00:00:00|10
gpu|up|gpu:h100:8(S:0-1),shard:80|128|2000000+|1-00:00:00|2
gpu|up|gpu:h100:4(S:0)|96+|1000000|1-00:00:00|1
mig|up|gpu:1g.10gb:7,gpu:a100:2|64|512000|2:00:00|1
plain|up|gpu:8|32|1|infinite|3
closed|drain|gpu:h100:8|32|200000|infinite|99
"""


@pytest.fixture
def known(root, monkeypatch, tmp_path):
    """The Slurm of these texts, and a checkout without a site."""
    for name in ("configs", "requirements.lock"):
        (tmp_path / name).symlink_to(root / name)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sinfo.txt").write_text(SINFO)
    (tmp_path / "sinfo").write_text(f"#!/bin/sh\ncat {tmp_path}/sinfo.txt\n")
    for name in slurm.PROGRAMS:
        (tmp_path / name).touch()
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return slurm.partitions()


def made(known, **given):
    """The machine of the site for these variables, as the plan reads it."""
    site.write(site.describe(known, given, containers=False))
    return load_machine(SITE)


def test_a_site_is_the_partition_with_the_most_gpus_of_the_wanted_type(known):
    """`closed` is not up, and the default partition has no GPU."""
    machine = made(known)
    assert (machine.partition, machine.gpu, machine.gpus_per_node, machine.account) == ("gpu", "h100", 4, None)
    assert (machine.most.memory_gb, machine.most.minutes) == (1000, 24 * 60)
    ppo, default = machine.stages["ppo"], machine.stages["default"]
    assert (ppo.gpus, ppo.processes, ppo.cpus, ppo.memory_gb) == (4, 4, 64, 800), "eight GPUs on nodes of four"
    assert default == load_machine("h100").stages["default"]


@pytest.mark.parametrize(
    ("given", "gpu", "gpus", "minutes"),
    [
        ({"partition": "plain"}, None, 8, 1440),
        ({"partition": "mig", "gpu": "a100"}, "a100", 2, 120),
        ({"partition": "gpu", "gpu": "a100-sxm4"}, None, 4, 1440),  # the executor refuses the name
        ({"partition": "debug", "machine": "cpu"}, None, 0, 30),
        ({"partition": "plain,mig", "gpu": "a100"}, "a100", 2, 120),
    ],
)
def test_types_limits_and_partitions_as_given(known, given, gpu, gpus, minutes):
    machine = made(known, **given)
    assert (machine.gpu, machine.gpus_per_node, machine.most.minutes) == (gpu, gpus, minutes)
    assert max(job.minutes for job in machine.stages.values()) <= minutes


def test_a_cluster_that_does_not_count_memory_gives_no_limit(known):
    assert made(known, partition="plain").most.memory_gb == load_machine("h100").most.memory_gb


def test_jobs_without_a_gpu_have_a_partition_of_their_own(known):
    machine = made(known, cpu_partition="debug")
    resources = {stage: snakemake_resources(machine, stage)["slurm_partition"] for stage in ("data", "train")}
    assert resources == {"data": "debug", "train": "gpu"}


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"partition": "gpuu"}, "Slurm has none of this name.*; give another of: closed, debug, gpu"),
        ({"machine": "h200"}, "machine `h200`"),
    ],
)
def test_what_cannot_be_is_a_sentence(known, given, sentence):
    with pytest.raises(UserError, match=sentence):
        site.describe(known, given, containers=False)


def test_a_slurm_that_does_not_answer_is_a_sentence(known, tmp_path, monkeypatch):
    text = "#!/bin/sh\necho 'slurm_load_partitions: Unable to contact slurm controller' >&2; exit 1\n"
    (tmp_path / "sinfo").write_text(text)
    with pytest.raises(UserError, match=r"sinfo failed .*Unable to contact slurm controller"):
        slurm.partitions()
    monkeypatch.setattr(slurm, "TIMEOUT_SECONDS", 0.5)
    (tmp_path / "sinfo").write_text("#!/bin/sh\nexec sleep 30\n")
    with pytest.raises(UserError, match="timed out"):
        slurm.partitions()


def test_a_second_call_keeps_what_was_given_and_what_was_measured(known):
    made(known, account="astro", machine="h100_13b")
    with SITE.open("a") as file:  # as a user writes what `make gpu` printed
        file.write("costs: {flops: 3.1e+14}\n")
    before = SITE.read_text()
    again = site.describe(known, site.given_before(), containers=False)
    assert not site.write(again) and SITE.read_text() == before
    machine = load_machine(SITE)
    assert machine.account == "astro" and machine.costs.flops == 3.1e14
    assert site.write(site.describe(known, given := site.given_before() | {"account": "physics"}, containers=False))
    assert load_machine(SITE).costs == machine.costs, "the GPUs are the same"
    assert site.write(site.describe(known, given | {"machine": "h100"}, containers=False))
    assert load_machine(SITE).costs == load_machine("h100").costs


def test_a_second_call_keeps_what_a_person_wrote(known):
    """The pages ask for it; of `stages` what the same nodes can give."""
    made(known)
    raw = yaml.safe_load(SITE.read_text())
    raw["stages"].setdefault("train", {})["minutes"] = 30
    raw |= {"shards": {"rollout": 2, "evaluate": 1}, "prune_weights": False}
    SITE.write_text(yaml.safe_dump(raw))
    assert not site.write(site.describe(known, site.given_before(), containers=False))
    assert site.write(site.describe(known, site.given_before() | {"account": "astro"}, containers=False))
    again = load_machine(SITE)
    assert (again.shards.rollout, again.prune_weights, again.stages["train"].minutes) == (2, False, 30)
    assert site.write(site.describe(known, site.given_before() | {"machine": "h100_13b"}, containers=False))
    assert load_machine(SITE).shards.rollout == 2


def test_a_site_that_is_not_there_is_a_sentence(known):
    with pytest.raises(UserError, match=r"site\.yaml: no such file; run `make cluster`"):
        load_machine(SITE)


def test_the_command_takes_all_from_a_mirror_folder_and_links_to_scratch(known, root, tmp_path):
    """The engine is on PATH and the mirror has images, so jobs will run in them."""
    kit = Copy(copy_of(root, tmp_path / "kit"))
    mirror, gold = tmp_path / "mirror", (root / "data/sciworld/gold.jsonl").read_bytes()
    (mirror / "images").mkdir(parents=True)
    (mirror / "gold.jsonl").write_bytes(gold)
    for name in ("envs", "train", "sample"):
        (mirror / "images" / f"{name}.sif").write_text(name)
        image = images.add(name, mirror / "images" / f"{name}.sif", "c" * 40, "base", mirror / "images/images.lock")
        text = (mirror / "images/images.lock").read_text()
        (mirror / "images/images.lock").write_text(text.replace(str(image.file), f"{images.FOLDER}/{image.file.name}"))
    pinned = {"sha256": hashlib.sha256(gold).hexdigest()}
    source = pinned | {"file": "gold.jsonl", "url": "https://nowhere.invalid", "licence": "none"}
    experts = {"path": "data/mirror/gold/gold.jsonl"} | pinned
    extends = {"extends": ["nano.yaml", "envs/sciworld-small.yaml"], "without": ["webshop"]}
    suite = extends | {"suite": "mine", "sources": {"gold": source}}
    kit.write("configs/nano.yaml", (root / "tests/dag/nano.yaml").read_text())
    kit.write("configs/mine.yaml", yaml.safe_dump(suite | {"envs": {"sciworld": {"experts": experts}}}))
    (tmp_path / "apptainer").write_text("#!/bin/sh\n")
    (tmp_path / "apptainer").chmod(0o755)
    words = ["--suite", "mine", "--partition", "gpu", "--mirror", str(mirror), "--scratch", str(tmp_path / "scratch")]
    done = kit.ask("python", "-m", "coevolve", "cluster", *words)
    assert "1 of 1 files and models in data/mirror" in done.stdout, done.stdout + done.stderr
    assert (kit.folder / "data/mirror/gold/gold.jsonl").read_bytes() == gold
    assert yaml.safe_load((kit.folder / "site.yaml").read_text())["containers"] is True
    links = [(kit.folder / name).resolve() for name in ("data/mirror", "results/mine")]
    assert links == [tmp_path / "scratch/coevolve/mirror", tmp_path / "scratch/coevolve/mine"]
    assert "Nothing was left to set up." in kit.ask("python", "-m", "coevolve", "cluster", "--suite", "mine").stdout
