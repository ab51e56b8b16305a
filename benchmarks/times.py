"""Runs a make target and records its wall and CPU minutes in results/reference/times.json, which the README prints.

    python benchmarks/times.py smoke

Run it on a clean clone with nothing beside it: the CPU time is that of all processes, because jobs of a fork server are
no children of the command.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

from coevolve.pipeline.devices import processor
from coevolve.storage import files, origin

TIMES = Path(__file__).parents[1] / "results/reference/times.json"


def busy_seconds() -> float:
    """CPU seconds (user and system) of all processes since the computer was started."""
    user, nice, system = map(int, Path("/proc/stat").read_text().split()[1:4])
    return (user + nice + system) / os.sysconf("SC_CLK_TCK")


def main(target: str) -> None:
    commit, dirty = origin.repository()
    started, busy = time.monotonic(), busy_seconds()
    subprocess.run(["make", target], check=True)
    measured = {
        "wall_minutes": round((time.monotonic() - started) / 60, 1),
        "cpu_minutes": round((busy_seconds() - busy) / 60, 1),
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
