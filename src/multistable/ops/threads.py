"""Share work among threads.

The threads are a team of this module's own. numba's parallel loops would load a second OpenMP library, which kills a
forked DataLoader worker. They are daemons: an interrupt while a ``ThreadPoolExecutor`` starts a thread leaves one that
it does not know, and the process hangs at its end.
"""

import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache, partial
from queue import SimpleQueue
from typing import TypeVar

__all__ = ["for_each"]

Item = TypeVar("Item")
Task = tuple[Future[None], Callable[[], None]]


def for_each(items: Sequence[Item], work: Callable[[Item], None], threads: int) -> None:
    """Call ``work(item)`` for every item, in up to ``threads`` threads, the calling one included.

    Each thread takes the next item when it has finished one. Returns when every item is done. If a call raises, or the
    calling thread is interrupted, waits for the calls that other threads have begun, then raises.
    """
    left = deque(partial(work, item) for item in items)  # empty at the end: a cancelled task in the queue holds nothing

    def run() -> None:
        while left:
            try:
                call = left.popleft()
            except IndexError:  # another thread took the last one
                return
            call()

    others: list[Future[None]] = []
    try:
        with suppress(RuntimeError):  # no new thread: out of resources, or the interpreter is shutting down
            for number in range(min(threads, len(items)) - 1):
                tasks = _tasks_of(number + 1)
                others.append(Future())
                tasks.put((others[-1], run))
        run()
    except BaseException:
        left.clear()
        raise
    finally:
        begun = [other for other in others if not other.cancel()]
        wait(begun)
    for other in begun:
        other.result()


@dataclass
class _Team:
    """Threads that take their tasks from one queue."""

    tasks: SimpleQueue[Task] = field(default_factory=SimpleQueue[Task])
    size: int = 0


def _tasks_of(size: int) -> SimpleQueue[Task]:
    """The queue of a team of at least ``size`` threads, at most one per core."""
    team = _team()
    if team.size < min(size, os.cpu_count() or 1):
        threading.Thread(target=_work, args=(team.tasks,), name="multistable", daemon=True).start()
        team.size += 1
    return team.tasks


def _work(tasks: SimpleQueue[Task]) -> None:
    while True:
        future, run = tasks.get()
        if not future.set_running_or_notify_cancel():
            continue
        error = None
        try:
            run()
        except BaseException as raised:
            error = raised
        # First let go of the tensors, then say so: the process may end at once, and a thread that frees a tensor while
        # the interpreter ends aborts it (2 of 60 processes that ended right after a scan).
        del run
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)
        del future, error


@cache
def _team() -> _Team:
    return _Team()


if hasattr(os, "register_at_fork"):  # a forked child has the team but none of its threads
    os.register_at_fork(after_in_child=_team.cache_clear)
