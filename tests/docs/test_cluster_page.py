"""The page about clusters: its variables are enough for jobs where no home folder can exist."""

import re
import subprocess
import sys

from checkout import copy_of, environment


def test_jobs_run_without_a_home_folder(root, tmp_path):
    page = (root / "docs/run/your_cluster.md").read_text()
    (variables,) = re.findall(r"```sh\n(export .*\n)```", page)
    repo = copy_of(root, tmp_path / "repo")
    python = f"'{sys.executable}'"
    jobs = "results/smoke/data/sciworld/explore.jsonl results/smoke/prepared/webshop/meta.json"
    commands = f"{python} -m snakemake --profile smoke -- {jobs} && {python} -c 'import matplotlib.pyplot'"
    homeless = environment(repo) | {"HOME": "/proc/nowhere"}
    for name in ("XDG_CACHE_HOME", "MPLCONFIGDIR", "COEVOLVE_CACHE"):
        homeless.pop(name, None)
    done = subprocess.run(
        ["sh", "-ec", variables + commands], cwd=repo, env=homeless, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "/proc/nowhere" not in done.stderr
    assert (repo / "results/smoke/prepared/webshop/meta.json").exists()
