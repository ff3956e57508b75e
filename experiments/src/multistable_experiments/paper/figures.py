"""All figures of the paper, by name: where they are in it, what they show, and how they are drawn."""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from matplotlib.figure import Figure

from multistable_experiments.paper import result_figures, theory_figures
from multistable_experiments.paper.store import Record
from multistable_experiments.training.presets import Scale

__all__ = ["PICTURES", "Picture"]


@dataclass(frozen=True)
class Picture:
    """A figure of the paper."""

    number: int
    """In the paper."""
    title: str
    draw: Callable[[Sequence[Record], Scale], Figure]
    """Of the results of runs, which the figures of the theory do not look at."""
    caption: str


def theory(name: str, number: int, title: str) -> Picture:
    draw = theory_figures.FIGURES[name]
    return Picture(number, title, lambda records, scale: draw(), caption_of(draw))


def results(name: str, number: int, title: str) -> Picture:
    draw = result_figures.FIGURES[name]
    return Picture(number, title, draw, caption_of(draw))


def caption_of(draw: Callable[..., Figure]) -> str:
    """The docstring, in one line."""
    return " ".join((inspect.getdoc(draw) or "").split())


PICTURES: dict[str, Picture] = {
    "fading_and_persistent": theory("fading_and_persistent", 1, "Fading and persistent memory"),
    "convergence": theory("convergence", 2, "Where trajectories end"),
    "implicit_and_approximation": theory("implicit_and_approximation", 3, "The implicit function, approximated"),
    "example_simulation": theory("example_simulation", 4, "A unit at work"),
    "surrogates": theory("surrogates", 5, "The surrogate gradient"),
    "stationary_memory": theory("stationary_memory", 6, "One unit holds one bit"),
    "gradients": theory("gradients", 7, "Gradients do not fade"),
    "copy-first": results("copy-first", 8, "Copy-first-input"),
    "generalisation": results("generalisation", 9, "Longer sequences than in training"),
    "permuted-mnist": results("permuted-mnist", 10, "Permuted sequential MNIST"),
    "pathfinder": results("pathfinder", 11, "Pathfinder"),
    "brc_hysteresis": theory("brc_hysteresis", 12, "Hysteresis in the bistable recurrent cell"),
}
"""In the order of the paper."""
