"""The experiments: the runs behind each figure of the paper's section "Experiments", at three scales, by three recipes.

``EXPERIMENTS[figure](scale, seed, recipe)`` lists the experiments of a figure, those that decide a claim first.
:func:`plan` merges those of several figures, seeds and recipes in the order in which they are worth computing.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import get_args

from multistable.layers.registry import find_layer
from multistable.models import PositionConfig
from multistable_experiments.paper.recipes import RECIPES, SEEDS, Recipe, by_best, by_paper, seeds_of
from multistable_experiments.paper.settings import (
    COPY_FIRST,
    DEEP_PATHFINDER,
    DEPTHS,
    NOISES,
    PATHFINDER,
    PERMUTED_MNIST,
    SCALES,
    SHORT_EPOCHS,
    STREAMS,
    TAILS,
    Preset,
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
    recipe: Recipe = "tuned"

    @property
    def name(self) -> str:
        return f"{self.configuration}-seed{self.run.seed}"

    @property
    def data(self) -> str:
        """The data set it needs: ``"mnist"``, ``"pathfinder hard"``."""
        return f"{self.run.task.name} {getattr(self.run.task, 'level', '')}".strip()


def experiments(
    preset: Preset, cells: tuple[str, ...], name: str, scale: Scale, seed: int, recipe: Recipe
) -> list[Experiment]:
    """The experiment of a preset by a recipe; none if the search of its layer is still to be done."""
    run: Run | None = make_run(preset, cells, seed=seed, precision=precision(scale))
    if recipe != "tuned":
        run = by_paper(run) if recipe == "paper" else by_best(run)
    return [] if run is None else [Experiment(name, run, recipe=recipe)]


def copy_first(scale: Scale = "full", seed: int = 0, recipe: Recipe = "tuned") -> list[Experiment]:
    """Figure "Results on the copy-first input benchmark": both layers at T = 100 and 300; by ``best`` also minGRU and
    GRU.

    By ``tuned``, two more runs show what the LRU does at T = 300 without decay of its eigenvalues, norms and other
    vectors, and with linear maps whose first weights keep the variance.
    """
    base, (short, long) = COPY_FIRST[scale]
    found = []
    for T in (short, long):
        preset = replace(base, task=replace(base.task, length=T))
        for cell in ("bmru", "lru") if recipe != "best" else ("bmru", "lru", "mingru", "gru"):
            found += experiments(preset, (cell,) * base.blocks, f"{cell}-T{T}", scale, seed, recipe)
    if recipe != "tuned":
        return found
    lru = found[-1].run
    usual = replace(lru, decay=replace(lru.decay, reading="usual"))
    unit = replace(lru, model=replace(lru.model, initial="unit"))
    variants = [Experiment(f"lru-T{long}-usual-decay", usual), Experiment(f"lru-T{long}-unit-variance", unit)]
    return found + variants


def generalisation(scale: Scale = "full", seed: int = 0, recipe: Recipe = "tuned") -> list[Experiment]:
    """Figure "Generalization capabilities": the models of T = 100 at greater lengths and with less noise."""
    lengths, samples = STREAMS[scale]
    tests = tuple(TestAt(length, noise, samples) for noise in NOISES for length in lengths)
    _, (short, _) = COPY_FIRST[scale]
    return [replace(each, tests=tests) for each in copy_first(scale, seed, recipe) if each.run.task.length == short]


def permuted_mnist(scale: Scale = "full", seed: int = 0, recipe: Recipe = "tuned") -> list[Experiment]:
    """Figure "Results on the permuted sequential MNIST": 3 layers, 2 and 3 blocks, with and without black pixels; by
    ``best`` also minGRU.

    More runs show what positions do: BMRU without them; LRU with them; by ``tuned`` BMRU whose units are not tuned, and
    units that count without positions.
    """
    base, black_pixels = PERMUTED_MNIST[scale]
    found = []
    for blocks in (2, 3):
        for cell in ("bmru", "lru", "hybrid") if recipe != "best" else ("bmru", "lru", "hybrid", "mingru"):
            for black in (0, black_pixels):
                preset = replace(base, task=replace(base.task, black_pixels=black))
                name = mnist_name(cell, blocks, "black" if black else None)
                found += experiments(preset, (cell,) * blocks, name, scale, seed, recipe)
        if blocks == 2 and recipe != "best":
            found += position_variants(found, recipe)
    return found


def mnist_name(cell: str, blocks: int, tail: Tail | None = None) -> str:
    """
    >>> mnist_name("hybrid", 2, "black")
    'hybrid-2-blocks-black'
    """
    return f"{cell}-{blocks}-blocks{f'-{tail}' if tail else ''}"


def position_variants(found: list[Experiment], recipe: Recipe) -> list[Experiment]:
    runs = {experiment.configuration: experiment.run for experiment in found}
    bmru, lru = runs["bmru-2-blocks"], runs["lru-2-blocks"]
    assert isinstance(bmru.model.position, PositionConfig)
    assert isinstance(lru.model.position, PositionConfig)
    untuned = replace(bmru.model.position, tuning=0.0)
    everywhere = replace(lru.model.position, everywhere=True)
    variants = {
        "bmru-2-blocks-no-positions": replace(bmru, model=replace(bmru.model, position=None)),
        "bmru-2-blocks-untuned": replace(bmru, model=replace(bmru.model, position=untuned)),
        "lru-2-blocks-positions": replace(lru, model=replace(lru.model, position=everywhere)),
        "counter-2-blocks-no-positions": replace(
            bmru, model=replace(bmru.model, cells=("counter",) * 2, position=None)
        ),
    }
    if recipe == "paper":
        del variants["bmru-2-blocks-untuned"]  # no run of this recipe is tuned
        del variants["counter-2-blocks-no-positions"]  # no unit of the paper
    return [Experiment(name, run, recipe=recipe) for name, run in variants.items()]


def tails(scale: Scale = "full", seed: int = 0, recipe: Recipe = "best") -> list[Experiment]:
    """Figure "How long it lasts": models of 3 blocks by ``best``, trained with a tail, tested with longer ones.

    Those trained with black pixels are tested with all tails, those trained with other pixels with tails of their kind.
    """
    if recipe != "best":
        return []
    base, count = PERMUTED_MNIST[scale]
    found = []
    for tail in get_args(Tail):
        preset = replace(base, task=replace(base.task, black_pixels=count, tail=tail))
        for cell in ("bmru", "lru", "hybrid", "mingru"):
            for each in experiments(preset, (cell,) * 3, mnist_name(cell, 3, tail), scale, seed, recipe):
                kinds = get_args(Tail) if tail == "black" else (tail,)
                found.append(
                    replace(each, tests=tuple(test for kind in kinds for test in tail_tests(each, kind, scale)))
                )
    return found


def tail_tests(experiment: Experiment, tail: Tail, scale: Scale) -> list[TailAt]:
    """A model with positions is tested with held ones, and with black pixels also with those that go on."""
    position, cell = experiment.run.model.position, experiment.run.model.cells[0]
    positions = position is not None and (position.everywhere or find_layer(cell)[0].takes_position)
    held = (False,) if not positions else (True, False) if tail == "black" else (True,)
    return [TailAt(tail, pixels, samples, each) for each in held for pixels, samples in TAILS[scale]]


def without_positions(scale: Scale = "full", seed: int = 0, recipe: Recipe = "best") -> list[Experiment]:
    """Figure "Without positions": sequential MNIST by the standard protocol, permuted and in order, by ``best``; also
    stacks whose first layer is an LRU, which can make a clock for the BMRU above it."""
    if recipe != "best":
        return []
    base, _ = PERMUTED_MNIST[scale]
    found = []
    for permuted in (True, False):
        preset = replace(base, task=replace(base.task, permuted=permuted), position_dim=0)
        for cells in (("bmru",) * 3, ("lru",) * 3, ("hybrid",) * 3, ("mingru",) * 3, ("lru", "bmru", "bmru")):
            kind = cells[0] if len(set(cells)) == 1 else "+".join(cells)
            name = f"{kind}-3-blocks-{'permuted' if permuted else 'in-order'}-no-positions"
            found += experiments(preset, cells, name, scale, seed, recipe)
    return found


def pathfinder(scale: Scale = "full", seed: int = 0, recipe: Recipe = "tuned") -> list[Experiment]:
    """Figure "Results on the pathfinder benchmark": BMRU of 1, 2 and 3 blocks by 4 widths, hard and easy images.

    Scale ``full`` has each of them with the paper's 100 epochs, and by ``tuned`` shortened (``-10-epochs``). The
    shortened ones and one of full length come first. By ``best`` there are LRU, hybrid and BMRU of six blocks instead,
    with more images: the first is to show that the images can be learned.
    """
    if recipe == "best":
        deep = DEEP_PATHFINDER[scale]
        names = {cell: f"{cell}-{deep.blocks}-blocks" for cell in ("lru", "hybrid", "bmru")}
        found = [
            e for cell in names for e in experiments(deep, (cell,) * deep.blocks, names[cell], scale, seed, recipe)
        ]
        return [replace(each, costly=True) for each in found]
    base, widths = PATHFINDER[scale]
    whole = []
    for level in ("hard", "easy"):
        for width in widths:
            for blocks in DEPTHS:
                preset = replace(base, task=replace(base.task, level=level), d_state=width)
                name = pathfinder_name(level, blocks, width)
                whole += experiments(preset, ("bmru",) * blocks, name, scale, seed, recipe)
    if scale != "full":
        return [replace(each, run=for_epochs(each.run, base.epochs)) for each in whole]
    if recipe == "paper":
        return [replace(each, costly=True) for each in whole]
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


EXPERIMENTS: dict[str, Callable[[Scale, int, Recipe], list[Experiment]]] = {
    "tails": tails,
    "copy-first": copy_first,
    "generalisation": generalisation,
    "permuted-mnist": permuted_mnist,
    "without-positions": without_positions,
    "pathfinder": pathfinder,
}
"""Figure -> its experiments."""


def plan(
    figures: Iterable[str] | None = None,
    scale: Scale = "full",
    seeds: Iterable[int] | None = None,
    recipes: Iterable[Recipe] = RECIPES,
) -> list[Experiment]:
    """The experiments of some figures (None: all), each run once, in the order in which they are worth computing.

    All configurations of one seed come before the next seed; costly ones come last. A run that two figures share gets
    the tests of both. Without ``seeds``, each recipe has its own number of them.
    """
    names = list(EXPERIMENTS if figures is None else figures)
    if unknown := [name for name in names if name not in EXPERIMENTS]:
        raise ValueError(f"figure must be one of {', '.join(EXPERIMENTS)}, got {unknown[0]!r}")
    if scale not in SCALES:
        raise ValueError(f"scale must be one of {', '.join(SCALES)}, got {scale!r}")
    merged: dict[tuple[Recipe, str], Experiment] = {}
    for recipe in recipes:
        if recipe not in RECIPES:
            raise ValueError(f"recipe must be one of {', '.join(RECIPES)}, got {recipe!r}")
        for seed in range(SEEDS[recipe] if scale == "full" else 1) if seeds is None else seeds:
            for each in (each for name in names for each in EXPERIMENTS[name](scale, seed, recipe)):
                if seeds is not None or seed < seeds_of(recipe, each.run):
                    known = merged.setdefault((recipe, each.run.id), each)
                    tests = tuple(dict.fromkeys(known.tests + each.tests))
                    merged[recipe, each.run.id] = replace(known, tests=tests)
    return sorted(merged.values(), key=lambda experiment: (experiment.costly, experiment.run.seed))  # a stable sort
