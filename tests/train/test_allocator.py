"""A process that trains keeps the memory that its tensors free."""

from __future__ import annotations

import subprocess
import sys

import pytest

from coevolve.pipeline.stages.parts.training import M_MMAP_THRESHOLD

#: Prints the page faults of making and freeing 64 MB fifty times, after the memory was first touched.
FAULTS = """
import resource, torch
from coevolve.pipeline.stages.parts import training

{call}
torch.ones(2**24)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(50):
    torch.ones(2**24)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def test_freed_memory_is_used_again() -> None:
    asked = "import ctypes; print(ctypes.CDLL(None).mallopt({}, 2**30))"
    if subprocess.run([sys.executable, "-c", asked.format(M_MMAP_THRESHOLD)], capture_output=True).stdout != b"1\n":
        pytest.skip("this C library has no `mallopt` or refuses the threshold")
    assert page_faults("training.keep_freed_memory()") < page_faults("") / 10


def page_faults(call: str) -> int:
    program = [sys.executable, "-c", FAULTS.format(call=call)]
    return int(subprocess.run(program, check=True, capture_output=True, text=True).stdout)
