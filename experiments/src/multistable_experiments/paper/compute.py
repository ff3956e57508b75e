"""Compute single experiments: train, test, store, and say what came of it."""

import gc
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from multistable.models import SequenceModel
from multistable_experiments.files import DamagedFileError, read_json, write_json
from multistable_experiments.mirror import Mirror
from multistable_experiments.paper import store
from multistable_experiments.paper.experiments import Experiment, TailAt, TestAt
from multistable_experiments.paper.settings import Scale
from multistable_experiments.paper.store import Record
from multistable_experiments.paper.stream_tests import measure
from multistable_experiments.paper.tail_tests import measure_tails
from multistable_experiments.tasks.mnist import DataError
from multistable_experiments.training.checkpoint import CheckpointError, InUseError, alone_in
from multistable_experiments.training.loop import NonFiniteLossError, Options, OutOfTimeError, train_run
from multistable_experiments.training.memory import named_memory_errors
from multistable_experiments.training.processes import Processes
from multistable_experiments.training.results import FILE as RESULT
from multistable_experiments.training.results import folder_of
from multistable_experiments.training.resume import BEST, LAST

__all__ = ["Summary", "Sweep", "compute", "free_memory", "title"]

TESTS = "tests.json"
RESULTS = "results"
"""The place of results in a mirror."""


class MissingDataError(RuntimeError):
    """The data set of an experiment is missing or incomplete."""


@dataclass
class Summary:
    """The outcome of a call."""

    planned: int
    done: int = 0
    """Experiments that have a result now, failed runs included."""
    failed: list[str] = field(default_factory=list)
    """Runs whose loss became NaN; they are not tried again."""
    skipped: dict[str, str] = field(default_factory=dict)
    """What could not be computed, and why: missing data, too little memory, damaged files, or another process that was
    still computing it in the end."""
    out_of_time: bool = False

    @property
    def exit_code(self) -> int:
        """0: complete. 3: out of time; the same call resumes. 1: something could not be computed."""
        return 3 if self.out_of_time else 1 if self.skipped else 0

    def __str__(self) -> str:
        text = f"{self.done} of {self.planned} are there"
        if self.out_of_time:
            text += "; out of time, the same call resumes"
        if self.skipped:
            text += f"; not computed: {', '.join(self.skipped)}"
        return text


@dataclass
class Sweep:
    """Compute experiments in turn. One that cannot be computed does not stop the others."""

    scale: Scale
    out: Path
    results: Path
    options: Options
    say: Callable[[str], None]
    summary: Summary
    others: list[Experiment] = field(default_factory=list)
    """Experiments that another process was computing."""

    def attempt(self, experiment: Experiment) -> None:
        """Compute an experiment and report the outcome."""
        if self.is_done(experiment):
            self.summary.done += 1
            self.say("  another process has computed it")
            return
        if (known := self.stored(experiment)) is not None:
            if known.id != experiment.run.id:
                self.summary.skipped[experiment.name] = (
                    f"the file of its name holds the result of another run, {known.id}"
                )
                self.say(f"  {self.summary.skipped[experiment.name]}, which is not overwritten")
                return
            self.say(f"  {why_again(experiment, known, self.out)}")
        elif (same := self.same_run(experiment)) is not None:
            path = store.write(
                self.results, replace(same, configuration=experiment.configuration, recipe=experiment.recipe)
            )
            self.summary.done += 1
            self.say(f"  the same run as by {same.recipe}; {path}")
            return
        try:
            record, path = compute(experiment, self.scale, self.out, self.results, self.options)
        except MissingDataError as error:
            self.summary.skipped[experiment.data] = str(error)
            self.say(f"  {error}")
        except InUseError as error:
            self.others.append(experiment)
            self.say(f"  {error}")
        except (CheckpointError, DamagedFileError, torch.OutOfMemoryError) as error:
            self.summary.skipped[experiment.name] = str(error)
            self.say(f"  cannot be computed: {error}")
        else:
            self.summary.done += 1
            self.summary.failed += [record.name] if record.failure else []
            self.say(f"  {described(record)}; {path}")

    def fetch_results(self) -> None:
        """Get the results of other machines from the mirror, if there is one."""
        if self.options.mirror is not None:
            Mirror(self.options.mirror).get(RESULTS, self.results)

    def stored(self, experiment: Experiment) -> Record | None:
        """The stored result of this name, if any."""
        path = store.path_of(self.results, self.scale, experiment.recipe, experiment.run.task.name, experiment.name)
        return store.read(path) if path.is_file() else None

    def same_run(self, experiment: Experiment) -> Record | None:
        """A complete result of the same run by another recipe, if any."""
        records = store.load(self.results, self.scale)
        return next((record for record in records if record.has(experiment)), None)

    def is_done(self, experiment: Experiment) -> bool:
        record = self.stored(experiment)
        return record is not None and record.has(experiment)

    def recheck_others(self) -> None:
        """Count what other processes have finished meanwhile."""
        for experiment in self.others:
            if self.is_done(experiment):
                self.summary.done += 1
            else:
                self.summary.skipped[experiment.name] = "another process computes it"


