"""Recipes: what an experiment decides beyond the paper's sizes.

- ``paper``: the paper's settings and nothing else. Where it is silent, settings.py decides; nothing of that was chosen
  by looking at a test result.
- ``best``: for each layer the best settings that the same search found (:mod:`multistable_experiments.paper.search`).
- ``tuned``: what version 0.1 published: the paper's schedule and decay, with units tuned to positions, thresholds that
  start high, and linear maps that keep the variance. These results stay, under this name.
"""

import inspect
import math
from dataclasses import dataclass, replace
from typing import Literal

from multistable.layers.registry import find_layer
from multistable.models import LRUConfig
from multistable_experiments.paper.settings import has_thresholds
from multistable_experiments.training.run import Decay, Run

__all__ = [
    "BEST",
    "BEST_EPOCHS",
    "RECIPES",
    "SEEDS",
    "Choice",
    "Recipe",
    "apply_choice",
    "by_best",
    "by_paper",
    "has_eigenvalues",
    "seeds_of",
]

Recipe = Literal["paper", "best", "tuned"]
RECIPES: tuple[Recipe, ...] = ("paper", "best", "tuned")
SEEDS: dict[Recipe, int] = {"paper": 5, "best": 3, "tuned": 5}
"""Seeds per configuration at scale ``full``; the paper's values are means over 5 runs."""


def seeds_of(recipe: Recipe, run: Run) -> int:
    """How many seeds a configuration gets: one where a run takes longest, Pathfinder and three blocks by the paper."""
    if recipe == "tuned":
        return SEEDS[recipe]
    return 1 if run.task.name == "pathfinder" or (recipe == "paper" and len(run.model.cells) > 2) else SEEDS[recipe]


def by_paper(run: Run) -> Run:
    """The run with the paper's settings and nothing else.

    Units start on a branch, as its equations assume. Positions are sinusoids of base 10,000 and amplitude 1.
    """
    model, position = run.model, run.model.position
    if position is not None:
        longest = 2 * math.pi * 10_000 ** (1 - 2 / position.dim)
        position = replace(position, shortest=2 * math.pi, longest=longest, scale=1.0, tuning=0.0)
    start = "branch" if any(map(has_thresholds, model.cells)) else "zero"
    return replace(run, model=replace(model, beta_bias=0.0, initial="torch", position=position, start=start))


@dataclass(frozen=True)
class Choice:
    """What the recipe ``best`` chooses for a layer by a search; what does not concern the layer keeps its default."""

    peak: float = 1e-3
    """The highest learning rate; the first is a tenth of it, the last a hundredth."""
    dropout: float = 0.0
    decay: float = 0.05
    """Weight decay of all but the BMRU's parameters, biases, norms and eigenvalues."""
    bmru_decay: float = 1e-4
    r_min: float = 0.0
    r_max: float = 0.99
    theta_max: float = 2 * math.pi
    everywhere: bool = False
    """Whether a layer that takes no positions by default gets them."""
    tuning: float = 8.0
    """Of BMRU units to positions, see :class:`~multistable.PositionConfig`."""
    scale: float = 4.0
    """Of the position encoding."""
    beta_bias: float = 0.0
    norm_out: bool = False
    """Whether a layer norm stands before the head, see :class:`~multistable.ModelConfig`."""


BEST: dict[tuple[str, str], Choice] = {
    ("mnist", "bmru"): Choice(
        peak=0.0015142215795752936, dropout=0.1, decay=0.11327154875902633, bmru_decay=0.00029265151449201556, scale=1.0
    ),
    ("mnist", "lru"): Choice(
        peak=0.0004893395084845614,
        decay=0.004081606182812031,
        r_min=0.9992038878011277,
        r_max=0.9999411214925206,
        everywhere=True,
        scale=1.0,
    ),
    ("mnist", "hybrid"): Choice(
        peak=0.0008833388448813079,
        dropout=0.2,
        decay=0.10373375608732952,
        bmru_decay=4.355777522266476e-05,
        r_min=0.9719681820424265,
        r_max=0.9999989482318777,
        everywhere=True,
        scale=1.0,
    ),
}
"""Task and layer -> the choice of its search, ``results/search/<task>-<layer>.json``."""
BEST |= dict.fromkeys(
    [("pathfinder", layer) for layer in ("lru", "hybrid", "bmru")],
    Choice(peak=1e-3, decay=0.05, bmru_decay=0.05, r_min=0.9, r_max=0.999, norm_out=True),
)
"""On Pathfinder there is no search: one run takes 20 minutes. All layers have the decay and the ring of the LRU's
authors, and the rate of their recurrence. For all else the authors have 4e-3, at which the head of this model dies; at
1e-3, behind a norm, it lives (docs/log.md)."""
BEST_EPOCHS = {"copy-first": 100, "mnist": 30, "pathfinder": 12}


def apply_choice(run: Run, choice: Choice) -> Run:
    """The run with these settings."""
    model, position = run.model, run.model.position
    if position is not None:
        position = replace(position, everywhere=choice.everywhere, tuning=choice.tuning, scale=choice.scale)
    model = replace(
        model,
        position=position,
        dropout=choice.dropout,
        beta_bias=choice.beta_bias,
        norm_out=choice.norm_out,
        lru=LRUConfig(choice.r_min, choice.r_max, choice.theta_max),
    )
    peak = choice.peak
    schedule = replace(run.schedule, start=peak / 10, peak=peak, end=peak / 100)
    decay = Decay(choice.bmru_decay, choice.decay, "usual")
    return replace(run, model=model, schedule=schedule, decay=decay)


def by_best(run: Run) -> Run | None:
    """The run with the settings that the search chose for its layer; None before the search.

    A stack of several kinds of layers has the settings of the last one. Positions stay at the last one of the training
    in longer sequences (docs/results.md).
    """
    choice = BEST.get((run.task.name, run.model.cells[-1]))
    if choice is None:
        return None
    model = replace(run.model, initial="unit")
    if model.position is not None:
        model = replace(model, position=replace(model.position, held=True))
    epochs = min(run.epochs, BEST_EPOCHS[run.task.name])
    schedule = replace(run.schedule, warmup_epochs=epochs / 10)
    return apply_choice(replace(run, model=model, epochs=epochs, schedule=schedule), choice)


def has_eigenvalues(layer: str) -> bool:
    return "r_max" in inspect.signature(find_layer(layer)[0]).parameters
