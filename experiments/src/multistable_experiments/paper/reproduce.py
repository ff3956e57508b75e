"""Compute the paper's experiments: the missing ones only, the most valuable first, within a time budget."""

import gc
import hashlib
import json
import math
import re
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from multistable.models import SequenceModel
from multistable.models.files import WEIGHTS
from multistable.ops.checks import check_sizes
from multistable_experiments.files import check_writable, parse_json, write_atomically
from multistable_experiments.paper import store
from multistable_experiments.paper.bookmark import Bookmark
from multistable_experiments.paper.experiments import Experiment, plan
from multistable_experiments.paper.overwrites import OF_BMRU, is_whole, measure
from multistable_experiments.paper.store import Record
from multistable_experiments.tasks.mnist import DataError
from multistable_experiments.training import NonFiniteLossError, Options, OutOfTimeError, train_run
from multistable_experiments.training.checkpoint import CheckpointError, InUseError, alone_in, damage_named
from multistable_experiments.training.loop import BEST, LAST
from multistable_experiments.training.presets import Scale
from multistable_experiments.training.processes import Processes
from multistable_experiments.training.results import FILE as RESULT
from multistable_experiments.training.results import check_numbers, folder_of

__all__ = ["SEEDS", "Summary", "parse_duration", "reproduce"]

