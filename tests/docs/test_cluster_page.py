"""The page about clusters: its variables are enough for jobs where no home folder can exist."""

import re
import subprocess

from checkout import environment


def test_jobs_run_without_a_home_folder(read, kit):
    (variables,) = re.findall(r"```sh\n(export .*\n)```", read("cluster").text)
    jobs = "results/smoke/data/sciworld/explore.jsonl results/smoke/prepared/webshop/meta.json"
    commands = f"python -m snakemake --profile smoke -- {jobs} && python -c 'import matplotlib.pyplot'"
    unset = ("XDG_CACHE_HOME", "MPLCONFIGDIR", "COEVOLVE_CACHE")
    homeless = {key: value for key, value in environment(kit.folder).items() if key not in unset}
    done = subprocess.run(
        ["sh", "-ec", variables + commands], cwd=kit.folder, env=homeless | {"HOME": "/proc/nowhere"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "/proc/nowhere" not in done.stderr
    assert (kit.folder / "results/smoke/prepared/webshop/meta.json").exists()
