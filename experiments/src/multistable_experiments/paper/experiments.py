"""The paper's experiments: the runs behind each figure of its section "Experiments", at three scales.

``FIGURES[name](scale, seed)`` lists the experiments of a figure, those that answer a claim first;
:func:`plan` puts those of several figures and seeds in the order in which they are worth computing.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from multistable.models import PositionConfig
from multistable_experiments.tasks import MNIST, CopyFirst, Pathfinder
from multistable_experiments.training.presets import SCALES, SHORT, Preset, Scale, make_run, preset
from multistable_experiments.training.run import Decay, Precision, Run

__all__ = [
    "DEPTHS",
    "FIGURES",
    "LENGTHS",
    "NOISES",
    "Experiment",
    "TestAt",
    "mnist_name",
    "pathfinder_name",
    "plan",
    "shortened_name",
]

LENGTHS = (100, 1_000, 10_000, 100_000)
NOISES = (1.0, 0.1, math.sqrt(0.1))
"""Standard deviations: N(0, 1), and both readings of N(0, 0.1)."""
BLACK_PIXELS = 1216
DEPTHS = (1, 2, 3)
"""Blocks of the Pathfinder models, the panels of that figure."""
WIDTHS = (128, 256, 512, 1024)
"""State dimensions of the Pathfinder models."""
SHORT_EPOCHS = 10
"""Epochs of the shortened Pathfinder runs at scale ``paper``: on an H200 the twelve of hard images took 17 minutes. All
24 runs of 100 epochs would take 5 hours."""


@dataclass(frozen=True)
class TestAt:
    """A test of a trained model on streamed sequences of one length, with one noise."""

    __test__ = False  # no test of pytest's
    length: int
    noise: float
    samples: int


@dataclass(frozen=True)
class Experiment:
    """A run with a name, and what is measured of the trained model beside the run's own test."""

    configuration: str
    """What it is but for the seed: ``"bmru-T300"``, ``"hybrid-2-blocks-black"``."""
    run: Run
    tests: tuple[TestAt, ...] = ()
    costly: bool = False
    """Whether it comes after all experiments that are not costly, whatever their seeds."""

    @property
    def name(self) -> str:
        return f"{self.configuration}-seed{self.run.seed}"

    @property
    def data(self) -> str:
        """The data set that must be there: ``"mnist"``, ``"pathfinder hard"``."""
        return f"{self.run.task.name} {getattr(self.run.task, 'level', '')}".strip()


# Sizes. ``small`` has the paper's models, fewer epochs and images: about half an hour of an H200 for one seed.
# ``smoke`` has what shows that everything runs: seconds on a CPU.

PAPER_COPY_FIRST, PAPER_MNIST = preset("copy-first", "paper"), preset("mnist", "paper")
PAPER_PATHFINDER = preset("pathfinder", "paper")
COPY_FIRST: dict[Scale, tuple[Preset, tuple[int, int]]] = {
    "paper": (PAPER_COPY_FIRST, (100, 300)),
    "small": (replace(PAPER_COPY_FIRST, epochs=30), (100, 300)),
    "smoke": (Preset(CopyFirst(10, 1.0, 200, 50), 2, 8, 8, 2, 20, SHORT, initial="torch"), (10, 30)),
}
STREAMS: dict[Scale, tuple[tuple[int, ...], int]] = {
    "paper": (LENGTHS, 6_000),
    "small": (LENGTHS, 1_000),
    "smoke": ((10, 100), 20),
}
PERMUTED_MNIST: dict[Scale, tuple[Preset, int]] = {
    "paper": (PAPER_MNIST, BLACK_PIXELS),
    "small": (replace(PAPER_MNIST, epochs=20), BLACK_PIXELS),
    "smoke": (Preset(MNIST(0, True, 40, 10), 2, 8, 8, 1, 12, SHORT, 4), 16),
}
PATHFINDER: dict[Scale, tuple[Preset, tuple[int, ...]]] = {
    "paper": (PAPER_PATHFINDER, WIDTHS),
    "small": (replace(PAPER_PATHFINDER, task=Pathfinder(images=50_000), epochs=SHORT_EPOCHS), WIDTHS),
    "smoke": (Preset(Pathfinder(images=30), 1, 8, 8, 1, 8, SHORT, 4, True), (2, 4, 6, 8)),
}


def precision(scale: Scale) -> Precision:
    """Part of the run, so that it does not depend on the machine: bfloat16 where a GPU is meant."""
    return "float32" if scale == "smoke" else "bfloat16"


def copy_first(scale: Scale = "paper", seed: int = 0) -> list[Experiment]:
    """Figure "Results on the copy-first input benchmark": both cells at T = 100 and 300.

    Two more runs show what the LRU does at T = 300 where its eigenvalues, norms and other vectors are not decayed, and
    where linear maps start with weights that keep the variance.
    """
    base, (short, long) = COPY_FIRST[scale]
    found = []
    for T in (short, long):
        chosen = replace(base, task=replace(base.task, length=T))
        for cell in ("bmru", "lru"):
            run = make_run(chosen, (cell,) * base.blocks, seed=seed, precision=precision(scale))
            found.append(Experiment(f"{cell}-T{T}", run))
    lru = found[-1].run
    usual = replace(lru, decay=Decay(reading="usual"))
    unit = replace(lru, model=replace(lru.model, initial="unit"))
    return [*found, Experiment(f"lru-T{long}-usual-decay", usual), Experiment(f"lru-T{long}-unit-variance", unit)]


