"""Stored results: one small JSON file per experiment, ``results/<recipe>/<task>/<configuration>-seed<k>.json``.

Scales other than ``full`` have a folder of their own, ``results/<scale>/<recipe>/<task>/...``. Each file has a
checksum, so that one that was edited or truncated is not read.
"""

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from multistable_experiments.files import UNREADABLE, DamagedFileError, check_types, read_json, write_json
from multistable_experiments.paper.experiments import Experiment, TailAt, TestAt, plan
from multistable_experiments.paper.recipes import RECIPES, Recipe
from multistable_experiments.paper.settings import Scale
from multistable_experiments.tasks.mnist import Tail
from multistable_experiments.training.run import Run

__all__ = [
    "Record",
    "by_seed",
    "estimate_seconds",
    "load",
    "missing",
    "missing_tests",
    "outdated",
    "path_of",
    "read",
    "summarise",
    "write",
]

MOST_EPOCHS = 50
"""A history keeps at most so many epochs, evenly spaced, and the best and the last one."""
DIGITS = 4
USUAL_SPEED = 6e7
"""Timesteps per second of two blocks of 256 units on an H200."""
TRAINING_SAMPLES = {"copy-first": 54_000, "mnist": 54_000, "pathfinder": 162_000}
BMRU_MEASUREMENTS = ("stored", "overwritten", "intact", "restored")
"""What a test measures of a model with a BMRU, beside the metric."""

RECORD = {
    "configuration": str, "scale": str, "parameters": int, "metrics": dict[str, dict[str, float]],
    "history": dict[str, list[float]], "seconds": float, "timesteps_per_second": float, "machine": dict[str, Any],
    "options": dict[str, Any], "tests": list[dict[str, Any]], "failure": str | None, "recipe": str,
}  # fmt: skip
MACHINE = {
    "gpu": str | None, "processor": str, "commit": str | None, "dirty": bool | None, "earlier_commits": list[str | None]
}  # fmt: skip
STREAM = {"length": int, "noise": float, "samples": int}
TAIL = {"tail": str, "pixels": int, "held": bool}


@dataclass(frozen=True)
class Record:
    """The stored result of one experiment."""

    configuration: str
    scale: Scale
    run: Run
    parameters: int
    """Number of trained numbers."""
    metrics: dict[str, dict[str, float]]
    """``metrics["last"]`` and ``metrics["best"]`` (best on the validation set; absent if no epoch was finite): epoch,
    validation and test loss and metric, such as ``test_mse`` or ``test_accuracy``. Empty for a failed run."""
    history: dict[str, list[float]]
    """Columns over some of the epochs: ``epoch``, ``train_loss``, ``valid_loss`` and, where it is not the loss, the
    metric (``train_accuracy``, ``valid_accuracy``)."""
    seconds: float
    timesteps_per_second: float
    """In training; the median of the epochs."""
    machine: dict[str, Any]
    """Processor, GPU, versions, commit, date."""
    options: dict[str, Any] = field(default_factory=dict)
    """How it was computed: CUDA graph, compiled."""
    tests: list[dict[str, Any]] = field(default_factory=list)
    """Of the best weights, on streamed sequences: see :func:`multistable_experiments.paper.stream_tests.measure` and
    :func:`multistable_experiments.paper.tail_tests.measure_tails`."""
    failure: str | None = None
    """Why there are no metrics: where the loss became NaN."""
    recipe: Recipe = "tuned"
    """Results of version 0.1 do not say it."""

    @property
    def id(self) -> str:
        return self.run.id

    @property
    def name(self) -> str:
        return f"{self.configuration}-seed{self.run.seed}"

    def score(self, weights: Literal["last", "best"] = "last") -> float | None:
        """The metric on the test set, of the last epoch's weights or those best on validation; accuracies in percent.

        None if there is none.
        """
        metric, metrics = self.run.task.metric, self.metrics.get(weights)
        return None if metrics is None else metrics[f"test_{metric}"] * (100 if metric == "accuracy" else 1)

    def streamed(self, length: int, noise: float, name: str | None = None) -> float | None:
        """The error on streamed sequences of this length and noise, or another measurement of that test by name."""
        tests = (t for t in self.tests if t.get("length") == length and math.isclose(t["noise"], noise))
        return next(tests, {}).get(name or self.run.task.metric)

    def after_tail(self, tail: Tail, pixels: int, held: bool, name: str = "accuracy") -> float | None:
        """The accuracy in percent after a tail, or ``same``, the share of answers that did not change, in percent."""
        tests = (t for t in self.tests if (t.get("tail"), t.get("pixels"), t.get("held")) == (tail, pixels, held))
        value = next(tests, {}).get(name)
        return None if value is None else 100 * value

    def has(self, experiment: Experiment) -> bool:
        """True if nothing is left to compute: the run failed, or has its metrics and all tests."""
        if self.id != experiment.run.id:
            return False
        return self.failure is not None or ("last" in self.metrics and not self.missing_tests(experiment))

    def missing_tests(self, experiment: Experiment) -> list[TestAt | TailAt]:
        """The tests of an experiment that are absent or incomplete."""
        return missing_tests(experiment, self.tests)


