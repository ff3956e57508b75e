"""All figures of the paper by name: their places in it, and how they are drawn."""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from matplotlib.figure import Figure

from multistable_experiments.paper.figures import theory, trained
from multistable_experiments.paper.recipes import Recipe
from multistable_experiments.paper.settings import Scale
from multistable_experiments.paper.store import Record

__all__ = ["FIGURES", "PaperFigure"]


@dataclass(frozen=True)
class PaperFigure:
    """A figure of the paper; its caption is the docstring of the function that draws it."""

    number: int | None
    """In the paper; None for a figure of ours."""
    title: str
    function: Callable[..., Figure]

    @property
    def trained(self) -> bool:
        """Whether it shows the results of trained models."""
        return self.function.__module__ == trained.__name__

    @property
    def caption(self) -> str:
        return " ".join((inspect.getdoc(self.function) or "").split())

    @property
    def recipes(self) -> tuple[Recipe, ...]:
        """The recipes that have experiments for it, of which a figure of trained models shows one."""
        return FIGURE_RECIPES.get(self.function.__name__, ("paper", "best", "tuned")) if self.trained else ()

    def draw(self, records: Sequence[Record], scale: Scale, recipe: Recipe = "paper") -> Figure:
        """Draw it. Figures of the theory ignore the records."""
        if not self.trained:
            return self.function()
        return self.function([record for record in records if record.recipe == recipe], scale, recipe)


FIGURE_RECIPES: dict[str, tuple[Recipe, ...]] = {
    "pathfinder": ("paper", "tuned"),
    "tails": ("best",),
    "without_positions": ("best",),
}


FIGURES: dict[str, PaperFigure] = {
    "fading_and_persistent": PaperFigure(1, "Fading and persistent memory", theory.fading_and_persistent),
    "convergence": PaperFigure(2, "Where trajectories end", theory.convergence),
    "implicit_and_approximation": PaperFigure(
        3, "The implicit function, approximated", theory.implicit_and_approximation
    ),
    "example_simulation": PaperFigure(4, "A unit at work", theory.example_simulation),
    "surrogates": PaperFigure(5, "The surrogate gradient", theory.surrogates),
    "stationary_memory": PaperFigure(6, "One unit holds one bit", theory.stationary_memory),
    "gradients": PaperFigure(7, "Gradients do not fade", theory.gradients),
    "copy-first": PaperFigure(8, "Copy-first-input", trained.copy_first),
    "generalisation": PaperFigure(9, "Longer sequences than in training", trained.generalisation),
    "permuted-mnist": PaperFigure(10, "Permuted sequential MNIST", trained.permuted_mnist),
    "tails": PaperFigure(None, "How long it lasts", trained.tails),
    "without-positions": PaperFigure(None, "Without positions", trained.without_positions),
    "pathfinder": PaperFigure(11, "Pathfinder", trained.pathfinder),
    "brc_hysteresis": PaperFigure(12, "Hysteresis in the bistable recurrent cell", theory.brc_hysteresis),
}
"""In the order of the paper, ours beside those of the same task."""
