"""Compute experiments as tasks of an engine, each on whatever machine the engine finds, and watch them."""

import json
import math
import os
import platform
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from rich.live import Live
from rich.table import Table

from multistable_experiments.engines import Engine, EngineError, Resources, run_all
from multistable_experiments.paper.compute import Summary, Sweep, title
from multistable_experiments.paper.experiments import Experiment
from multistable_experiments.paper.settings import Scale
from multistable_experiments.training.loop import Options, OutOfTimeError
from multistable_experiments.training.results import folder_of
from multistable_experiments.training.resume import METRICS

__all__ = ["compute_on"]

LOG = "log.txt"
"""In the folder of each run: which machine began it when, and what came of it."""
PATIENCE = 60.0
"""Seconds to wait for another process that holds the run: mostly an earlier attempt that has yet to notice that its
node or its engine is gone."""


def compute_on(
    engine: Engine, sweep: Sweep, missing: Sequence[Experiment], seconds: float, resources: Resources
) -> None:
    """Compute experiments as tasks of an engine, and report each when it ends."""
    summary, until = sweep.summary, time.time() + seconds
    options = replace(sweep.options, deadline=None, show_progress=False)
    folders = {"out": sweep.out.resolve(), "results": sweep.results.resolve()}
    items = [Task(each, sweep.scale, **folders, options=options, until=until) for each in missing]
    with watching(items) as watch:
        ended = 0
        for task, outcome in run_all(engine, compute_task, items, resources, folders["out"] / engine, watch):
            ended += 1
            sweep.fetch_results()
            sweep.say(f"{ended} of {len(items)}: {title(task.experiment)}")
            if isinstance(outcome, EngineError):
                summary.skipped[task.experiment.name] = str(outcome)
                sweep.say(f"  cannot be computed: {outcome}")
                continue
            lines, part = outcome
            for line in lines:
                sweep.say(line)
            summary.done += part.done
            summary.failed += part.failed
            summary.skipped |= part.skipped
            summary.out_of_time |= part.out_of_time


@dataclass(frozen=True)
class Task:
    """An experiment for a worker, with the folders that all machines see; with a mirror, each has its own."""

    experiment: Experiment
    scale: Scale
    out: Path
    results: Path
    options: Options
    until: float
    """When to stop, by ``time.time()``."""


def compute_task(task: Task) -> tuple[list[str], Summary]:
    """Compute one experiment in a worker: what there is to say, and the outcome."""
    lines: list[str] = []
    log = folder_of(task.experiment.run, task.out) / LOG
    log.parent.mkdir(parents=True, exist_ok=True)

    def say(line: str) -> None:
        lines.append(line)
        with log.open("a") as file:
            file.write(f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} {platform.node()} {os.getpid()}: {line.strip()}\n")

    left = task.until - time.time()
    options = replace(task.options, deadline=None if left == math.inf else time.perf_counter() + left)
    sweep = Sweep(task.scale, task.out, task.results, options, say, Summary(1))
    say("begins")
    lines.clear()
    if left <= 0:
        sweep.summary.out_of_time = True
        return ["  no time left to begin it"], sweep.summary
    sweep.fetch_results()
    try:
        sweep.attempt(task.experiment)
        patience = time.monotonic() + PATIENCE
        while sweep.others and time.monotonic() < patience:
            time.sleep(1)
            lines.clear()
            sweep.others.clear()
            sweep.attempt(task.experiment)
    except OutOfTimeError as stop:
        sweep.summary.out_of_time = True
        say(f"  {stop}")
    sweep.recheck_others()
    return lines, sweep.summary


@contextmanager
def watching(tasks: Sequence[Task]) -> Iterator[Callable[[], None]]:
    """Show the newest epoch of every run in one table, on a terminal; its files are in the shared folder."""
    if not sys.stdout.isatty():
        yield lambda: None
        return
    with Live(refresh_per_second=1) as live:
        yield lambda: live.update(progress_of(tasks))


def progress_of(tasks: Sequence[Task]) -> Table:
    """A table with a row for each run that has started."""
    table = Table("experiment", "epoch", "validation", "seconds")
    for task in tasks:
        run = task.experiment.run
        path = folder_of(run, task.out) / METRICS
        try:
            last = json.loads(path.read_text().splitlines()[-1])
        except (OSError, IndexError, ValueError):  # not begun, or a line that is being written
            continue
        score = f"{run.task.metric} {last[f'valid_{run.task.metric}']:.4g}"
        table.add_row(title(task.experiment), f"{last['epoch']} of {run.epochs}", score, f"{last['seconds']:.0f}")
    return table
