"""A process that trains keeps the memory that its tensors free."""

from __future__ import annotations

import subprocess
import sys

#: Prints the page faults of making and freeing 64 MB fifty times, after the memory was first touched.
FAULTS = """
import resource, torch
from coevolve.workflow import training

{call}
torch.ones(2**24)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(50):
    torch.ones(2**24)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def test_freed_memory_is_used_again() -> None:
    assert page_faults("training.keep_freed_memory()") < page_faults("") / 10


def page_faults(call: str) -> int:
    program = [sys.executable, "-c", FAULTS.format(call=call)]
    return int(subprocess.run(program, check=True, capture_output=True, text=True).stdout)
