"""The pictures of the demo, as SVG for a page: text is text, and colours are the page's variables."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from torch import Tensor

from multistable_experiments.demo import copy_first, hold_bit
from multistable_experiments.demo.outcome import Outcome
from multistable_experiments.page.pictures import COLOURS, FAINT, embed, label_ends

__all__ = ["bit_states", "copy_outputs", "errors"]

DOTTED, DASHED = (0, (1, 2)), (0, (3, 2))
MINUS = "\N{MINUS SIGN}"
EXACT = 1e-16  # where an error of exactly 0 is drawn on a logarithmic axis


def bit_states(outcomes: Mapping[str, Outcome]) -> str:
    """A panel per unit: its state as the read-out sees it, for both bits, over the longest sequence."""

    def draw() -> Figure:
        figure, panels = draw_outputs(outcomes, hold_bit.TRAIN_LENGTH, 2.9, ("-", DASHED), 0.53)
        for panel, name in zip(panels, outcomes, strict=True):
            panel.axhline(0, color=FAINT, linewidth=0.7, zorder=0)
            panel.set_title(f"one {name} unit", color=COLOURS[name], fontweight="bold")
            panel.set(ylim=(-1.45, 1.45), yticks=(-1, 0, 1), yticklabels=(f"{MINUS}1", "0", "+1"))
        panels[0].set_ylabel("state, as read out")
        panels[0].text(1.3, 1.12, "the input was +1")
        panels[0].text(1.3, -1.12, f"the input was {MINUS}1", va="top")
        return figure

    return embed("bit-states", draw)


def copy_outputs(outcomes: Mapping[str, Outcome], trained: int) -> str:
    """A panel per model: its output at each step, for five first numbers."""
    first = copy_first.FIRST

    def draw() -> Figure:
        figure, panels = draw_outputs(outcomes, trained, 3.2, ("-",) * len(first), 0.94, linewidth=1)
        for panel, name in zip(panels, outcomes, strict=True):
            panel.hlines(first, *panel.get_xlim(), color=FAINT, linewidth=0.7, zorder=0)
            panel.set_title(f"{name} model", color=COLOURS[name], fontweight="bold")
            panel.set(ylim=(-3.5, 3.5), yticks=first)
            panel.set_yticklabels([f"{value:+g}".replace("-", MINUS) if value else "0" for value in first])
        panels[0].set_ylabel("answer")
        return figure

    return embed("copy-outputs", draw)


def draw_outputs(
    outcomes: Mapping[str, Outcome], trained: int, height: float, styles: Sequence[Any], words_at: float, **line: Any
) -> tuple[Figure, list[Axes]]:
    """A panel per model with its outputs over time, and a line at ``trained``, the length of the training.

    The words beside that line are at ``words_at`` of the first panel's height.
    """
    figure, panels = row_of_panels(len(outcomes), height)
    for panel, (name, outcome) in zip(panels, outcomes.items(), strict=True):
        T = outcome.outputs.shape[1]
        t = log_spaced_steps(T)
        for outputs, style in zip(outcome.outputs, styles, strict=True):
            panel.plot(t, outputs[t - 1], color=COLOURS[name], linestyle=style, **line)
        time_axis(panel, 1, T)
        panel.axvline(trained, color=FAINT, linewidth=1, linestyle=DOTTED, zorder=0)
    place: dict[str, Any] = {"xycoords": ("data", "axes fraction"), "textcoords": "offset points"}
    panels[0].annotate("training ends here", (trained, words_at), (4, 0), color=FAINT, fontsize=8.5, **place)
    return figure, panels


def errors(name: str, outcomes: Mapping[str, Outcome], trained: int, progress: str, least: int) -> str:
    """Learning curves over ``progress``, then a panel per noise: the error at lengths beyond ``trained``.

    The axis of errors starts at 10^``least``.
    """

    def draw() -> Figure:
        noises = list(next(iter(outcomes.values())).errors)
        figure, (learning, *tests) = row_of_panels(1 + len(noises), 3.3)
        plot_errors(learning, {model: outcome.curve for model, outcome in outcomes.items()}, least)
        learning.set(xlabel=progress, ylabel="mean squared error", xlim=(0, None))
        learning.set_title(f"Learning: error after {trained} steps")
        for panel, noise in zip(tests, noises, strict=True):
            points = {model: outcome.errors[noise] for model, outcome in outcomes.items()}
            plot_errors(panel, points, least, marker="o")
            lengths = [length for length, _ in next(iter(points.values()))]
            time_axis(panel, min(lengths), max(lengths), "length of the sequence")
            panel.set_title("Longer sequences" + (f", noise {noise:g}" if len(noises) > 1 else ""))
        return figure

    return embed(name, draw)


def log_spaced_steps(T: int) -> Tensor:
    """Timesteps from 1 to T: the first 100, then a few hundred at equal distances on a logarithmic axis."""
    later = torch.logspace(0, math.log10(T), 600).long().clamp(1, T)
    return torch.cat([torch.arange(1, min(T, 100) + 1), later]).unique()


def plot_errors(panel: Axes, points: Mapping[str, Sequence[tuple[int, float]]], least: int, **line: Any) -> None:
    """Errors on a logarithmic axis from 10^``least``, with 0 at its lowest tick, and names at the ends of the lines.

    Dotted: 1, the error of always answering 0.
    """
    for model, values in points.items():
        x, y = zip(*values, strict=True)
        panel.plot(x, [max(error, EXACT) for error in y], color=COLOURS[model], clip_on=not line, **line)
    panel.set(yscale="log", ylim=(10.0**least / 3, 60))
    label_powers(panel.yaxis, [10.0**k for k in range(least, 2, 1 if least > -8 else 4)])
    panel.axhline(1, color=FAINT, linewidth=1, linestyle=DOTTED, zorder=0)
    label_ends(panel, [(max(values[-1][1], EXACT), model, COLOURS[model]) for model, values in points.items()])


def time_axis(panel: Axes, first: int, last: int, words: str = "timestep") -> None:
    panel.set(xscale="log", xlim=(first, last), xlabel=words)
    label_powers(panel.xaxis, [10.0**k for k in range(10) if first <= 10**k <= last])


def label_powers(axis: Axis, powers: Sequence[float]) -> None:
    """Ticks at these powers of ten and nowhere else."""
    axis.set_ticks(powers, labels=[power_of_ten(power) for power in powers])
    axis.set_ticks([], minor=True)


def power_of_ten(power: float) -> str:
    """
    >>> [power_of_ten(power) for power in (EXACT, 1e-12, 0.01, 1, 1000, 10**6)]
    ['0', '10⁻¹²', '0.01', '1', '1,000', '10⁶']
    """
    if power == EXACT:
        return "0"
    if 1e-3 < power < 1e4:
        return f"{power:,g}"
    return "10" + str(round(math.log10(power))).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))


def row_of_panels(count: int, height: float) -> tuple[Figure, list[Axes]]:
    figure = Figure(figsize=(10.4, height), layout="constrained")
    return figure, list(figure.subplots(1, count, sharey=count > 2))
