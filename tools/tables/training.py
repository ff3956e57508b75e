"""Trainings: all runs, README's table, what remains after long tails, claims, searches."""

import json
import sys
from collections.abc import Callable

from tables.common import RESULTS, ROOT, commits_of, markdown_table, numeric_order, tied


def load_results() -> dict[str, list[dict]]:
    """All runs, one list per configuration, ``{"tuned/mnist/lru-2-blocks": [seed 0, seed 1], ...}``."""
    configurations: dict[str, list[dict]] = {}
    for path in sorted(RESULTS.glob("*/*/*.json"), key=numeric_order):
        result = json.loads(path.read_text())
        folder = path.parent.relative_to(RESULTS)
        configurations.setdefault(f"{folder}/{result['configuration']}", []).append(result)
    return configurations


def all_runs() -> str:
    """Every configuration: test metric at the last epoch and at the epoch with the best validation metric."""
    configurations = load_results()
    rows = []
    for name, results in configurations.items():
        recipe, task, configuration = name.split("/")
        last, best = (
            mean_and_range([test_metric(r["metrics"][epoch]) for r in results if epoch in r["metrics"]], is_error(task))
            for epoch in ("last", "best")
        )
        seconds = f"{sum(r['seconds'] for r in results) / len(results):.0f}"
        commits = ", ".join(sorted({commits_of(r["machine"]) for r in results}))
        rows.append(
            (
                recipe,
                task,
                f"`{configuration}`",
                results[0]["run"]["epochs"],
                seeds(results),
                last,
                best,
                seconds,
                commits,
            )
        )
    runs = sum(map(len, configurations.values()))
    header = "recipe, task, configuration, epochs, seeds, last epoch, best epoch, seconds, commit"
    return f"{runs} runs of {len(configurations)} configurations:\n\n{markdown_table(header, rows)}"


def seeds(results: list[dict]) -> str:
    """How many runs a mean stands for.

    >>> seeds([{"failure": None}] * 2), seeds([{"failure": None}, {"failure": "the loss is not finite"}])
    ('2', '2, 1 of them failed')
    """
    failed = sum(result["failure"] is not None for result in results)
    return f"{len(results)}, {failed} of them failed" if failed else f"{len(results)}"


def is_error(task: str) -> bool:
    return task == "copy-first"


def test_metric(metrics: dict) -> float:
    """The error, or the accuracy in percent."""
    return metrics["test_mse"] if "test_mse" in metrics else 100 * metrics["test_accuracy"]


def mean_and_range(values: list[float], error: bool) -> str:
    """
    >>> mean_and_range([0.001, 0.003], error=True), mean_and_range([98.04], error=False)
    ('0.002 (0.001 to\\xa00.003)', '98.0\\xa0%')
    """
    if not values:
        return "failed"
    mean, low, high = (
        f"{x:.2g}" if error else tied(f"{x:.1f} %") for x in (sum(values) / len(values), min(values), max(values))
    )
    return mean if len(values) == 1 else f"{mean} ({low} {tied(f'to {high})')}"


def headline_results() -> str:
    """README's table: BMRU, LRU and hybrid on the same task."""
    results = load_results()

    def last_epoch(name: str) -> str:
        return with_seeds([test_metric(r["metrics"]["last"]) for r in results[name]], is_error(name.split("/")[1]))

    def at_length(name: str, length: int) -> str:
        errors = [t["mse"] for r in results[name] for t in r["tests"] if (t["length"], t["noise"]) == (length, 1.0)]
        return with_seeds(errors, error=True)

    def after(recipe: str, kind: str) -> tuple[str, ...]:
        """MNIST by BMRU, LRU and hybrid."""
        return tuple(last_epoch(f"{recipe}/mnist/{layer}-{kind}") for layer in ("bmru", "lru", "hybrid"))

    def copied(recipe: str, measure: Callable[[str], str]) -> tuple[str, ...]:
        return *(measure(f"{recipe}/copy-first/{layer}") for layer in ("bmru", "lru")), ""

    def at_longest(name: str) -> str:
        return with_seeds([100 * test["accuracy"] for r in results[name] for test in longest(r)], error=False)

    million = (at_longest(f"best/mnist/{layer}-3-blocks-random") for layer in ("bmru", "lru", "hybrid"))
    long_copy, longer = "Copy the first of 300 numbers, error", "Trained on 100 numbers, tested on 100,000, error"
    pixels = "— and 1,216 black pixels after the image"
    rows = [
        ("Permuted MNIST, 3 blocks", "best", *after("best", "3-blocks")),
        (pixels, "best", *after("best", "3-blocks-black")),
        ("— and a million random ones, trained with 1,216", "best", *million),
        ("Permuted MNIST, 2 blocks", "best", *after("best", "2-blocks")),
        (pixels, "best", *after("best", "2-blocks-black")),
        ("Permuted MNIST, 2 blocks", "paper", *after("paper", "2-blocks")),
        (long_copy, "paper", *copied("paper", lambda name: last_epoch(name + "-T300"))),
        (longer, "paper", *copied("paper", lambda name: at_length(name + "-T100", 100_000))),
        ("Pathfinder, hard, 10 epochs", "tuned", last_epoch("tuned/pathfinder/hard-3-blocks-1024-10-epochs"), "", ""),
    ]
    return markdown_table("task, recipe, BMRU, LRU, hybrid", rows)


