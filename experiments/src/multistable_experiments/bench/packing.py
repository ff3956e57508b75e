"""Runs per hour when several runs share one GPU.

python -m multistable_experiments.bench.packing --packed 1 2 4 8

As many processes as the largest number train copy-first-input (T = 100, BMRU, the settings of ``reproduce``), each as
a task with a fraction of a GPU would. After their first epoch all but the first wait; then two train, then four.
Prints one line of JSON per number: the epochs per second of all processes together, and as runs of 100 epochs per hour
without their start. The starts are printed as an error message: the first process alone, then all others at once, which
find the kernels compiled.
"""

import argparse
import json
import multiprocessing
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from multistable_experiments.paper.experiments import copy_first
from multistable_experiments.training.loop import Options, train_run
from multistable_experiments.training.run import Run

__all__ = ["main", "measure"]

FOREVER = 1_000_000  # epochs


class EnoughError(Exception):
    """The measurement has ended."""


def train(place: int, run: Run, device: str, out: Path, active: Any, ended: Any) -> None:
    """Train while ``place < active``, and wait otherwise; report when each epoch ends. Stop at ``active = 0``."""

    def after_epoch(_: Any) -> None:
        ended.put((place, time.monotonic()))
        while place >= active.value > 0:
            time.sleep(0.005)
        if active.value == 0:
            raise EnoughError

    torch.set_num_threads(1)
    options = Options(device=device, compiled=False, show_progress=False, after_epoch=after_epoch)
    with suppress(EnoughError):
        train_run(replace(run, seed=place, epochs=FOREVER), out, options)


def measure(run: Run, packed: Sequence[int], seconds: float, device: str) -> Iterator[dict[str, Any]]:
    """For each number of processes: the sum of their epochs per second, and runs per hour."""
    context = multiprocessing.get_context("spawn")
    active, ended = context.Value("i", 1), context.Queue()
    with TemporaryDirectory() as out:
        args = [(place, run, device, Path(out), active, ended) for place in range(max(packed))]
        workers = [context.Process(target=train, name=str(each[0]), args=each, daemon=True) for each in args]
        try:
            for some in (workers[:1], workers[1:]):
                began = time.monotonic()
                for worker in some:
                    worker.start()
                await_epochs(some, ended)
                print(f"{len(some)} processes: first epoch after {time.monotonic() - began:.1f} s", file=sys.stderr)
            for count in packed:
                active.value = count
                time.sleep(seconds / 4)  # the others end their epoch
                rate = sum(rates(take(ended, seconds)))
                runs = 3600 * rate / run.epochs
                yield {"packed": count, "epochs_per_s": rate, "runs_per_hour": runs}
        finally:
            active.value = 0
            for worker in workers:
                if worker.pid is not None:
                    worker.join(10)
                    worker.kill()


def await_epochs(workers: list[Any], ended: Any) -> None:
    """Wait until every one of these workers, of those that run, has ended an epoch."""
    waiting = {worker.name for worker in workers}
    while waiting:
        if not all(worker.is_alive() for worker in workers):
            raise RuntimeError("a worker died before its first epoch ended")
        if not ended.empty():
            waiting.discard(str(ended.get()[0]))
        time.sleep(0.01)


def take(ended: Any, seconds: float) -> dict[int, list[float]]:
    """The moments at which epochs end from now on, by worker."""
    while not ended.empty():
        ended.get()
    time.sleep(seconds)
    moments: dict[int, list[float]] = {}
    while not ended.empty():
        place, moment = ended.get()
        moments.setdefault(place, []).append(moment)
    return moments


def rates(moments: dict[int, list[float]]) -> list[float]:
    """Epochs per second of each worker, from its first end of an epoch to its last.

    >>> rates({0: [1.0, 1.5, 2.0], 1: [1.0, 2.0]})
    [2.0, 1.0]
    """
    return [(len(ends) - 1) / (ends[-1] - ends[0]) for ends in moments.values() if len(ends) > 1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--packed", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--seconds", type=float, default=8.0, help="for each number (default: 8)")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    given = parser.parse_args()
    run = next(each.run for each in copy_first() if "bmru" in each.run.model.cells and each.run.task.length == 100)
    for row in measure(run, given.packed, given.seconds, given.device):
        print(json.dumps({"run": f"{run.task.name}-{run.id}", **row}), flush=True)


if __name__ == "__main__":
    main()
