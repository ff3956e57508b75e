"""Compute runs that are missing, several at a time, until all are stored or the time is over."""

import multiprocessing
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from multistable_experiments.rl.checkpoint import Checkpoint, OutOfTimeError
from multistable_experiments.rl.results import Run, store, stored
from multistable_experiments.training.processes import LostProcessError, end_with_parent

__all__ = ["Driver"]

Measure = Callable[[Any, Checkpoint], dict[str, Any]]


@dataclass(frozen=True)
class Driver:
    """Where results and checkpoints are, what is written about the machine, and when to stop, by ``time.time()``."""

    results: Path
    checkpoints: Path
    about: dict[str, Any]
    processes: int = 1
    deadline: float | None = None

    def compute(self, plan: Callable[[], Sequence[Run]], measure: Measure) -> Iterator[tuple[Run, dict[str, Any]]]:
        """The results of all runs of a plan, those that exist first, then the others as they are finished.

        The plan is asked again whenever a run has ended: it may grow with the results. No result is overwritten. At
        the deadline, runs are written as checkpoints, from which the next call goes on.
        """
        found: dict[Run, dict[str, Any]] = {}
        for run in plan():
            if (result := stored(run, self.results)) is not None:
                found[run] = result
                yield run, result
        try:
            for run, result in (self.one_by_one if self.processes == 1 else self.side_by_side)(plan, measure, found):
                if result is not None:
                    found[run] = result
                    yield run, result
        except BrokenProcessPool as error:
            raise LostProcessError("a process died that computed a run; the same command goes on with it") from error

    def one_by_one(self, plan: Any, measure: Measure, found: dict[Run, Any]) -> Iterator[tuple[Run, Any]]:
        while (run := next((run for run in plan() if run not in found), None)) and not self.is_over():
            yield run, self.work(run, measure)

    def side_by_side(self, plan: Any, measure: Measure, found: dict[Run, Any]) -> Iterator[tuple[Run, Any]]:
        """Run in spawned processes: forked ones would share threads and random numbers with this one."""
        running: dict[Future[Any], Run] = {}
        spawn = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(self.processes, spawn, initializer=end_with_parent) as pool:
            while True:
                for run in plan():
                    if len(running) < self.processes and not self.is_over() and run not in {*found, *running.values()}:
                        running[pool.submit(self.work, run, measure)] = run
                if not running:
                    return
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    yield running.pop(future), future.result()

    def is_over(self) -> bool:
        return self.deadline is not None and time.time() > self.deadline

    def work(self, run: Run, measure: Measure) -> dict[str, Any] | None:
        """The result of a run; None if the deadline came before."""
        if (result := stored(run, self.results)) is not None:  # another command was faster
            return result
        checkpoint = Checkpoint(self.checkpoints / f"{run.name}.pickle", self.deadline)
        try:
            measured = measure(run, checkpoint)
        except OutOfTimeError:
            return None
        about = self.about | {"earlier_commits": checkpoint.commits[:-1]}
        result = store(run, measured, self.results, about)
        checkpoint.remove()
        return result
