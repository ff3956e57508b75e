"""The learning rate of each memory, by the results of its search. Needs neither gymnasium nor torch."""

from collections.abc import Iterable
from statistics import fmean
from typing import Any

__all__ = ["RATES", "SEARCH_SEED", "is_search", "maze_rates", "most_right", "popgym_rates"]

RATES = (1e-3, 3e-4, 3e-3)
"""Those that are tried; the first of equals is taken."""
SEARCH_SEED = 100
"""With which they are tried; the tests have seeds 0, 1, ..."""

Result = dict[str, Any]


def is_search(result: Result) -> bool:
    return result["run"]["seed"] == SEARCH_SEED


def maze_rates(results: Iterable[Result]) -> dict[str, float]:
    """By cell: the rate with most correct turns in training, in percent, a mean of mazes with and without noise."""
    return best_of(results, lambda mean: round(mean, 2), most_right)


def popgym_rates(results: Iterable[Result]) -> dict[str, float]:
    """By cell: the rate with the largest score, as the mean of two tasks."""
    return best_of(results, float, lambda result: result["score"])


def best_of(results: Iterable[Result], rounded: Any, score: Any) -> dict[str, float]:
    found: dict[str, dict[float, list[float]]] = {}
    for result in filter(is_search, results):
        run = result["run"]
        found.setdefault(run["cell"], {rate: [] for rate in RATES})[run["rate"]].append(score(result))
    return {
        cell: max(RATES, key=lambda rate: rounded(fmean(by_rate[rate])))
        for cell, by_rate in found.items()
        if all(by_rate.values())
    }


def most_right(result: Result) -> float:
    """The share of correct turns in the best rollouts in a row of a training."""
    training, window = result["training"], result["run"]["window"]
    return max(sum(training[i : i + window]) / window for i in range(max(1, len(training) - window + 1)))
