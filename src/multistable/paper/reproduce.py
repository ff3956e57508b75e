"""Compute the paper's experiments: the missing ones only, the most valuable first, within a time budget."""

import gc
import json
import math
import re
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from multistable.files import check_writable, write_atomically
from multistable.models import SequenceModel
from multistable.paper import store
from multistable.paper.experiments import Experiment, plan
from multistable.paper.overwrites import measure
from multistable.paper.store import Record
from multistable.tasks.idx import DataError
from multistable.training import NonFiniteLossError, Options, OutOfTimeError, train_run
from multistable.training.checkpoint import CheckpointError, damage_named
from multistable.training.loop import BEST, LAST
from multistable.training.presets import Scale
from multistable.training.processes import Processes
from multistable.training.results import folder_of

__all__ = ["SEEDS", "Summary", "parse_duration", "reproduce"]

SEEDS: dict[Scale, int] = {"paper": 5, "small": 1, "smoke": 1}
"""How many seeds are computed unless said otherwise; the paper's values are means over 5 runs."""
ENDING = 0.03
"""In this last share of the budget nothing is begun: to begin takes seconds (data, kernels, CUDA graph)."""
TESTS = "tests.json"


class MissingDataError(RuntimeError):
    """The data set of an experiment is not there, or not whole."""


@dataclass
class Summary:
    """What a call came to."""

    planned: int
    done: int = 0
    """Experiments whose results are there now, failed runs included."""
    failed: list[str] = field(default_factory=list)
    """Runs whose loss became NaN; they are not tried again."""
    skipped: dict[str, str] = field(default_factory=dict)
    """What could not be computed, and why: data that are missing, memory that is too small, damaged files."""
    out_of_time: bool = False

    @property
    def exit_code(self) -> int:
        """0: all is there. 3: the time was over, the same call goes on. 1: something else is in the way."""
        return 3 if self.out_of_time else 1 if self.skipped else 0


def reproduce(
    figures: Iterable[str] | None = None,
    scale: Scale = "paper",
    seeds: int | None = None,
    budget: float | None = None,
    out: Path | str = "runs",
    results: Path | str = "results",
    options: Options | None = None,
    say: Callable[[str], None] = print,
) -> Summary:
    """Compute what is missing in ``results`` of the experiments behind some figures (None: all), seeds 0, 1, ...

    After ``budget`` seconds (None: without limit) it stops with a checkpoint in ``out``; the same call goes on from
    there, to the same numbers. A finished run goes to ``results`` (see :mod:`multistable.paper.store`), and its
    checkpoints go; its model stays in ``out``.
    """
    clock = Clock(budget)
    if (count := Processes.join((options or Options()).device).count) > 1:
        raise ValueError(f"reproduce works in one process, got {count}; train single runs with several")
    options = replace(options or Options(), deadline=clock.deadline)
    experiments = plan(figures, scale, range(seeds or SEEDS.get(scale, 1)))
    known = {record.id: record for record in store.load(results, scale)}
    others = {(record.run.task.name, record.name): record.id for record in known.values()}
    missing = [each for each in experiments if not (each.run.id in known and known[each.run.id].has(each))]
    summary = Summary(len(experiments), len(experiments) - len(missing))
    say(f"{summary.planned} experiments at scale {scale}: {summary.done} are there, {len(missing)} to compute")
    if missing:
        check_writable("results", Path(results) / f"{scale}.json")  # before the first run, not behind it
    for number, experiment in enumerate(missing, start=1):
        if experiment.data in summary.skipped:
            continue
        if clock.ending:
            summary.out_of_time = True
            break
        say(f"{number} of {len(missing)}: {experiment.run.task.name}/{experiment.name}{clock}")
        other = others.get((experiment.run.task.name, experiment.name), experiment.run.id)
        if other != experiment.run.id:
            say(f"  will replace the result of another run, {other}")
        try:
            record = compute(experiment, scale, Path(out), options)
        except OutOfTimeError as stop:
            summary.out_of_time = True
            say(f"  {stop}")
            break
        except MissingDataError as error:
            summary.skipped[experiment.data] = str(error)
            say(f"  {error}")
            continue
        except (CheckpointError, torch.OutOfMemoryError) as error:
            summary.skipped[experiment.name] = str(error)
            say(f"  cannot be computed: {error}")
            continue
        finally:
            free_memory()
        path = store.write(results, record)
        remove_checkpoints(folder_of(experiment.run, Path(out)))
        summary.done += 1
        summary.failed += [record.name] if record.failure else []
        say(f"  {described(record)}; {path}")
    say(ending(summary))
    return summary


