"""Compute the paper's experiments: the missing ones only, the most valuable first, within a time budget."""

import math
import re
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from multistable.ops.checks import check_sizes
from multistable_experiments.engines import Engine, Resources
from multistable_experiments.files import check_writable
from multistable_experiments.paper.compute import Summary, Sweep, free_memory, title
from multistable_experiments.paper.experiments import Experiment, plan
from multistable_experiments.paper.recipes import Recipe
from multistable_experiments.paper.remote import compute_on
from multistable_experiments.paper.settings import Scale
from multistable_experiments.training.loop import Options, OutOfTimeError
from multistable_experiments.training.processes import Processes

__all__ = ["Summary", "parse_duration", "reproduce"]

ENDING = 0.03
"""Nothing is started in this last share of the budget: starting takes seconds (data, kernels, CUDA graph)."""


def reproduce(
    figures: Iterable[str] | None = None,
    scale: Scale = "full",
    recipes: Sequence[Recipe] = ("paper", "best"),
    seeds: int | None = None,
    budget: float | None = None,
    out: Path | str = "runs",
    results: Path | str = "results",
    options: Options | None = None,
    say: Callable[[str], None] = print,
    on: Engine | None = None,
    resources: Resources | None = None,
) -> Summary:
    """Compute what is missing in ``results`` of the experiments behind some figures (None: all), seeds 0, 1, ...

    ``seeds`` is their number (None: each recipe's own). No result is overwritten: a run whose file holds the result of
    another run is skipped.

    After ``budget`` seconds (None: no limit) it stops with a checkpoint in ``out``; the same call resumes to the same
    numbers. A test at another length is not interrupted: a budget that ends within one is exceeded by seconds. The
    result of a finished run goes to ``results`` (see ``store.py``); its checkpoints are removed, and its model stays in
    ``out``.

    ``on`` an engine, each experiment is a task of its own, and all machines see ``out`` and ``results``, or use
    ``options.mirror``, an address where checkpoints, models and results are kept.
    """
    clock = Clock(budget)
    if (count := Processes.join((options or Options()).device).count) > 1:
        raise ValueError(f"reproduce works in one process, got {count}; train single runs with several")
    if seeds is not None:
        check_sizes(1, seeds=seeds)
    experiments = plan(figures, scale, None if seeds is None else range(seeds), recipes)
    if not experiments:
        raise ValueError(
            f"recipe must be one that has runs for these figures, got {' and '.join(recipes)}: tails and "
            "without-positions are by best; copy-first by best waits for its search, `multistable sweep copy-first`"
        )
    options = replace(options or Options(), deadline=clock.deadline)
    sweep = Sweep(scale, Path(out), Path(results), options, say, Summary(len(experiments)))
    sweep.fetch_results()
    missing = [each for each in experiments if not sweep.is_done(each)]
    summary = sweep.summary
    summary.done = summary.planned - len(missing)
    say(f"{summary.planned} experiments at scale {scale}: {summary.done} are there, {len(missing)} to compute")
    if missing:
        check_writable("results", Path(results) / f"{scale}.json")  # before the first run, not after it
    if on is None:
        compute_in_turn(sweep, missing, clock)
    else:
        compute_on(on, sweep, missing, clock.left, resources or Resources())
    sweep.recheck_others()
    say(str(summary))
    return summary


def compute_in_turn(sweep: Sweep, missing: Sequence[Experiment], clock: "Clock") -> None:
    """Compute experiments one after the other in this process."""
    summary = sweep.summary
    for number, experiment in enumerate(missing, start=1):
        if experiment.data in summary.skipped:
            continue
        summary.out_of_time = clock.ending
        if summary.out_of_time:
            break
        sweep.say(f"{number} of {len(missing)}: {title(experiment)}{clock}")
        try:
            sweep.attempt(experiment)
        except OutOfTimeError as stop:
            summary.out_of_time = True
            sweep.say(f"  {stop}")
            break
        finally:
            free_memory()


class Clock:
    """The time left of a budget."""

    def __init__(self, budget: float | None) -> None:
        if budget is not None and not budget > 0:
            raise ValueError(f"budget must be a positive number of seconds, got {budget!r}")
        self.budget = math.inf if budget is None else budget
        self.end = time.perf_counter() + self.budget
        self.deadline = None if budget is None else self.end - ENDING / 3 * budget  # leaves time for a checkpoint

    @property
    def left(self) -> float:
        return self.end - time.perf_counter()

    @property
    def ending(self) -> bool:
        return self.left < ENDING * self.budget

    def __str__(self) -> str:
        if self.deadline is None:
            return ""
        minutes, seconds = divmod(max(0, round(self.left)), 60)
        return f", {minutes}:{seconds:02} left"


def parse_duration(text: str) -> float:
    """Seconds.

    >>> [parse_duration(text) for text in ("9m", "90s", "1h30m", "45")]
    [540.0, 90.0, 5400.0, 45.0]
    """
    match = re.fullmatch(r"(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s?)?", text.strip())
    if not text.strip() or match is None:
        raise ValueError(f"budget must be a duration such as 9m, 90s or 1h30m, got {text!r}")
    hours, minutes, seconds = (float(part or 0) for part in match.groups())
    return 3600 * hours + 60 * minutes + seconds