def generalisation(scale: Scale = "paper", seed: int = 0) -> list[Experiment]:
    """Figure "Generalization capabilities": the models of T = 100 at greater lengths and with less noise."""
    lengths, samples = STREAMS[scale]
    tests = tuple(TestAt(length, noise, samples) for noise in NOISES for length in lengths)
    short = COPY_FIRST[scale][1][0]
    return [
        replace(experiment, tests=tests) for experiment in copy_first(scale, seed)
        if experiment.run.task.length == short
    ]  # fmt: skip


def permuted_mnist(scale: Scale = "paper", seed: int = 0) -> list[Experiment]:
    """Figure "Results on the permuted sequential MNIST": 3 cells, 2 and 3 blocks, with and without black pixels.

    Three more runs show what positions do: BMRU without them and with them alone, its units not tuned; LRU with them.
    """
    base, black_pixels = PERMUTED_MNIST[scale]
    found = []
    for blocks in (2, 3):
        for cell in ("bmru", "lru", "hybrid"):
            for black in (0, black_pixels):
                chosen = replace(base, task=replace(base.task, black_pixels=black))
                run = make_run(chosen, (cell,) * blocks, seed=seed, precision=precision(scale))
                found.append(Experiment(mnist_name(cell, blocks, black > 0), run))
        if blocks == 2:
            found += with_other_positions(found)
    return found


def mnist_name(cell: str, blocks: int, black: bool = False) -> str:
    """
    >>> mnist_name("hybrid", 2, black=True)
    'hybrid-2-blocks-black'
    """
    return f"{cell}-{blocks}-blocks{'-black' if black else ''}"


def with_other_positions(found: list[Experiment]) -> list[Experiment]:
    runs = {experiment.configuration: experiment.run for experiment in found}
    bmru, lru = runs["bmru-2-blocks"], runs["lru-2-blocks"]
    assert isinstance(bmru.model.position, PositionConfig)
    assert isinstance(lru.model.position, PositionConfig)
    untuned = replace(bmru.model.position, tuning=0.0)
    everywhere = replace(lru.model.position, everywhere=True)
    return [
        Experiment("bmru-2-blocks-no-positions", replace(bmru, model=replace(bmru.model, position=None))),
        Experiment("bmru-2-blocks-untuned", replace(bmru, model=replace(bmru.model, position=untuned))),
        Experiment("lru-2-blocks-positions", replace(lru, model=replace(lru.model, position=everywhere))),
    ]


def pathfinder(scale: Scale = "paper", seed: int = 0) -> list[Experiment]:
    """Figure "Results on the pathfinder benchmark": BMRU of 1, 2 and 3 blocks by 4 widths, hard and easy images.

    At scale ``paper`` there is each of them with the paper's 100 epochs, and shortened (``-10-epochs``). The
    shortened ones and one of full length come first.
    """
    base, widths = PATHFINDER[scale]
    grids = [grid(base, level, widths, seed, scale) for level in ("hard", "easy")]
    whole = [experiment for each in grids for experiment in each]
    if scale != "paper":
        return whole
    first = [e for e in whole if e.configuration == "hard-1-block-256"]
    rest = [replace(e, costly=True) for e in whole if e not in first]
    return [shortened(e) for e in whole] + first + rest


def grid(base: Preset, level: str, widths: Iterable[int], seed: int, scale: Scale) -> list[Experiment]:
    found = []
    for width in widths:
        for blocks in DEPTHS:
            chosen = replace(base, task=replace(base.task, level=level), d_state=width)
            run = make_run(chosen, ("bmru",) * blocks, seed=seed, precision=precision(scale))
            run = run if scale == "paper" else for_epochs(run, run.epochs)
            found.append(Experiment(pathfinder_name(level, blocks, width), run))
    return found


def pathfinder_name(level: str, blocks: int, width: int) -> str:
    """
    >>> pathfinder_name("hard", 1, 256)
    'hard-1-block-256'
    """
    return f"{level}-{blocks}-block{'s' if blocks > 1 else ''}-{width}"


def shortened(experiment: Experiment) -> Experiment:
    """With fewer epochs."""
    run = for_epochs(experiment.run, SHORT_EPOCHS)
    return replace(experiment, configuration=shortened_name(experiment.configuration), run=run)


def shortened_name(configuration: str) -> str:
    return f"{configuration}-{SHORT_EPOCHS}-epochs"


def for_epochs(run: Run, epochs: int) -> Run:
    """The run with few epochs, half of them warm-up: with a rate of 1e-3 from the second epoch on nothing was learned
    (the paper gets there after ten)."""
    return replace(run, epochs=epochs, schedule=replace(run.schedule, warmup_epochs=epochs / 2))


FIGURES: dict[str, Callable[[Scale, int], list[Experiment]]] = {
    "copy-first": copy_first,
    "generalisation": generalisation,
    "permuted-mnist": permuted_mnist,
    "pathfinder": pathfinder,
}


def plan(figures: Iterable[str] | None = None, scale: Scale = "paper", seeds: Iterable[int] = (0,)) -> list[Experiment]:
    """The experiments of some figures (None: of all), each run once, in the order in which they are worth computing.

    All configurations of one seed come before the next seed; what is costly comes last. A run that two figures share
    gets the tests of both.
    """
    names = list(FIGURES if figures is None else figures)
    if unknown := [name for name in names if name not in FIGURES]:
        raise ValueError(f"figure must be one of {', '.join(FIGURES)}, got {unknown[0]!r}")
    if scale not in SCALES:
        raise ValueError(f"scale must be one of {', '.join(SCALES)}, got {scale!r}")
    merged: dict[str, Experiment] = {}
    for seed in seeds:
        for name in names:
            for found in FIGURES[name](scale, seed):
                known = merged.get(found.run.id, found)
                merged[found.run.id] = replace(known, tests=tuple(dict.fromkeys(known.tests + found.tests)))
    return sorted(merged.values(), key=lambda experiment: experiment.costly)  # stable: costly ones last