def missing_tests(experiment: Experiment, found: Sequence[dict[str, Any]]) -> list[TestAt | TailAt]:
    """The tests of an experiment that are not among those found, with all that is measured today."""
    metric, has_bmru = experiment.run.task.metric, experiment.run.model.has_bmru

    def is_found(test: TestAt | TailAt) -> bool:
        measured = {metric, *(BMRU_MEASUREMENTS if has_bmru and isinstance(test, TestAt) else ())}
        return any(asdict(test).items() <= each.items() and measured <= each.keys() for each in found)

    return [test for test in experiment.tests if not is_found(test)]


def path_of(results: Path | str, scale: Scale, recipe: Recipe, task: str, name: str) -> Path:
    """The file of an experiment's record."""
    return folder_of(results, scale) / recipe / task / f"{name}.json"


def folder_of(results: Path | str, scale: Scale) -> Path:
    return Path(results) if scale == "full" else Path(results) / scale


def write(results: Path | str, record: Record) -> Path:
    path = path_of(results, record.scale, record.recipe, record.run.task.name, record.name)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, {"id": record.id} | asdict(record) | {"run": record.run.to_dict()})
    return path


def read(path: Path) -> Record:
    remove = "remove it, and `multistable reproduce` computes it again"
    try:
        values = read_json(path)
        run, id = Run.from_dict(values.pop("run")), values.pop("id")
        values["scale"] = "full" if values["scale"] == "paper" else values["scale"]  # its name in version 0.1
        record = Record(run=run, **values)
        check_record(record)
    except UNREADABLE as error:
        raise DamagedFileError(f"{path} is not a result: {error}; {remove}") from error
    if id != run.id:
        raise DamagedFileError(f"{path} is from a version with other settings: its id is {id}, now {run.id}; {remove}")
    return record


def check_record(record: Record) -> None:
    """Raise TypeError unless everything has its type: a file may come from anybody."""
    check_types(vars(record), RECORD)
    check_types({"earlier_commits": []} | record.machine, MACHINE)
    for values in record.metrics.values():
        check_types(values, dict.fromkeys(("epoch", f"test_{record.run.task.metric}"), float))
    for test in record.tests:
        numbers = dict.fromkeys({record.run.task.metric, "same", *BMRU_MEASUREMENTS} & test.keys(), float)
        check_types(test, (TAIL if "tail" in test else STREAM) | numbers)


def load(results: Path | str, scale: Scale = "full", recipes: Iterable[Recipe] = RECIPES) -> list[Record]:
    """All records of a scale, sorted by path. Raise if a file does not have the name of its record."""
    records = {}
    for recipe in recipes:
        folder = folder_of(results, scale) / recipe
        # Not glob, which takes a folder without read permission for an empty one.
        tasks = sorted(path for path in folder.iterdir() if path.is_dir()) if folder.is_dir() else []
        records |= {path: read(path) for task in tasks for path in sorted(task.iterdir()) if path.suffix == ".json"}
    for path, record in records.items():
        own = path_of(results, record.scale, record.recipe, record.run.task.name, record.name)
        if path != own:
            raise DamagedFileError(f"{path} holds the result of {own}: rename it or remove it")
    return list(records.values())


