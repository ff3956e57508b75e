"""Measure time and memory.

Time: the competitors take turns, so that a machine that slows down affects all of them, and the median of each is
reported. Every call allocates its outputs (they are freed outside the clock), as in real use: on a CPU, writing to
fresh memory costs several times the arithmetic. Memory that a layer keeps from call to call is kept here, too. Memory:
the growth of the resident set of a new process.
"""

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

__all__ = ["KEEP_MEMORY", "peak_rss", "run_module", "take_turns"]

KEEP_MEMORY = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(1 << 40)}
"""Environment in which glibc keeps freed memory, as do the allocators that PyTorch's tuning guide recommends for CPUs
(jemalloc, tcmalloc). By default glibc returns every large block to the system at once."""


def take_turns(competitors: Sequence[Callable[[], object]], repeats: int, warm_up: int = 1) -> list[float]:
    """Median milliseconds of each competitor over ``repeats`` rounds, after ``warm_up`` rounds that do not count."""
    times: list[list[float]] = [[] for _ in competitors]
    for i in range(warm_up + repeats):
        for compute, taken in zip(competitors, times, strict=True):
            start = time.perf_counter()
            result = compute()
            stop = time.perf_counter()
            del result
            if i >= warm_up:
                taken.append(1e3 * (stop - start))
    return [statistics.median(taken) for taken in times]


def peak_rss() -> int:
    """The largest resident set of this process so far, in bytes.

    On Linux it is read from /proc, because ``ru_maxrss`` of a child starts at that of its parent.
    """
    status = Path("/proc/self/status")
    if status.exists():
        [line] = [line for line in status.read_text().splitlines() if line.startswith("VmHWM")]
        return 1024 * int(line.split()[1])
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def run_module(module: str, *args: object, **environment: str) -> Any:
    """Run ``python -m module args`` as a new process and return the last line it prints, parsed as JSON."""
    command = [sys.executable, "-m", module, *map(str, args)]
    path = os.pathsep.join(filter(None, sys.path))  # the same code, installed or not
    run = subprocess.run(
        command, stdout=subprocess.PIPE, text=True, check=True, env=os.environ | environment | {"PYTHONPATH": path}
    )
    return json.loads(run.stdout.splitlines()[-1])
