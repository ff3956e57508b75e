"""How time and memory are measured.

Time: the competitors take turns, so that a machine that slows down hits all of them, and the median of each is
reported. Outputs are made anew by every call (and freed outside the clock), as in real use: on a CPU writing to fresh
memory costs several times the arithmetic. Memory: the growth of the resident set of a process of its own.
"""

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

__all__ = ["peak_bytes_of", "peak_rss", "take_turns"]


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
    """Run ``python -m module args`` in a process of its own; the last line it prints is a number of bytes.

    Twice, and the smaller number counts: the first may hold numba's compiler too (41 MB instead of 34 in the test).
    """
    command = [sys.executable, "-m", module, *map(str, args)]
    here = os.pathsep.join(filter(None, [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH")]))
    environment = os.environ | {"PYTHONPATH": here}  # the same code, installed or not
    runs = [subprocess.run(command, capture_output=True, text=True, check=True, env=environment) for _ in range(2)]
    return min(int(json.loads(run.stdout.splitlines()[-1])) for run in runs)
