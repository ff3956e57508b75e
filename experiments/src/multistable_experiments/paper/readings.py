"""Numbers that are read from the records of runs, for claims and for figures."""

import math
from collections.abc import Callable, Sequence
from typing import Literal

from multistable_experiments.paper.store import Record

__all__ = ["Value", "runs_of", "score", "streamed"]

Value = Callable[[Record], float | None]
"""A number of a record; None where it does not have it."""


def runs_of(records: Sequence[Record], task: str, configuration: str) -> dict[int, Record]:
    """The runs of a configuration, by seed."""
    return {
        record.run.seed: record
        for record in records
        if record.run.task.name == task and record.configuration == configuration
    }


def score(which: Literal["last", "best"]) -> Value:
    """The metric on the test set, of the last epoch's weights or those best on validation; accuracies in percent."""

    def value(record: Record) -> float | None:
        metric, metrics = record.run.task.metric, record.metrics.get(which)
        return None if metrics is None else metrics[f"test_{metric}"] * (100 if metric == "accuracy" else 1)

    return value


def streamed(length: int, noise: float, name: str | None = None) -> Value:
    """The error on streamed sequences of this length and noise, or what else of that test is called ``name``."""

    def value(record: Record) -> float | None:
        tests = (t for t in record.tests if t["length"] == length and math.isclose(t["noise"], noise))
        return next(tests, {}).get(name or record.run.task.metric)

    return value
