"""What the records of runs say of a claim: one number per reading and seed, compared seed by seed."""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from multistable.models import ModelConfig
from multistable_experiments.paper.claims.claim import Finding
from multistable_experiments.paper.readings import Value, runs_of, score
from multistable_experiments.paper.store import Record
from multistable_experiments.training.presets import preset

__all__ = ["Reading", "Scores", "add", "compare", "minus", "number", "over_seeds", "points"]

Scores = Mapping[str, list[float]]
"""Of each reading a number per seed, the same seeds in the same order."""
Test = Callable[[Scores], tuple[bool, str]]
"""Whether a claim holds on these numbers, and the numbers in words."""

TUNED = "with positions each BMRU unit starts with a timestep of its own, which is not in the paper"
HOLDING = "BMRU units start with thresholds of {:g}, which is not in the paper"


class Reading(NamedTuple):
    """A number to be read from each run of a configuration."""

    configuration: str
    value: Value


def compare(records: Sequence[Record], task: str, configurations: Sequence[str], test: Test) -> Finding:
    """Test a claim on the last epoch of the runs of a task, over the seeds that all configurations have.

    The paper does not say which weights it tests. Where the weights that were best on the validation set say something
    else, that is added.
    """
    last, best = (
        over_seeds(records, task, {name: Reading(name, score(which)) for name in configurations}, test)
        for which in ("last", "best")
    )
    if None in (last.held, best.held):
        return last
    if last.held != best.held:
        last = add(last, f"with the weights best on validation {'held' if best.held else 'not held'}: {best.measured}")
    return last


def add_start(finding: Finding, models: Sequence[ModelConfig]) -> Finding:
    """The finding with a note on how the BMRU units of these models start, where that is a decision of ours."""
    if any(map(is_tuned, models)):
        finding = add(finding, TUNED)
    for beta_bias in sorted({model.beta_bias for model in models} - {0}):
        finding = add(finding, HOLDING.format(beta_bias))
    return finding


def is_tuned(model: ModelConfig) -> bool:
    """Whether each unit of its BMRU starts with a timestep of its own (:meth:`multistable.BMRU.tune`)."""
    return model.position is not None and model.position.tuning > 0 and model.has_bmru


def over_seeds(records: Sequence[Record], task: str, readings: Mapping[str, Reading], test: Test) -> Finding:
    """Test a claim on readings, over the seeds that all of them have. It does not hold where one of them is NaN.

    A failed run, whose loss became NaN, counts as NaN: were it left out, the other seeds could hold a claim that this
    one breaks. How BMRU units start is added: the outcome depends on it.
    """
    runs = {name: runs_of(records, task, reading.configuration) for name, reading in readings.items()}
    numbers = {
        name: {seed: found for seed, run in runs[name].items() if (found := read(reading, run)) is not None}
        for name, reading in readings.items()
    }
    if missing := [name for name, values in numbers.items() if not values]:
        others = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        return Finding(None, f"missing: {missing[0]}{others}")
    seeds = sorted(set.intersection(*(set(values) for values in numbers.values())))
    if not seeds:
        return Finding(None, "no seed that all of them have")
    held, words = on_finished(numbers, seeds, test, runs)
    epochs = sorted({each[seed].run.epochs for each in runs.values() for seed in seeds})
    finding = Finding(held, words, "", tuple(seeds), tuple(epochs), preset(task, "paper").epochs)
    return add_start(finding, [each[seed].run.model for each in runs.values() for seed in seeds])


def read(reading: Reading, run: Record) -> float | None:
    return reading.value(run) if run.failure is None else math.nan


def on_finished(
    numbers: Mapping[str, Mapping[int, float]], seeds: Sequence[int], test: Test, runs: Mapping[str, dict[int, Record]]
) -> tuple[bool, str]:
    """The test on the seeds with which no run failed. Where one did, the claim does not hold, and the run is named."""
    failed = sorted({each[seed].name for each in runs.values() for seed in seeds if each[seed].failure})
    finished = [seed for seed in seeds if not any(each[seed].failure for each in runs.values())]
    if not finished:
        return False, f"failed: {', '.join(failed)}"
    scores = {name: [values[seed] for seed in finished] for name, values in numbers.items()}
    held, words = test(scores)
    if failed:
        return False, f"{words}, but failed: {', '.join(failed)}"
    return held and not any(math.isnan(value) for values in scores.values() for value in values), words


def add(finding: Finding, words: str) -> Finding:
    """The same finding, with more in its note."""
    return replace(finding, note="; ".join(part for part in (finding.note, words) if part))


def minus(first: Sequence[float], second: Sequence[float]) -> list[float]:
    """Seed by seed."""
    return [a - b for a, b in zip(first, second, strict=True)]


def number(values: Sequence[float]) -> str:
    """Mean and, of two seeds or more, standard deviation.

    >>> number([0.00131]), number([0.0011, 0.0015])
    ('0.00131', '0.0013 ± 0.00028')
    """
    mean = f"{statistics.fmean(values):.3g}"
    return mean if len(values) == 1 else f"{mean} ± {deviation(values):.2g}"


def points(values: Sequence[float], sign: bool = False) -> str:
    """The same of percentages, with one decimal.

    >>> points([97.34]), points([1.0, 2.0], sign=True)
    ('97.3', '+1.5 ± 0.7')
    """
    mean = f"{statistics.fmean(values):{'+' if sign else ''}.1f}"
    return mean if len(values) == 1 else f"{mean} ± {deviation(values):.1f}"


def deviation(values: Sequence[float]) -> float:
    """The standard deviation; NaN where a number is not finite, which ``statistics`` stumbles over in Python 3.11."""
    return statistics.stdev(values) if all(map(math.isfinite, values)) else math.nan
