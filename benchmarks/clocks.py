"""Wall time and CPU time in one array: on a busy machine the ratio of CPU times is the steadier one."""

from __future__ import annotations

import time

import numpy as np
from numpy.typing import NDArray

#: Seconds of wall time, and of the CPU time of this process with all its threads.
Seconds = NDArray[np.float64]


def now() -> Seconds:
    """Both clocks."""
    return np.array([time.perf_counter(), time.process_time()])
