"""How time and memory are measured.

Time: the competitors take turns, so that a machine that slows down hits all of them, and the median of each is
reported. Outputs are made anew by every call (and freed outside the clock), as in real use: on a CPU writing to fresh
memory costs several times the arithmetic. What a layer keeps from call to call it keeps here, too. Memory: the growth
of the resident set of a process of its own.
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

__all__ = ["KEEP_MEMORY", "peak_bytes_of", "peak_rss", "printed_by", "take_turns"]

KEEP_MEMORY = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(1 << 40)}
"""Environment in which glibc keeps the memory that a program frees, as the allocators do that PyTorch's tuning guide
recommends for CPUs (jemalloc, tcmalloc). By itself glibc hands every large piece back to the system at once."""


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

    On Linux from /proc: ``ru_maxrss`` of a child starts at that of the parent which spawned it.
    """
    status = Path("/proc/self/status")
    if status.exists():
        [line] = [line for line in status.read_text().splitlines() if line.startswith("VmHWM")]
        return 1024 * int(line.split()[1])
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def peak_bytes_of(module: str, *args: object) -> int:
    """The number of bytes that ``python -m module args`` prints.

    It runs twice, and the smaller number counts: the first may include numba's compiler (41 MB instead of 34 in the
    test).
    """
    return min(int(printed_by(module, *args)) for _ in range(2))


def printed_by(module: str, *args: object, **environment: str) -> Any:
    """Run ``python -m module args`` in a process of its own; the last line it prints is JSON."""
    command = [sys.executable, "-m", module, *map(str, args)]
    here = os.pathsep.join(filter(None, sys.path))
    environment = os.environ | environment | {"PYTHONPATH": here}  # the same code, installed or not
    run = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=environment)
    return json.loads(run.stdout.splitlines()[-1])
