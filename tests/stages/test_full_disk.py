"""A disk that is full while a training saves: one sentence, no result, and the next run goes on."""

import os
import resource
import shutil
import subprocess
import sys

import pytest
from command_line import stage_command


@pytest.mark.parametrize(
    ("bytes_", "cause"),
    [(60_000, "File too large"), (150_000, "PyTorch could not write it whole")],
    ids=["weights", "the optimiser's state"],
)
def test_a_training_on_a_full_disk(made, tmp_path, bytes_, cause):
    """A limit of file sizes stands for the disk: safetensors and PyTorch meet it in their own code."""
    here = shutil.copytree(made, tmp_path / "run", symlinks=True)
    job = ("sft", {"model": "tiny", "env": "webshop", "agent": "target", "branch": "base/seed0"})
    words = stage_command(job, "configs/glance.yaml", "full/policy", options=("--set", "sft.save_steps=2"))

    def run(**options):
        command = [sys.executable, "-m", "coevolve", *words]
        variables = os.environ | {"PYTHONDONTWRITEBYTECODE": "1"}  # or half a file of bytecode would stay
        return subprocess.run(command, cwd=here, env=variables, capture_output=True, text=True, check=False, **options)

    limit = (bytes_, resource.RLIM_INFINITY)
    done = run(preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, limit))
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert f"coevolve: full/policy: cannot be written ({cause}); " in done.stderr.splitlines()[-1]
    assert [path.name for path in (here / "full").iterdir()] == [".work-policy"]
    assert run().returncode == 0
    made_before = here / "results/glance/tiny/webshop/base/seed0/policy/target/model.safetensors"
    assert (here / "full/policy/model.safetensors").read_bytes() == made_before.read_bytes()
