"""Runs a make target and records its wall and CPU minutes in results/reference/times.json, which the README prints.

    python benchmarks/times.py smoke

Run it on a clean clone with nothing beside it. `resource` counts the children that were waited for: all jobs.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path

from coevolve.storage import files, origin

TIMES = Path(__file__).parents[1] / "results/reference/times.json"


def processor() -> str:
    """The processor's name, as Linux has it."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))


def main(target: str) -> None:
    commit, dirty = origin.repository()
    started = time.monotonic()
    subprocess.run(["make", target], check=True)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    measured = {
        "wall_minutes": round((time.monotonic() - started) / 60, 1),
        "cpu_minutes": round((used.ru_utime + used.ru_stime) / 60, 1),
        "cores": os.cpu_count(),
        "processor": processor(),
        "measured": time.strftime("%Y-%m-%d"),
        "commit": commit,
        "dirty": dirty,
    }
    times = json.loads(TIMES.read_text()) if TIMES.exists() else {}
    files.write_json(TIMES, times | {target: measured})
    print(f"make {target}: {measured}")


if __name__ == "__main__":
    main(sys.argv[1])