def longest(result: dict) -> list[dict]:
    """The tests with the longest tail, positions held if there are any."""
    most = max(test["pixels"] for test in result["tests"])
    tests = [test for test in result["tests"] if test["pixels"] == most]
    return [test for test in tests if test["held"]] or tests


TAIL_LENGTHS = 1_216, 4_096, 65_536, 1_000_000


def tails() -> str:
    """Accuracies after ever longer tails, with positions held, of the models trained with each tail."""
    rows = []
    for name, results in load_results().items():
        recipe, task, configuration = name.split("/")
        if (recipe, task) != ("best", "mnist") or "-blocks-" not in configuration:
            continue
        trained_with = configuration.rpartition("-")[2]
        for tail in dict.fromkeys(test["tail"] for test in results[0]["tests"]):
            cells = [after_tail(results, tail, pixels) for pixels in TAIL_LENGTHS]
            rows.append((NAMES[configuration.partition("-")[0]], trained_with, tail, *cells))
    header = "layer; trained with; tested with; " + "; ".join(f"{pixels:,}" for pixels in TAIL_LENGTHS)
    return markdown_table(header, sorted(rows, key=lambda row: (TAILS.index(row[1]), TAILS.index(row[2]), row[0])))


NAMES = {"bmru": "BMRU", "lru": "LRU", "hybrid": "hybrid", "mingru": "minGRU"}
TAILS = ["black", "random", "images"]


def after_tail(results: list[dict], tail: str, pixels: int) -> str:
    tests = [test for result in results for test in result["tests"] if (test["tail"], test["pixels"]) == (tail, pixels)]
    held = [test for test in tests if test["held"]] or tests  # a model without positions has none to hold
    return mean_and_range([100 * test["accuracy"] for test in held], error=False)


def with_seeds(values: list[float], error: bool) -> str:
    """Their mean; of errors, which may differ by orders of magnitude, also the least and the greatest.

    >>> with_seeds([98.0, 98.4], error=False), with_seeds([0.00023], error=True), with_seeds([0.1, 0.3], error=True)
    ('98.2 % (2 seeds)', '0.00023 (1 seed)', '0.2 (0.1 to 0.3, 2 seeds)')
    """
    mean = sum(values) / len(values)
    seeds = f"{len(values)} seed{'s' if len(values) > 1 else ''}"
    if error and len(values) > 1:
        seeds = f"{min(values):.2g} to {max(values):.2g}, {seeds}"
    return f"{mean:.2g} ({seeds})" if error else f"{mean:.1f} % ({seeds})"


def claims() -> str:
    """The claims of the paper with their verdicts by each recipe."""
    sys.path[:0] = [str(ROOT / "src"), str(ROOT / "experiments" / "src")]  # these sources, not installed ones
    from multistable_experiments.paper import store
    from multistable_experiments.paper.claims import measure_all
    from multistable_experiments.paper.claims.table import markdown
    from multistable_experiments.paper.recipes import RECIPES

    return markdown(measure_all(store.load(RESULTS), RESULTS, RECIPES))


def searches() -> str:
    """The trials behind the recipe ``best``."""
    rows = []
    for path in sorted((RESULTS / "search").glob("*.json")):
        found = json.loads(path.read_text())
        scores = [trial["score"] for trial in found["trials"]]
        best = found["trials"][found["best"]]
        chosen = ", ".join(f"{name} {value:.4g}" for name, value in best["parameters"].items())
        score = f"{best['score']:.4g}" if is_error(found["task"]) else f"{100 * best['score']:.1f} %"
        seconds = f"{sum(trial['seconds'] for trial in found['trials']):.0f}"
        given_up = sum(trial["end"] == "given up" for trial in found["trials"])
        commit = commits_of(found["machine"])
        rows.append((found["task"], found["layer"], len(scores), given_up, score, chosen, seconds, commit))
    return markdown_table("task; layer; trials; given up; best on validation; chosen; seconds; commit", rows)
