"""The store of results: one small JSON file per experiment, ``results/<task>/<configuration>-seed<k>.json``.

Other scales than ``paper`` have a folder of their own, ``results/<scale>/<task>/...``.
"""

import json
import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from multistable_experiments.files import UNREADABLE, parse_json, write_atomically
from multistable_experiments.paper.experiments import Experiment, TestAt, plan
from multistable_experiments.paper.overwrites import OF_BMRU, is_whole
from multistable_experiments.training.presets import Scale
from multistable_experiments.training.results import check_machine, check_numbers
from multistable_experiments.training.run import Run

__all__ = ["Record", "load", "outdated", "path_of", "read", "summarise", "write"]

MOST_EPOCHS = 50
"""The most epochs of a history that are kept, evenly chosen; the best and the last one come on top."""
DIGITS = 4
WAY_OUT = "remove it to have it computed anew by `multistable reproduce`"


@dataclass(frozen=True)
class Record:
    """What came out of one experiment."""

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
    """Of the best weights, on streamed sequences: ``length``, ``noise``, ``samples``, the metric (``mse``), and for
    models with a BMRU what noise overwrote: see :func:`multistable_experiments.paper.overwrites.measure`."""
    failure: str | None = None
    """Why there are no metrics: where the loss became NaN."""

    @property
    def id(self) -> str:
        return self.run.id

    @property
    def name(self) -> str:
        return f"{self.configuration}-seed{self.run.seed}"

    def has(self, experiment: Experiment) -> bool:
        """Whether nothing is left to compute: the run failed, or has its metrics and all tests."""
        if self.id != experiment.run.id:
            return False
        return self.failure is not None or ("last" in self.metrics and not self.lacking(experiment))

    def lacking(self, experiment: Experiment) -> list[TestAt]:
        """The tests of an experiment that are not there, or that lack something which is measured today."""
        whole = {(t["length"], t["noise"], t["samples"]) for t in self.tests if is_whole(self.run, t)}
        return [test for test in experiment.tests if (test.length, test.noise, test.samples) not in whole]


def path_of(results: Path | str, scale: Scale, task: str, name: str) -> Path:
    """Where the record of an experiment is, or will be."""
    return (Path(results) if scale == "paper" else Path(results) / scale) / task / f"{name}.json"


def write(results: Path | str, record: Record) -> Path:
    """A line per entry, so that a change can be seen; whole or not at all."""
    path = path_of(results, record.scale, record.run.task.name, record.name)
    values = {"id": record.id} | asdict(record) | {"run": record.run.to_dict()}
    lines = ",\n".join(f" {json.dumps(key)}: {json.dumps(value)}" for key, value in values.items())
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, f"{{\n{lines}\n}}\n".encode())
    return path


def read(path: Path) -> Record:
    try:
        values = parse_json(path)
        if not isinstance(values, dict):
            raise TypeError(f"it must hold an object, got {type(values).__name__}")
        run = Run.from_dict(values.pop("run"))
        found = values.pop("id")
        record = Record(run=run, **values)
        check(record)
    except KeyError as error:
        raise ValueError(f"{path} is no result: it has no {error}; {WAY_OUT}") from error
    except UNREADABLE as error:
        raise ValueError(f"{path} is no result: {error}; {WAY_OUT}") from error
    if found != run.id:
        raise ValueError(
            f"{path} is damaged, or from a version of multistable whose runs have other settings: its id is {found}, "
            f"but that of its run is {run.id}; {WAY_OUT}"
        )
    return record


def check(record: Record) -> None:
    """Raise unless all that claims, figures and report read is there and of its kind: a file may have been edited."""
    metric = record.run.task.metric
    words = {"configuration": record.configuration, "scale": record.scale}
    for name, word in (words if record.failure is None else words | {"failure": record.failure}).items():
        if not isinstance(word, str):
            raise TypeError(f"{name} must be a string, got {word!r}")
    check_numbers("it", vars(record), ["parameters", "seconds", "timesteps_per_second"])
    for which, values in record.metrics.items():
        check_numbers(f"metrics.{which}", values, ["epoch", f"test_{metric}"])
    for i, test in enumerate(record.tests):
        check_numbers(f"tests[{i}]", test, ["length", "noise", "samples"], [metric, *OF_BMRU])
    check_machine(record.machine)


def load(results: Path | str, scale: Scale = "paper") -> list[Record]:
    """All records of a scale, by path. A file under another name than its own is refused: it may be a second one."""
    folder = Path(results) if scale == "paper" else Path(results) / scale
    # No glob: it takes a folder that may not be read for an empty one.
    tasks = [path for path in folder.iterdir() if path.is_dir()] if folder.is_dir() else []
    paths = [path for task in tasks for path in task.iterdir() if path.suffix == ".json"]
    found = {path: read(path) for path in sorted(paths)}
    for path, record in found.items():
        own = path_of(results, record.scale, record.run.task.name, record.name)
        if path != own:
            raise ValueError(f"{path} holds a result whose place is {own}: rename it or remove it")
    return list(found.values())


def outdated(records: Sequence[Record], scale: Scale = "paper") -> list[Record]:
    """The records whose run is not the one that the experiment of their name has now: its settings were changed since.

    They must not be read as results of that experiment. ``multistable reproduce`` replaces them.
    """
    planned = plan(None, scale, sorted({record.run.seed for record in records}))
    now = {(experiment.run.task.name, experiment.name): experiment.run.id for experiment in planned}
    return [record for record in records if now.get((record.run.task.name, record.name), record.id) != record.id]


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
    )


def columns(history: list[dict[str, Any]], metric: str, keep: set[int]) -> dict[str, list[float]]:
    """A history as columns of rounded numbers, at most ``MOST_EPOCHS`` of its epochs and those to ``keep``."""
    if not history:
        return {}
    stride = math.ceil(len(history) / MOST_EPOCHS)
    chosen = [each for each in history if (each["epoch"] - 1) % stride == 0 or each["epoch"] in keep]
    names = ["train_loss", "valid_loss"]
    if any(each[f"{part}_loss"] != each[f"{part}_{metric}"] for each in chosen for part in ("train", "valid")):
        names += [f"train_{metric}", f"valid_{metric}"]
    rounded = {name: [float(f"{each[name]:.{DIGITS}g}") for each in chosen] for name in names}
    return {"epoch": [each["epoch"] for each in chosen], **rounded}
