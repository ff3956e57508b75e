"""Made-up records for tests of code that reads records. By default every claim holds on them."""

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from typing import Any

from multistable_experiments.paper import store
from multistable_experiments.paper.experiments import Experiment, TailAt, plan
from multistable_experiments.paper.settings import LENGTHS, NOISES
from multistable_experiments.paper.store import Record

RESULTS = Path(__file__).parents[1] / "results"

MACHINE = {
    "processor": "a processor", "cores": 2, "threads": 2, "gpu": "a GPU", "platform": "a system", "python": "3.11",
    "multistable": "0", "torch": "2", "numba": None, "triton": None, "commit": "0123456789abcdef", "dirty": False,
    "date": "2026-01-01T00:00:00+00:00",
}  # fmt: skip
SCORES: dict[str, float] = {
    "bmru-T100": 0.001, "lru-T100": 0.0005, "bmru-T300": 0.003, "lru-T300": 1.0, "lru-T300-usual-decay": 2e-5,
    "lru-T300-unit-variance": 2e-4,
    "bmru-2-blocks": 93, "bmru-2-blocks-black": 92, "bmru-2-blocks-no-positions": 60, "bmru-2-blocks-untuned": 85,
    "counter-2-blocks-no-positions": 50,
    "lru-2-blocks": 97, "lru-2-blocks-black": 80, "lru-2-blocks-positions": 95,
    "hybrid-2-blocks": 97, "hybrid-2-blocks-black": 96.5,
    "bmru-3-blocks": 95, "bmru-3-blocks-black": 94.5, "lru-3-blocks": 97.5, "lru-3-blocks-black": 94,
    "hybrid-3-blocks": 97.6, "hybrid-3-blocks-black": 97.2,
}  # fmt: skip
"""Errors of copy-first and accuracies of MNIST in percent, by configuration."""
STREAMS: dict[tuple[str, int, float], float] = {
    **{("bmru", T, 1.0): error for T, error in zip(LENGTHS, (0.001, 0.002, 0.01, 0.1), strict=True)},
    **{("lru", T, 1.0): error for T, error in zip(LENGTHS, (0.0005, 0.9, 1.0, 1.0), strict=True)},
    **{("bmru", T, noise): 0.0009 for T in LENGTHS for noise in NOISES[1:]},
    **{("lru", T, noise): 0.9 for T in LENGTHS for noise in NOISES[1:]},
}
"""Errors of the models trained at T = 100, by layer, length and noise."""
RESTORED = 0.002
"""Error of the BMRU trained at T = 100, at every length, with overwritten values put back."""


def pathfinder_score(blocks: int, width: int) -> float:
    """Twice the width gains six points, each further block loses 1.5."""
    return 62 + 6 * math.log2(width / 128) - 1.5 * (blocks - 1)


def make(
    experiment: Experiment,
    scores: Mapping[str, float] = SCORES,
    streams: Mapping[tuple[str, int, float], float] = STREAMS,
    restored: float | None = RESTORED,
    grid: Callable[[int, int], float] = pathfinder_score,
    best: Mapping[str, float] | None = None,
) -> Record:
    """The record of an experiment; ``best`` holds scores of the best epoch where they differ from the last."""
    run = experiment.run
    model, metric = run.model, run.task.metric
    on_grid = run.task.name == "pathfinder"
    score = grid(len(model.cells), model.d_state) if on_grid else scores[experiment.configuration]
    score *= 1 + 0.001 * (run.seed - 2)  # the mean over seeds 0 to 4 is the table's value
    best_score = (best or {}).get(experiment.configuration, score)
    percent = 100 if metric == "accuracy" else 1
    metrics = {
        "last": {"epoch": run.epochs, "valid_loss": 0.5, f"test_{metric}": score / percent},
        "best": {"epoch": 1, "valid_loss": 0.4, f"test_{metric}": best_score / percent},
    }
    tests: list[dict[str, Any]] = []
    for i, test in enumerate(experiment.tests):
        if isinstance(test, TailAt):
            tests.append(asdict(test) | {"accuracy": score / 100 - i / 1000, "same": 1.0})
            continue
        cell = model.cells[0]
        found = {"length": test.length, "noise": test.noise, "samples": test.samples}
        found["mse"] = streams.get((cell, test.length, test.noise), score)
        if cell == "bmru" and restored is not None:
            found |= {"stored": 400.0, "overwritten": test.length / 1000, "intact": 5000, "restored": restored}
        tests.append(found)
    history = {"epoch": [1, run.epochs], "train_loss": [1.0, 0.1], "valid_loss": [1.0, 0.1]}
    return Record(
        experiment.configuration, "full", run, 1000, metrics, history, 12.0, 1e6, MACHINE, tests=tests,
        recipe=experiment.recipe,
    )  # fmt: skip


@cache
def planned(seeds: tuple[int, ...], figures: tuple[str, ...] | None) -> list[Experiment]:
    return plan(figures, "full", seeds, ("tuned",))


def records(seeds: Iterable[int] = range(5), figures: Iterable[str] | None = None, **changes: Any) -> list[Record]:
    """Records of all of the paper's experiments, or of some figures."""
    experiments = planned(tuple(seeds), None if figures is None else tuple(figures))
    return [make(experiment, **changes) for experiment in experiments]


def changed_scores(**changes: float) -> dict[str, Any]:
    """Arguments of :func:`records` with other scores for some configurations."""
    return {"scores": SCORES | {name.replace("_", "-"): value for name, value in changes.items()}}


def changed_stream(cell: str, length: int, noise: float, error: float) -> dict[str, Any]:
    """Arguments of :func:`records` with another error at one length and noise."""
    return {"streams": STREAMS | {(cell, length, noise): error}}


def with_failures(records: Sequence[Record], pattern: str) -> list[Record]:
    """The same records, except that the runs whose names match have failed."""
    return [replace(r, metrics={}, tests=[], failure="NaN") if re.search(pattern, r.name) else r for r in records]


def save(folder: Path, records: Sequence[Record]) -> Path:
    for record in records:
        store.write(folder, record)
    return folder
