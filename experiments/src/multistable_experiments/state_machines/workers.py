"""Compute what is missing by several single-threaded processes, within a time budget."""

import multiprocessing
import queue
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from multistable.ops.checks import check_choice
from multistable_experiments.files import check_writable
from multistable_experiments.machine import describe
from multistable_experiments.state_machines.plan import STUDIES, contests, trainings
from multistable_experiments.state_machines.store import Item, compute, record_long, stored
from multistable_experiments.training.processes import LostProcessError, check_device, end_with_parent

__all__ = ["compute_long", "compute_missing", "planned"]

Ended = Callable[[float], tuple[str, str | None] | None]
"""Name and error of the next item that ends within so many seconds."""


def planned(folder: Path, studies: Sequence[str], seeds: int = 5) -> list[Item]:
    """List what the studies can compute now; runs of the comparison appear when their search is stored."""
    items: list[Item] = []
    for study in studies:
        check_choice("study", study, (*STUDIES, "rivals"))
        items.extend(contests(folder, seeds) if study == "rivals" else trainings(study, seeds))
    return items


def compute_missing(
    folder: Path,
    studies: Sequence[str],
    processes: int,
    seconds: float,
    seeds: int = 5,
    say: Callable[[str], object] = print,
) -> tuple[int, list[str]]:
    """Compute and store what is missing of the studies, in their order; return how many results are new, and the names
    of runs that ended with an error.

    A run that is not finished in time is stopped and computed again next time; results are written whole or not at all.
    Raises, before any work, if the folder holds the result of other settings under the name of a run.
    """
    deadline, done = time.monotonic() + seconds, 0
    failed: list[str] = []
    begun = {item.name for item in planned(folder, studies, seeds) if stored(item, folder) is not None}
    check_writable("--out", folder / "first.json")
    with _started(processes, folder, describe() | {"threads": 1}) as (tasks, next_ended):
        running = 0
        while (left := deadline - time.monotonic()) > 0:
            for item in planned(folder, studies, seeds):
                if running < processes and item.name not in begun:
                    begun.add(item.name)
                    if stored(item, folder) is None:
                        tasks.put(item)
                        running += 1
            if running == 0:
                break
            if (ended := next_ended(min(5.0, left))) is not None:
                name, error = ended
                running, done = running - 1, done + (error is None)
                failed += [] if error is None else [name]
                say(f"{name}: {error or 'stored'}, {max(0, deadline - time.monotonic()):.0f} s left")
    return done, failed


@contextmanager
def _started(processes: int, folder: Path, about: dict[str, Any]) -> Iterator[tuple[Any, Ended]]:
    """Processes that compute items: a queue for these, and a function that waits for the next one to end."""
    context = multiprocessing.get_context("spawn")
    tasks, ended = context.Queue(), context.Queue()
    workers = [context.Process(target=_work, args=(tasks, ended, folder, about), daemon=True) for _ in range(processes)]
    for worker in workers:
        worker.start()

    def next_ended(timeout: float) -> tuple[str, str | None] | None:
        try:
            return ended.get(timeout=timeout)
        except queue.Empty:
            codes = [worker.exitcode for worker in workers if not worker.is_alive()]
            if codes:  # nobody would report the item it had
                raise LostProcessError(f"a worker process died with exit code {codes[0]}") from None
            return None

    try:
        yield tasks, next_ended
    finally:
        for worker in workers:
            worker.terminate()
            worker.join()


def compute_long(
    folder: Path,
    studies: Sequence[str],
    seconds: float,
    device: str = "cuda",
    seeds: int = 5,
    say: Callable[[str], object] = print,
) -> int:
    """Test the stored machines of these studies on 1,000 sequences of 1,000,000 steps each, one after the other, until
    the time is over; return how many results are new."""
    for study in studies:
        check_choice("study", study, tuple(STUDIES))  # not rivals, whose weights are not stored
    check_device(device)
    deadline, about, done = time.monotonic() + seconds, describe(), 0
    for item in (item for study in studies for item in trainings(study, seeds)):
        if time.monotonic() >= deadline:
            break
        if stored(item, folder) is None:
            continue
        is_new = not (folder / f"long-{item.name}.json").exists()
        result = record_long(item.name, folder, device, about)  # raises if there is one of other weights
        if is_new:
            done += 1
            say(f"{item.name}: fails at {result['test']['failing_length']}, {deadline - time.monotonic():.0f} s left")
    return done


def _work(tasks: Any, ended: Any, folder: Path, about: dict[str, Any]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C is for the first process, which ends the others
    end_with_parent()
    torch.set_num_threads(1)
    while True:
        item: Item = tasks.get()
        try:
            compute(item, folder, about)
            error = None
        except Exception as failure:  # one bad run must not end the others
            error = repr(failure)
        ended.put((item.name, error))
