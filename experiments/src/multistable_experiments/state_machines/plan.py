"""What is computed: the studies of machines and the comparison with other layers."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from multistable_experiments.state_machines.rivals import CELLS, RATES, SEARCH_SEED, Contest
from multistable_experiments.state_machines.store import stored
from multistable_experiments.state_machines.training import Training
from multistable_experiments.tasks.state_tracking import machine

__all__ = ["CONTESTS", "RECIPES", "SMOKE", "STUDIES", "chosen_rate", "contests", "trainings"]

SMOKE = ("parity", "Z3", "S3", "flip-flop")
LARGE = Training("A5", lengths="log", length=8, units=24, states=5, batch=256, updates=4_000, decay=0.1)
RECIPES = {
    "Z6": Training("Z6", lengths="log"),
    "D4": Training("D4", lengths="log"),
    "A4": Training("A4", lengths="log", updates=4_000),
    "S4": replace(LARGE, machine="S4", states=4),
    "A5": LARGE,
    "dyck": replace(LARGE, machine="dyck", length=16, units=6, states=16, decay=0.01, rate=5e-3, broken=0.5),
}
"""How larger machines are trained. A unit has at most 16 states; for S4 and A5, units track the points they permute."""
LAST = [Training(name, answers="last", lengths="log") for name in SMOKE]
WIDE = Training("", units=16, lengths="log", decay=0.1, idle=0.9, idle_symbols=4)
IDLE = [replace(WIDE, machine=name, states=machine(name).n_states) for name in SMOKE]
STUDIES: dict[str, list[Training]] = {
    "every": [Training(name) for name in SMOKE],
    "last": LAST,
    "large": [each for name, each in RECIPES.items() if name != "dyck"],
    "idle": IDLE + [replace(each, answers="last", batch=256, updates=4_000) for each in IDLE],
    "brackets": [RECIPES["dyck"]],
    "noise": [Training(name, surrogate=kind) for name in SMOKE for kind in ("margin", "gumbel")],
}
CONTESTS = {name: Contest(name, "fsm", 0.0, 0, 5_000) for name in ("parity", "S3", "flip-flop", "Z3")} | {
    "A5": Contest("A5", "fsm", 0.0, 0, 30_000, length=32, lengths="log", batch=128, states=5, decay=0.1)
}
"""The comparison: as many parameters, and what is read in training."""


def trainings(study: str, seeds: int = 5) -> list[Training]:
    return [replace(each, seed=seed) for each in STUDIES[study] for seed in range(seeds)]


def contests(folder: Path, seeds: int = 5, names: tuple[str, ...] = tuple(CONTESTS)) -> Iterator[Contest]:
    """The search of every layer, and where that is stored, the runs with the rate that it chose."""
    for name in names:
        for cell in CELLS:
            search = [replace(CONTESTS[name], cell=cell, rate=rate, seed=SEARCH_SEED) for rate in RATES]
            yield from search
            rate = chosen_rate(search, folder)
            if rate is not None:
                yield from (replace(search[0], rate=rate, seed=seed) for seed in range(seeds))


def chosen_rate(search: list[Contest], folder: Path) -> float | None:
    """The rate whose model fails last in the check during training, by the loss where they are equal; None while a run
    is missing."""
    found: list[tuple[tuple[float, float], float]] = []
    for each in search:
        if (result := stored(each, folder)) is None:
            return None
        found.append((quality(result), each.rate))
    return min(found)[1]


def quality(result: dict[str, Any]) -> tuple[float, float]:
    """Smaller is better. The test is not looked at."""
    failed = result["check"]["failing_length"]
    return -float("inf") if failed is None else -float(failed), result["loss"]