def outdated(records: Sequence[Record], scale: Scale = "full") -> list[Record]:
    """The records whose experiment has other settings now. They must not be read as its results."""
    planned = plan(None, scale, sorted({record.run.seed for record in records}))
    now = {(each.recipe, each.run.task.name, each.name): each.run.id for each in planned}
    return [r for r in records if now.get((r.recipe, r.run.task.name, r.name), r.id) != r.id]


def missing(records: Sequence[Record], planned: Sequence[Experiment]) -> list[Experiment]:
    """The experiments that have no result, or lack tests."""
    done = {(record.recipe, record.id): record for record in records}
    found = ((done.get((each.recipe, each.run.id)), each) for each in planned)
    return [each for record, each in found if record is None or not record.has(each)]


def estimate_seconds(experiment: Experiment, records: Sequence[Record]) -> float:
    """How long a run would train: as fast as the runs of the same layers and width, or at the speed of two blocks.

    Without compiling, data and tests at other lengths.
    """
    run = experiment.run
    samples = TRAINING_SAMPLES[run.task.name] + getattr(run.task, "more_images", 0)
    timesteps = run.epochs * run.task.length * samples
    alike = [
        record.timesteps_per_second
        for record in records
        if (record.run.model.cells, record.run.model.d_state) == (run.model.cells, run.model.d_state)
        and record.timesteps_per_second > 0  # 0 for a run whose loss became NaN in its first epoch
    ]
    blocks = len(run.model.cells) * (2 if run.model.bidirectional else 1) * run.model.d_state / 256
    return timesteps / (statistics.median(alike) if alike else 2 * USUAL_SPEED / blocks)


def by_seed(records: Sequence[Record], task: str, configuration: str) -> dict[int, Record]:
    """The records of a configuration, by seed."""
    own = (record for record in records if record.run.task.name == task and record.configuration == configuration)
    return {record.run.seed: record for record in own}


def summarise(
    experiment: Experiment,
    scale: Scale,
    result: dict[str, Any],
    tests: list[dict[str, Any]],
    failure: str | None = None,
) -> Record:
    """The record of a run: ``result`` is what :func:`multistable_experiments.training.train_run` returned."""
    metrics, history = result["metrics"], result["history"]
    keep = {values["epoch"] for values in metrics.values()}
    return Record(
        experiment.configuration,
        scale,
        experiment.run,
        parameters=result["parameters"],
        metrics=metrics,
        history=columns(history, experiment.run.task.metric, keep),
        seconds=result["seconds"],
        timesteps_per_second=statistics.median([epoch["timesteps_per_second"] for epoch in history] or [0]),
        machine=result["machine"],
        options=result["options"],
        tests=tests,
        failure=failure,
        recipe=experiment.recipe,
    )


def columns(history: list[dict[str, Any]], metric: str, keep: set[int]) -> dict[str, list[float]]:
    """A history as columns of rounded numbers: at most ``MOST_EPOCHS`` of its epochs, and those to ``keep``."""
    if not history:
        return {}
    stride = math.ceil(len(history) / MOST_EPOCHS)
    chosen = [each for each in history if (each["epoch"] - 1) % stride == 0 or each["epoch"] in keep]
    names = ["train_loss", "valid_loss"]
    if any(each[f"{part}_loss"] != each[f"{part}_{metric}"] for each in chosen for part in ("train", "valid")):
        names += [f"train_{metric}", f"valid_{metric}"]
    rounded = {name: [float(f"{each[name]:.{DIGITS}g}") for each in chosen] for name in names}
    return {"epoch": [each["epoch"] for each in chosen], **rounded}