SEEDS: dict[Scale, int] = {"paper": 5, "small": 1, "smoke": 1}
"""How many seeds are computed unless said otherwise; the paper's values are means over 5 runs."""
ENDING = 0.03
"""In this last share of the budget nothing is begun: beginning takes seconds (data, kernels, CUDA graph)."""
TESTS, BOOKMARK = "tests.json", "test.safetensors"


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
    """What could not be computed, and why: data that are missing, memory that is too small, damaged files; and what
    another process was still computing in the end."""
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
    there, to the same numbers. The result of a finished run goes to ``results`` (see ``store.py``);
    its checkpoints are removed, and its model stays in ``out``.
    """
    clock = Clock(budget)
    if (count := Processes.join((options or Options()).device).count) > 1:
        raise ValueError(f"reproduce works in one process, got {count}; train single runs with several")
    if seeds is not None:
        check_sizes(1, seeds=seeds)
    options = replace(options or Options(), deadline=clock.deadline)
    experiments = plan(figures, scale, range(seeds or SEEDS.get(scale, 1)))
    known = {(record.run.task.name, record.name): record for record in store.load(results, scale)}
    missing = [each for each in experiments if not is_done(each, known)]
    summary = Summary(len(experiments), len(experiments) - len(missing))
    say(f"{summary.planned} experiments at scale {scale}: {summary.done} are there, {len(missing)} to compute")
    if missing:
        check_writable("results", Path(results) / f"{scale}.json")  # before the first run, not behind it
    sweep = Sweep(scale, Path(out), Path(results), options, say, summary)
    for number, experiment in enumerate(missing, start=1):
        if experiment.data in summary.skipped:
            continue
        summary.out_of_time = clock.ending
        if summary.out_of_time:
            break
        say(f"{number} of {len(missing)}: {experiment.run.task.name}/{experiment.name}{clock}")
        try:
            sweep.attempt(experiment)
        except OutOfTimeError as stop:
            summary.out_of_time = True
            say(f"  {stop}")
            break
        finally:
            free_memory()
    sweep.look_again()
    say(ending(summary))
    return summary


def is_done(experiment: Experiment, known: Mapping[tuple[str, str], Record]) -> bool:
    record = known.get((experiment.run.task.name, experiment.name))
    return record is not None and record.has(experiment)


@dataclass
class Sweep:
    """Experiments in turn: what is in the way of one stops no other."""

    scale: Scale
    out: Path
    results: Path
    options: Options
    say: Callable[[str], None]
    summary: Summary
    elsewhere: list[Experiment] = field(default_factory=list)
    """Those that another process was computing when it was their turn."""

    def attempt(self, experiment: Experiment) -> None:
        """Compute an experiment and say what came of it."""
        known = self.stored(experiment)
        if known is not None and known.has(experiment):
            self.summary.done += 1
            self.say("  another process has computed it")
            return
        if known is not None:
            self.say(f"  {why_again(experiment, known, self.out)}")
        try:
            record, path = compute(experiment, self.scale, self.out, self.results, self.options)
        except MissingDataError as error:
            self.summary.skipped[experiment.data] = str(error)
            self.say(f"  {error}")
        except InUseError as error:
            self.elsewhere.append(experiment)
            self.say(f"  {error}")
        except (CheckpointError, torch.OutOfMemoryError) as error:
            self.summary.skipped[experiment.name] = str(error)
            self.say(f"  cannot be computed: {error}")
        else:
            self.summary.done += 1
            self.summary.failed += [record.name] if record.failure else []
            self.say(f"  {described(record)}; {path}")

    def stored(self, experiment: Experiment) -> Record | None:
        """The result under the name of an experiment, as it is now."""
        path = store.path_of(self.results, self.scale, experiment.run.task.name, experiment.name)
        return store.read(path) if path.is_file() else None

    def look_again(self) -> None:
        """What another process was computing may be there by now."""
        for experiment in self.elsewhere:
            known = self.stored(experiment)
            if known is not None and known.has(experiment):
                self.summary.done += 1
            else:
                self.summary.skipped[experiment.name] = "another process computes it"


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


def why_again(experiment: Experiment, record: Record, out: Path) -> str:
    """Why an experiment is computed although there is a result of its name."""
    if record.id != experiment.run.id:
        return f"will replace the result of another run, {record.id}"
    lacking, folder = len(record.lacking(experiment)), folder_of(experiment.run, out)
    what = f"{lacking} of its {len(experiment.tests)} tests are missing or lack what is measured today"
    what = what if lacking else "its result has no metrics"
    return what if (folder / RESULT).is_file() else f"{what}; {folder} has no trained model, so it is trained again"


def compute(experiment: Experiment, scale: Scale, out: Path, results: Path, options: Options) -> tuple[Record, Path]:
    """Train, test, sum up and store; or go on with it. Returns the record and its file."""
    folder, failure = folder_of(experiment.run, out), None
    check_data(experiment)
    try:
        result = train_run(experiment.run, out, options)
    except NonFiniteLossError as error:
        result, failure = error.result, str(error)
    with alone_in(folder):
        tests = measure_all(experiment, folder, options) if failure is None else []
        record = store.summarise(experiment, scale, result, tests, failure)
        path = store.write(results, record)
        remove_checkpoints(folder)
    return record, path


def check_data(experiment: Experiment) -> None:
    """Read the data before the run does, so that no other error is taken for missing data. They are read only once."""
    try:
        experiment.run.task.samples("valid", experiment.run.seed)
    except (DataError, OSError, ValueError) as error:
        raise MissingDataError(f"no data for {experiment.data}: {error}") from error


def measure_all(experiment: Experiment, folder: Path, options: Options) -> list[dict[str, Any]]:
    """The tests at other lengths and noises, those that are not yet in the run's folder."""
    if not experiment.tests:
        return []
    path = folder / TESTS
    done = {
        key: test
        for key, test in read_tests(path, experiment.run.task.metric).items()
        if is_whole(experiment.run, test)
    }
    device = Processes.join(options.device).device
    try:
        model = SequenceModel.from_pretrained(folder / "model", device=device)
        weights = hashlib.sha256((folder / "model" / WEIGHTS).read_bytes()).hexdigest()
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{error}; remove {folder} to compute the run anew") from error
    for test in experiment.tests:
        key = test.length, test.noise, test.samples
        if key not in done:
            bookmark = Bookmark(folder / BOOKMARK, test, weights, options)
            done[key] = measure(experiment.run, model, test, device, bookmark)
            write_atomically(path, json.dumps(list(done.values())).encode())
            bookmark.path.unlink(missing_ok=True)
    return list(done.values())


def read_tests(path: Path, metric: str) -> dict[tuple[int, float, int], dict[str, Any]]:
    """What has been measured, by length, noise and number of samples."""
    if not path.exists():
        return {}
    with damage_named(path):
        tests = parse_json(path)
        for i, test in enumerate(tests):
            check_numbers(f"[{i}]", test, ["length", "noise", "samples"], [metric, *OF_BMRU])
        return {(test["length"], test["noise"], test["samples"]): test for test in tests}


def remove_checkpoints(folder: Path) -> None:
    """Remove what only an unfinished run needs."""
    for name in (LAST, BEST, BOOKMARK):
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