class Clock:
    """The time that is left of a budget."""

    def __init__(self, budget: float | None) -> None:
        if budget is not None and not budget > 0:
            raise ValueError(f"budget must be a positive number of seconds, got {budget!r}")
        self.budget = math.inf if budget is None else budget
        self.end = time.perf_counter() + self.budget
        self.deadline = None if budget is None else self.end - ENDING / 3 * budget  # a checkpoint takes its time, too

    @property
    def left(self) -> float:
        return self.end - time.perf_counter()

    @property
    def ending(self) -> bool:
        return self.left < ENDING * self.budget if self.deadline is not None else False

    def __str__(self) -> str:
        if self.deadline is None:
            return ""
        minutes, seconds = divmod(max(0, round(self.left)), 60)
        return f", {minutes}:{seconds:02} left"


def compute(experiment: Experiment, scale: Scale, out: Path, options: Options) -> Record:
    """Train, test, and sum up; or go on with it."""
    run, folder = experiment.run, folder_of(experiment.run, out)
    check_data(experiment)
    try:
        result = train_run(run, out, options)
    except NonFiniteLossError as error:
        return store.summarise(experiment, scale, error.result, [], failure=str(error))
    return store.summarise(experiment, scale, result, measure_all(experiment, folder, options))


def check_data(experiment: Experiment) -> None:
    """Look before the run does, so that no other error is taken for missing data. The files are read once."""
    try:
        experiment.run.task.samples("valid", experiment.run.seed)
    except (DataError, OSError, ValueError) as error:
        raise MissingDataError(f"no data for {experiment.data}: {error}") from error


def measure_all(experiment: Experiment, folder: Path, options: Options) -> list[dict[str, Any]]:
    """The tests at other lengths and noises, those that are not yet in the run's folder."""
    if not experiment.tests:
        return []
    path = folder / TESTS
    done = read_tests(path)
    device = Processes.join(options.device).device
    try:
        model = SequenceModel.from_pretrained(folder / "model", device=device)
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{error}; remove {folder} to compute the run anew") from error
    for test in experiment.tests:
        key = test.length, test.noise, test.samples
        if key not in done:
            done[key] = measure(experiment.run, model, test, device, options.deadline)
            write_atomically(path, json.dumps(list(done.values())).encode())
    return list(done.values())


def read_tests(path: Path) -> dict[tuple[int, float, int], dict[str, Any]]:
    """What has been measured, by length, noise and number of samples."""
    if not path.is_file():
        return {}
    with damage_named(path):
        return {(test["length"], test["noise"], test["samples"]): test for test in json.loads(path.read_text())}


def remove_checkpoints(folder: Path) -> None:
    """What only a run that goes on needs."""
    for name in (LAST, BEST):
        (folder / name).unlink(missing_ok=True)


def free_memory() -> None:
    """Many runs follow each other in one process: what one held on the GPU must not be in the way of the next."""
    if torch.cuda.is_available():
        gc.collect()
        torch.cuda.empty_cache()


def described(record: Record) -> str:
    if record.failure is not None:
        return record.failure
    metric = f"test_{record.run.task.metric}"
    scores = ", ".join(f"{which} {values[metric]:.4g}" for which, values in record.metrics.items())
    return f"{metric.replace('_', ' ')}: {scores}; {record.seconds:.0f} s"


def ending(summary: Summary) -> str:
    text = f"{summary.done} of {summary.planned} are there"
    if summary.out_of_time:
        text += "; the time is over, the same call goes on"
    if summary.skipped:
        text += f"; not computed: {', '.join(summary.skipped)}"
    return text


def parse_duration(text: str) -> float:
    """Seconds.

    >>> [parse_duration(text) for text in ("9m", "90s", "1h30m", "45")]
    [540.0, 90.0, 5400.0, 45.0]
    """
    found = re.fullmatch(r"(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s?)?", text.strip())
    if not text.strip() or found is None:
        raise ValueError(f"budget must be a duration such as 9m, 90s or 1h30m, got {text!r}")
    hours, minutes, seconds = (float(part or 0) for part in found.groups())
    return 3600 * hours + 60 * minutes + seconds
