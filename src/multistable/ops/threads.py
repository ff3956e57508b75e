"""Share work among threads.

The threads are a pool of this module's own. numba's parallel loops would load a second OpenMP library, which kills a
forked DataLoader worker.
"""

import os
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from functools import cache
from typing import TypeVar

__all__ = ["for_each"]

Item = TypeVar("Item")


def for_each(items: Sequence[Item], work: Callable[[Item], None], threads: int) -> None:
    """Call ``work(item)`` for every item, in up to ``threads`` threads, the calling one included.

    Each thread takes the next item when it has finished one. Returns when every item is done. If a call raises, or the
    calling thread is interrupted, waits for the calls that other threads have begun, then raises.
    """
    left = deque(items)

    def run() -> None:
        while left:
            try:
                item = left.popleft()
            except IndexError:  # another thread took the last one
                return
            work(item)

    others: list[Future[None]] = []
    try:
        with suppress(RuntimeError):  # no new thread: out of resources, or the interpreter is shutting down
            for _ in range(min(threads, len(items)) - 1):
                others.append(_pool().submit(run))
        run()
    except BaseException:
        left.clear()
        raise
    finally:
        begun = [other for other in others if not other.cancel()]
        wait(begun)
    for other in begun:
        other.result()


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(os.cpu_count(), thread_name_prefix="multistable")


if hasattr(os, "register_at_fork"):  # a forked child has the pool but none of its threads
    os.register_at_fork(after_in_child=_pool.cache_clear)
