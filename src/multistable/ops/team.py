"""Call a function on several threads at once: torch's own where they can be reached, else those of a pool.

torch's matrix products run on the threads of its OpenMP library, which go on spinning for some milliseconds when a
product is done. A layer projects and scans in turns, so threads of our own would have to share the cores with them
(docs/log.md has the times). Where torch brought along GNU's library, as its Linux builds do, the function is therefore
called in a parallel region of that library: by those very threads.
"""

import ctypes
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from functools import cache
from pathlib import Path
from typing import Any

__all__ = ["call_together"]

_Region = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_pool: ThreadPoolExecutor | None = None
_forked = False


def call_together(function: Callable[[], None], threads: int) -> None:
    """Call ``function`` in up to ``threads`` threads, this one among them, and wait for all; raise what one raised."""
    if threads == 1:
        function()
    elif _openmp() is None or _forked:
        _call_in_pool(function, threads)
    else:
        _call_in_region(function, threads)


def _call_in_region(function: Callable[[], None], threads: int) -> None:
    errors: list[BaseException] = []

    def body(_: int | None) -> None:  # ctypes would print an exception and go on
        try:
            function()
        except BaseException as error:
            errors.append(error)

    openmp = _openmp()
    assert openmp is not None
    openmp.GOMP_parallel(_Region(body), None, threads, 0)
    if errors:
        raise errors[0]


def _call_in_pool(function: Callable[[], None], threads: int) -> None:
    global _pool
    if _pool is None:
        _pool = ThreadPoolExecutor(os.cpu_count(), thread_name_prefix="multistable")
    others = [_pool.submit(function) for _ in range(threads - 1)]
    try:
        function()
    finally:  # whatever happens here, none may go on in memory that the caller then lets go of
        begun = [other for other in others if not other.cancel()]  # one that has not begun has nothing left to do
        wait(begun)
    for other in begun:
        other.result()


@cache
def _openmp() -> Any:
    """The library of GNU's OpenMP that torch has loaded, or None."""
    try:
        path = _find(Path("/proc/self/maps").read_text())
    except OSError:
        return None
    if path is None:
        return None
    library = ctypes.CDLL(path)
    library.GOMP_parallel.argtypes = _Region, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint
    library.GOMP_parallel.restype = None
    return library


def _find(maps: str) -> str | None:
    """The library's path, the sixth field of its lines, which may have spaces."""
    return next((line.split(maxsplit=5)[5] for line in maps.splitlines() if "/torch/lib/libgomp" in line), None)


def _after_fork() -> None:
    """A forked child has the pool but none of its threads, and OpenMP does not survive a fork."""
    global _pool, _forked
    _pool, _forked = None, True


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
