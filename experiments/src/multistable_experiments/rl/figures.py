"""The figure of success by length of the corridor, drawn from the results of ``multistable rl t-maze``."""

import itertools
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from multistable_experiments.page.pictures import COLOURS, label_ends
from multistable_experiments.paper.figures.style import GREY, label, panels
from multistable_experiments.rl.agent import HELD
from multistable_experiments.rl.rates import RATES, is_search, maze_rates
from multistable_experiments.rl.results import load, walks_of

__all__ = ["NAMES", "draw_t_maze", "successes"]

NAMES = {
    "bmru": "BMRU", "hybrid": "hybrid", "lru": "LRU", "mingru": "minGRU", "gru": "GRU", "lstm": "LSTM", "none": "none",
}  # fmt: skip
MORE_COLOURS = {"LSTM": "#56b4e9", "none": GREY}


def draw_t_maze(folder: Path) -> Figure:
    """Success in T-mazes by the length of the corridor; all agents were trained in corridors of 1 to 30 steps.

    Means over the seeds; bars span the least to the greatest. Dashed: the same cell from a start made to hold. Left:
    the corridor looks the same at every step. Right: two of its three numbers are noise. Above: the critic's error
    trains the memory, too. Below: the actor's alone does.
    """
    figure, axes = panels(2, 2, width=4.2, height=2.5, sharex=True, sharey=True)
    shown = False
    for row, (apart, critic) in zip(axes, ((False, "shared critic"), (True, "critic apart")), strict=True):
        results = load(folder, apart)
        for axis, noise, title in zip(row, (False, True), ("without noise", "with noise"), strict=True):
            length = "steps to the junction" if apart else ""
            label(axis, f"{title}, {critic}", length, "" if noise else "correct turns")
            draw_panel(axis, successes(results, noise))
        shown = shown or bool(results)
    if not shown:
        figure.supxlabel("no results yet: multistable rl t-maze", fontsize=8)
    return figure


def draw_panel(axis: Axes, found: dict[str, dict[int, list[float]]]) -> None:
    axis.set(xscale="log", ylim=(0, 1.05))
    axis.axhline(0.5, color=GREY, linewidth=0.8, linestyle=(0, (1, 2)))
    axis.axvspan(10, 30, color=GREY, alpha=0.15, linewidth=0)  # up to 30 in training
    ends = []
    for place, (cell, by_length) in enumerate(found.items()):
        kind, _, held = cell.partition("-")
        name, lengths = NAMES[kind], sorted(by_length)
        colour = {**COLOURS, **MORE_COLOURS}[name]
        means = [statistics.fmean(by_length[T]) for T in lengths]
        spread = [[m - min(by_length[T]) for m, T in zip(means, lengths, strict=True)],
                  [max(by_length[T]) - m for m, T in zip(means, lengths, strict=True)]]  # fmt: skip
        shifted = [T * 1.045 ** (place - 4) for T in lengths]  # so that bars do not cover each other
        axis.errorbar(
            shifted, means, spread, color=colour, linestyle="--" if held else "-", linewidth=1.4, elinewidth=0.8,
            marker="o", markersize=3.5, markerfacecolor="white" if held else colour,
        )  # fmt: skip
        if not held:
            ends.append((means[-1], name, colour))
    label_ends(axis, ends)


def successes(results: Sequence[dict[str, Any]], noise: bool) -> dict[str, dict[int, list[float]]]:
    """The share of correct turns at each length, one for each seed, at the learning rate of each cell.

    An agent that guessed did not walk on as far as others did; it goes on guessing as before.
    """
    found: dict[str, dict[int, list[float]]] = {}
    rates = maze_rates(results)
    for cell in (*NAMES, *HELD):
        key = cell, noise, rates.get(cell, RATES[0])
        own = [r for r in results if not is_search(r) and tuple(r["run"][k] for k in ("cell", "noise", "rate")) == key]
        lengths = sorted({each.length for result in own for each in walks_of(result)})
        for result, length in itertools.product(own, lengths):
            share = [each.success for each in walks_of(result) if each.length <= length][-1]
            found.setdefault(cell, {}).setdefault(length, []).append(share)
    return found