def why_again(experiment: Experiment, record: Record, out: Path) -> str:
    """Why an experiment is computed although there is a result of its name."""
    missing, folder = len(record.missing_tests(experiment)), folder_of(experiment.run, out)
    what = f"{missing} of its {len(experiment.tests)} tests are missing or lack what is measured today"
    what = what if missing else "its result has no metrics"
    return what if (folder / RESULT).is_file() else f"{what}; {folder} has no trained model, so it is trained again"


def compute(experiment: Experiment, scale: Scale, out: Path, results: Path, options: Options) -> tuple[Record, Path]:
    """Train, test and store an experiment, or resume it. Return the record and its file."""
    folder, failure = folder_of(experiment.run, out), None
    with named_memory_errors(f"the data of {experiment.name}"):
        check_data(experiment)
    try:
        result = train_run(experiment.run, out, options)
    except NonFiniteLossError as error:
        result, failure = error.result, str(error)
    mirror = None if options.mirror is None else Mirror(options.mirror)
    with alone_in(folder, mirror) as attempt:
        with named_memory_errors(f"the tests of {experiment.name}"):
            tests = run_tests(experiment, folder, options) if failure is None else []
        record = store.summarise(experiment, scale, result, tests, failure)
        attempt.check()
        path = store.write(results, record)
        if mirror is not None:
            mirror.put(RESULTS, results, [path.relative_to(results).as_posix()])
        for name in (LAST, BEST):
            (folder / name).unlink(missing_ok=True)
        attempt.publish()
    return record, path


def check_data(experiment: Experiment) -> None:
    """Load the data before training, so that no other error is taken for missing data. They are cached."""
    try:
        experiment.run.task.samples("valid", experiment.run.seed)
    except (DataError, OSError, ValueError) as error:
        raise MissingDataError(f"no data for {experiment.data}: {error}") from error


def run_tests(experiment: Experiment, folder: Path, options: Options) -> list[dict[str, Any]]:
    """Run the tests at other lengths and noises that the run's folder does not have yet.

    Raise ``OutOfTimeError`` after a test that ends past the deadline. 6,000 sequences of 100,000 timesteps take 6 s on
    an H200.
    """
    if not experiment.tests:
        return []
    path = folder / TESTS
    try:
        tests = read_json(path)["tests"] if path.exists() else []
    except DamagedFileError as error:
        raise CheckpointError(f"{error}; remove it to run its tests again") from error
    missing = set(store.missing_tests(experiment, tests))
    device = Processes.join(options.device).device
    try:
        model = SequenceModel.from_pretrained(folder / "model", device=device)
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{error}; remove {folder} to compute the run anew") from error
    for group in groups(experiment.tests):
        if missing.isdisjoint(group):
            continue
        if isinstance(group[0], TailAt):
            found = measure_tails(experiment.run, model, [test for test in group if isinstance(test, TailAt)], device)
        else:
            found = [measure(experiment.run, model, test, device) for test in group if isinstance(test, TestAt)]
        tests = [*(t for t in tests if not any(same_test(t, new) for new in found)), *found]
        write_json(path, {"tests": tests})
        left = len(store.missing_tests(experiment, tests))
        if left and options.deadline is not None and time.perf_counter() >= options.deadline:
            raise OutOfTimeError(f"no time left for {left} of {len(experiment.tests)} tests at other lengths")
    return tests


def groups(tests: Sequence[TestAt | TailAt]) -> list[list[TestAt | TailAt]]:
    """Group tests that run together, all of them if one is missing: tests of one kind of tail share their streams, and
    are compared with the shortest one. The others run alone."""
    found: dict[object, list[TestAt | TailAt]] = {}
    for test in tests:
        found.setdefault((test.tail, test.held) if isinstance(test, TailAt) else test, []).append(test)
    return list(found.values())


def same_test(first: dict[str, Any], second: dict[str, Any]) -> bool:
    names = ("length", "noise", "samples", "tail", "pixels", "held")
    return all(first.get(name) == second.get(name) for name in names)


def free_memory() -> None:
    """Return the GPU memory of one run before the next run of this process."""
    if torch.cuda.is_available():
        gc.collect()
        torch.cuda.empty_cache()


def described(record: Record) -> str:
    if record.failure is not None:
        return record.failure
    metric = f"test_{record.run.task.metric}"
    scores = ", ".join(f"{which} {values[metric]:.4g}" for which, values in record.metrics.items())
    return f"{metric.replace('_', ' ')}: {scores}; {record.seconds:.0f} s"


def title(experiment: Experiment) -> str:
    return f"{experiment.recipe}/{experiment.run.task.name}/{experiment.name}"
