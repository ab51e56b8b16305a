"""Runs pytest in forks of one process, which has imported the packages that take seconds to import.

Reads lines of JSON, `[folder, [argument of pytest, ...]]`, and writes the exit status of each run as a line, 1 if it
takes more than `CPU_SECONDS`. A test that waits too long is ended by pytest's own limit.
"""

import contextlib
import importlib
import json
import os
import resource
import signal
import sys
from collections.abc import Sequence

import pytest

PRELOADED = (
    "torch", "transformers.trainer", "transformers.models.llama.modeling_llama", "peft", "datasets", "scipy.stats",
    "trl.trainer.grpo_trainer", "trl.trainer.sft_trainer", "matplotlib.figure", "hypothesis.strategies", "pymysql",
)  # fmt: skip
#: Of one run.
CPU_SECONDS = 900


def run(folder: str, tests: Sequence[str]) -> int:
    """Exit status of pytest on the tests of a copy of the tree, which import the copy."""
    if (child := os.fork()) == 0:
        os.setsid()
        resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS))
        os.chdir(folder)
        sys.path[0] = folder
        os.environ |= {"PYTHONPATH": folder, "PYTHONDONTWRITEBYTECODE": "1", "GIT_OPTIONAL_LOCKS": "0"}
        sys.dont_write_bytecode = True
        nothing = os.open(os.devnull, os.O_RDWR)
        for stream in range(3):
            os.dup2(nothing, stream)
        os._exit(pytest.main(["-q", "-x", "-p", "no:cacheprovider", "-W", "ignore", *tests]))
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)  # what a broken test left behind
    return status if status >= 0 else 1


def main() -> None:
    """Answer until the input ends."""
    os.environ["OMP_NUM_THREADS"] = "1"
    for name in PRELOADED:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    for line in sys.stdin:
        print(run(*json.loads(line)), flush=True)


if __name__ == "__main__":
    main()
