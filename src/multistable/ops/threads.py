"""Share work among threads.

The threads are a team of this module's own. numba's parallel loops would load a second OpenMP library, which kills a
forked DataLoader worker. They are daemons: an interrupt while a ``ThreadPoolExecutor`` starts a thread leaves one that
it does not know, and the process hangs at its end. But a daemon that frees a tensor while the interpreter ends aborts
the process, so the team is waited for before that: without, 2 of 60 processes that ended right after a scan aborted,
and 1 of 40 after two interrupts, the second of which left a thread at work.
"""

import atexit
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
    """Threads that take their tasks from one queue. None tells a thread to end."""

    tasks: SimpleQueue[Task | None] = field(default_factory=SimpleQueue["Task | None"])
    threads: list[threading.Thread] = field(default_factory=list[threading.Thread])
    ended: bool = False


def _tasks_of(size: int) -> SimpleQueue[Task | None]:
    """The queue of a team of at least ``size`` threads, at most one per core."""
    team = _team()
    if team.ended:
        raise RuntimeError("the process is about to end")
    if len(team.threads) < min(size, os.cpu_count() or 1):
        thread = threading.Thread(target=_work, args=(team.tasks,), name="multistable", daemon=True)
        team.threads.append(thread)  # now: an interrupt in its start leaves a thread that works
        try:
            thread.start()
        except RuntimeError:
            team.threads.remove(thread)
            raise
    return team.tasks


def _work(tasks: SimpleQueue[Task | None]) -> None:
    while task := tasks.get():
        future, run = task
        del task
        if not future.set_running_or_notify_cancel():
            continue
        error = None
        try:
            run()
        except BaseException as raised:
            error = raised
        del run  # free the tensors before the call returns
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)
        del future, error


@cache
def _team() -> _Team:
    return _Team()


@atexit.register
def _end_team() -> None:
    """Let the threads finish what they have begun. Later calls of :func:`for_each` do all the work in their own."""
    team = _team()
    team.ended = True
    for _ in team.threads:
        team.tasks.put(None)
    for thread in team.threads:
        if thread.is_alive():
            thread.join()


if hasattr(os, "register_at_fork"):  # a forked child has the team but none of its threads
    os.register_at_fork(after_in_child=_team.cache_clear)
