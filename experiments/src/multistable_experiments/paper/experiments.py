"""The paper's experiments: the runs behind each figure of its section "Experiments", at three scales.

``EXPERIMENTS[figure](scale, seed)`` lists the experiments of a figure, those that decide a claim first.
:func:`plan` merges those of several figures and seeds in the order in which they are worth computing.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from multistable.models import PositionConfig
from multistable_experiments.paper.settings import (
    COPY_FIRST,
    DEPTHS,
    NOISES,
    PATHFINDER,
    PERMUTED_MNIST,
    SCALES,
    SHORT_EPOCHS,
    STREAMS,
    Scale,
    for_epochs,
    make_run,
    precision,
)
from multistable_experiments.tasks.mnist import Tail
from multistable_experiments.training.run import Run

__all__ = ["EXPERIMENTS", "Experiment", "TailAt", "TestAt", "mnist_name", "pathfinder_name", "plan", "shortened_name"]


@dataclass(frozen=True)
class TestAt:
    """A test of a trained model on streamed sequences of one length and noise."""

    __test__ = False  # not a test case of pytest
    length: int
    noise: float
    samples: int


@dataclass(frozen=True)
class TailAt:
    """A test of a model trained on MNIST with a tail of another length or kind."""

    tail: Tail
    pixels: int
    samples: int
    held: bool
    """Whether positions stay at the last one of the training; False for models without positions."""


@dataclass(frozen=True)
class Experiment:
    """A run with a name, and the tests of the trained model beside the run's own."""

    configuration: str
    """The configuration's name, without the seed: ``"bmru-T300"``, ``"hybrid-2-blocks-black"``."""
    run: Run
    tests: tuple[TestAt | TailAt, ...] = ()
    costly: bool = False
    """Costly experiments come after all others, whatever their seeds."""

    @property
    def name(self) -> str:
        return f"{self.configuration}-seed{self.run.seed}"

    @property
    def data(self) -> str:
        """The data set it needs: ``"mnist"``, ``"pathfinder hard"``."""
        return f"{self.run.task.name} {getattr(self.run.task, 'level', '')}".strip()


def copy_first(scale: Scale = "paper", seed: int = 0) -> list[Experiment]:
    """Figure "Results on the copy-first input benchmark": both layers at T = 100 and 300.

    Two more runs show what the LRU does at T = 300 without decay of its eigenvalues, norms and other vectors, and with
    linear maps whose first weights keep the variance.
    """
    base, (short, long) = COPY_FIRST[scale]
    experiments = []
    for T in (short, long):
        preset = replace(base, task=replace(base.task, length=T))
        for cell in ("bmru", "lru"):
            run = make_run(preset, (cell,) * base.blocks, seed=seed, precision=precision(scale))
            experiments.append(Experiment(f"{cell}-T{T}", run))
    lru = experiments[-1].run
    usual = replace(lru, decay=replace(lru.decay, reading="usual"))
    unit = replace(lru, model=replace(lru.model, initial="unit"))
    variants = [Experiment(f"lru-T{long}-usual-decay", usual), Experiment(f"lru-T{long}-unit-variance", unit)]
    return experiments + variants


def generalisation(scale: Scale = "paper", seed: int = 0) -> list[Experiment]:
    """Figure "Generalization capabilities": the models of T = 100 at greater lengths and with less noise."""
    lengths, samples = STREAMS[scale]
    tests = tuple(TestAt(length, noise, samples) for noise in NOISES for length in lengths)
    _, (short, _) = COPY_FIRST[scale]
    return [replace(each, tests=tests) for each in copy_first(scale, seed) if each.run.task.length == short]


def permuted_mnist(scale: Scale = "paper", seed: int = 0) -> list[Experiment]:
    """Figure "Results on the permuted sequential MNIST": 3 layers, 2 and 3 blocks, with and without black pixels.

    Three more runs show what positions do: BMRU without them; BMRU with them, its units not tuned; LRU with them.
    """
    base, black_pixels = PERMUTED_MNIST[scale]
    experiments = []
    for blocks in (2, 3):
        for cell in ("bmru", "lru", "hybrid"):
            for black in (0, black_pixels):
                preset = replace(base, task=replace(base.task, black_pixels=black))
                run = make_run(preset, (cell,) * blocks, seed=seed, precision=precision(scale))
                experiments.append(Experiment(mnist_name(cell, blocks, black > 0), run))
        if blocks == 2:
            experiments += position_variants(experiments)
    return experiments


def mnist_name(cell: str, blocks: int, black: bool = False) -> str:
    """
    >>> mnist_name("hybrid", 2, black=True)
    'hybrid-2-blocks-black'
    """
    return f"{cell}-{blocks}-blocks{'-black' if black else ''}"


def position_variants(experiments: list[Experiment]) -> list[Experiment]:
    runs = {experiment.configuration: experiment.run for experiment in experiments}
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

    Scale ``paper`` has each of them with the paper's 100 epochs, and shortened (``-10-epochs``). The shortened ones and
    one of full length come first.
    """
    base, widths = PATHFINDER[scale]
    whole = []
    for level in ("hard", "easy"):
        for width in widths:
            for blocks in DEPTHS:
                preset = replace(base, task=replace(base.task, level=level), d_state=width)
                run = make_run(preset, ("bmru",) * blocks, seed=seed, precision=precision(scale))
                whole.append(Experiment(pathfinder_name(level, blocks, width), run))
    if scale != "paper":
        return [replace(each, run=for_epochs(each.run, base.epochs)) for each in whole]
    short = [
        replace(each, configuration=shortened_name(each.configuration), run=for_epochs(each.run, SHORT_EPOCHS))
        for each in whole
    ]
    first = [each for each in whole if each.configuration == "hard-1-block-256"]
    return short + first + [replace(each, costly=True) for each in whole if each not in first]


def pathfinder_name(level: str, blocks: int, width: int) -> str:
    """
    >>> pathfinder_name("hard", 1, 256)
    'hard-1-block-256'
    """
    return f"{level}-{blocks}-block{'s' if blocks > 1 else ''}-{width}"


def shortened_name(configuration: str) -> str:
    return f"{configuration}-{SHORT_EPOCHS}-epochs"


EXPERIMENTS: dict[str, Callable[[Scale, int], list[Experiment]]] = {
    "copy-first": copy_first,
    "generalisation": generalisation,
    "permuted-mnist": permuted_mnist,
    "pathfinder": pathfinder,
}
"""Figure -> its experiments."""


def plan(figures: Iterable[str] | None = None, scale: Scale = "paper", seeds: Iterable[int] = (0,)) -> list[Experiment]:
    """The experiments of some figures (None: all), each run once, in the order in which they are worth computing.

    All configurations of one seed come before the next seed; costly ones come last. A run that two figures share gets
    the tests of both.
    """
    names = list(EXPERIMENTS if figures is None else figures)
    if unknown := [name for name in names if name not in EXPERIMENTS]:
        raise ValueError(f"figure must be one of {', '.join(EXPERIMENTS)}, got {unknown[0]!r}")
    if scale not in SCALES:
        raise ValueError(f"scale must be one of {', '.join(SCALES)}, got {scale!r}")
    merged: dict[str, Experiment] = {}
    for seed in seeds:
        for name in names:
            for each in EXPERIMENTS[name](scale, seed):
                known = merged.get(each.run.id, each)
                merged[each.run.id] = replace(known, tests=tuple(dict.fromkeys(known.tests + each.tests)))
    return sorted(merged.values(), key=lambda experiment: experiment.costly)  # a stable sort
