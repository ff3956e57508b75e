"""Share work among threads.

The threads are a team of this module's own. numba's parallel loops would load a second OpenMP library, which kills a
forked DataLoader worker. Everything that the caller shares with them is written in C: a lock, a queue. What
``threading`` and ``concurrent.futures`` add is written in Python, and an interrupt inside it can leave a lock locked
that a thread then waits for, and the process for the thread at its end: of six processes whose calls were interrupted
50 times a second for 20 s, two did not end. The threads are daemons, which nothing else waits for. But a daemon that
frees a tensor while the interpreter ends aborts the process, so the team is waited for before that: without, 2 of 60
processes that ended right after a scan aborted, and 1 of 40 after two interrupts, the second of which left a thread at
work.
"""

import atexit
import os
from _thread import start_new_thread
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache, partial
from queue import SimpleQueue
from threading import Lock
from typing import TypeVar

__all__ = ["for_each"]

Item = TypeVar("Item")


def for_each(items: Sequence[Item], work: Callable[[Item], None], threads: int) -> None:
    """Call ``work(item)`` for every item, in up to ``threads`` threads, the calling one included.

    Each thread takes the next item when it has finished one. Returns when every item is done. If a call raises, or the
    calling thread is interrupted, waits for the calls that other threads have begun, then raises.
    """
    left = deque(partial(work, item) for item in items)  # empty at the end: a task taken back holds nothing

    def run() -> None:
        while left:
            try:
                call = left.popleft()
            except IndexError:  # another thread took the last one
                return
            call()

    others: list[_Task] = []
    try:
        with suppress(RuntimeError):  # no new thread: out of resources, or the interpreter is shutting down
            for number in range(min(threads, len(items)) - 1):
                tasks = _tasks_of(number + 1)
                others.append(_Task(run))
                tasks.put(others[-1])
        run()
    except BaseException:
        left.clear()
        raise
    finally:
        begun = [other for other in others if not other.claim.acquire(blocking=False)]
        _wait(begun)
    for other in begun:
        if other.error is not None:
            raise other.error


def _locked() -> Lock:
    lock = Lock()
    lock.acquire()
    return lock


@dataclass
class _Task:
    """Work for a thread. Whoever acquires ``claim`` first has it: the thread, which runs it and then releases ``done``,
    or the caller, who takes it back."""

    run: Callable[[], None]
    claim: Lock = field(default_factory=Lock)
    done: Lock = field(default_factory=_locked)
    error: BaseException | None = None


def _wait(begun: Sequence[_Task]) -> None:
    for task in begun:
        task.done.acquire()


@dataclass
class _Team:
    """Threads that take their tasks from one queue, where None tells them to end. Each has a lock in ``working``, which
    it releases at its end."""

    tasks: SimpleQueue[_Task | None] = field(default_factory=SimpleQueue["_Task | None"])
    working: list[Lock] = field(default_factory=list[Lock])
    size: int = 0
    ended: bool = False


def _tasks_of(size: int) -> SimpleQueue[_Task | None]:
    """The queue of a team of at least ``size`` threads, at most one per core."""
    team = _team()
    if team.ended:
        raise RuntimeError("the process is about to end")
    if team.size < min(size, os.cpu_count() or 1):
        begun = _locked()
        start_new_thread(_work, (team, begun))
        team.size += 1  # an interrupt before this means a thread more, not one less
        begun.acquire()  # a thread that begins while the interpreter ends would not be waited for
    return team.tasks


def _work(team: _Team, begun: Lock) -> None:
    ended = _locked()
    team.working.append(ended)
    begun.release()
    while task := team.tasks.get():
        if task.claim.acquire(blocking=False):
            try:
                task.run()
            except BaseException as error:
                task.error = error
            del task.run  # free the tensors before the call returns
            task.done.release()
        del task
    team.tasks.put(None)  # for the next thread
    ended.release()


@cache
def _team() -> _Team:
    return _Team()


@atexit.register
def _end_team() -> None:
    """Let the threads finish what they have begun. Later calls of :func:`for_each` do all the work in their own."""
    team = _team()
    team.ended = True
    team.tasks.put(None)
    for ended in team.working:
        ended.acquire()


if hasattr(os, "register_at_fork"):  # a forked child has the team but none of its threads
    os.register_at_fork(after_in_child=_team.cache_clear)
