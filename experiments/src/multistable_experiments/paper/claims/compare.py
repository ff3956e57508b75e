"""Decide a claim from the records of runs: one number per configuration and seed, compared seed by seed."""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from multistable.models import ModelConfig
from multistable_experiments.paper.claims.claim import Finding
from multistable_experiments.paper.recipes import BEST_EPOCHS, seeds_of
from multistable_experiments.paper.settings import preset
from multistable_experiments.paper.store import Record, by_seed

__all__ = ["Number", "Scores", "compare", "minus", "number", "over_seeds", "points"]

Number = Callable[[Record], float | None]
"""A number of a record; None if the record does not have it."""
Scores = Mapping[str, list[float]]
"""Name -> one number per seed, the same seeds in the same order."""
Test = Callable[[Scores], tuple[bool, str]]
"""Whether a claim holds on these numbers, and the numbers in words."""

CHANCE = {"mnist": 20.0, "pathfinder": 52.0}
"""A mean accuracy in percent up to this one is guessing: twice 10 % on MNIST, and on Pathfinder 50 % and two points."""
TUNED = "with positions each BMRU unit starts with a timestep of its own, which is not in the paper"
HOLDING = "BMRU units start with thresholds of {:g}, which is not in the paper"


def compare(records: Sequence[Record], task: str, configurations: Sequence[str], test: Test) -> Finding:
    """Test a claim on the last epoch of the runs of a task, over the seeds that all configurations have.

    The paper does not say which weights it tests. A note is added if the weights that were best on the validation set
    give another outcome. A comparison of two kinds of layers is undecided if one of the models has learned nothing.
    """
    last = over_seeds(records, task, {name: (name, lambda r: r.score("last")) for name in configurations}, test)
    best = over_seeds(records, task, {name: (name, lambda r: r.score("best")) for name in configurations}, test)
    if None in (last.held, best.held):
        return last
    if guessing := [name for name in configurations if guesses(records, task, name)]:
        kinds = {name.partition("-")[0] for name in configurations}
        last = replace(last.with_note(f"{', '.join(guessing)} learned nothing"), undecided=len(kinds) > 1)
    if last.held == best.held:
        return last
    return last.with_note(f"with the weights best on validation {'held' if best.held else 'not held'}: {best.measured}")


def guesses(records: Sequence[Record], task: str, configuration: str) -> bool:
    """Whether the models of a configuration are at chance, on average over the seeds."""
    scores = [record.score("last") for record in by_seed(records, task, configuration).values()]
    known = [score for score in scores if score is not None]
    return bool(known) and task in CHANCE and statistics.fmean(known) <= CHANCE[task]


def over_seeds(records: Sequence[Record], task: str, numbers: Mapping[str, tuple[str, Number]], test: Test) -> Finding:
    """Test a claim on ``numbers``, name -> (configuration, number), over the seeds that all of them have.

    The claim does not hold if a number is NaN. A failed run counts as NaN: without it, the other seeds could hold a
    claim that this one breaks. A note says how BMRU units start, because the outcome depends on it.
    """
    runs = {name: by_seed(records, task, configuration) for name, (configuration, _) in numbers.items()}
    values: dict[str, dict[int, float]] = {name: {} for name in numbers}
    for name, (_, number_of) in numbers.items():
        for seed, record in runs[name].items():
            value = number_of(record) if record.failure is None else math.nan
            if value is not None:
                values[name][seed] = value
    if missing := [name for name in numbers if not values[name]]:
        others = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        return Finding(None, f"missing: {missing[0]}{others}")
    seeds = sorted(set.intersection(*(set(each) for each in values.values())))
    if not seeds:
        return Finding(None, "no seed that all of them have")
    used = [each[seed] for each in runs.values() for seed in seeds]
    failed = {record.run.seed for record in used if record.failure}
    scores = {name: [each[seed] for seed in seeds if seed not in failed] for name, each in values.items()}
    names = ", ".join(sorted({record.name for record in used if record.failure}))
    if len(failed) == len(seeds):
        held, words = False, f"failed: {names}"
    else:
        held, words = test(scores)
        held = held and not failed and not any(math.isnan(value) for each in scores.values() for value in each)
        words += f", but failed: {names}" if failed else ""
    epochs = sorted({record.run.epochs for record in used})
    recipe = used[0].recipe
    planned = BEST_EPOCHS[task] if recipe == "best" else preset(task, "full").epochs
    needed = min(seeds_of(recipe, record.run) for record in used)
    finding = Finding(held, words, "", tuple(seeds), tuple(epochs), planned, needed)
    return note_start(finding, [record.run.model for record in used])


def note_start(finding: Finding, models: Sequence[ModelConfig]) -> Finding:
    """Note how the BMRU units of these models start, where that is a decision of ours."""
    if any(m.position is not None and m.position.tuning > 0 and m.has_bmru for m in models):
        finding = finding.with_note(TUNED)
    for beta_bias in sorted({model.beta_bias for model in models} - {0}):
        finding = finding.with_note(HOLDING.format(beta_bias))
    return finding


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
    """The same for percentages, with one decimal.

    >>> points([97.34]), points([1.0, 2.0], sign=True)
    ('97.3', '+1.5 ± 0.7')
    """
    mean = f"{statistics.fmean(values):{'+' if sign else ''}.1f}"
    return mean if len(values) == 1 else f"{mean} ± {deviation(values):.1f}"


def deviation(values: Sequence[float]) -> float:
    """The standard deviation; NaN if a number is not finite, for which ``statistics`` raises in Python 3.11."""
    return statistics.stdev(values) if all(map(math.isfinite, values)) else math.nan
