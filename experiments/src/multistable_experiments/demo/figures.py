"""The pictures of the demo, as SVG to be put into a page: text is text, and colours are the page's variables."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from torch import Tensor

from multistable_experiments.demo import copy_first, hold_bit
from multistable_experiments.page.pictures import COLOURS, FAINT, embed, label_ends

__all__ = ["bit_errors", "bit_states", "copy_errors", "copy_outputs"]

DOTTED, DASHED = (0, (1, 2)), (0, (3, 2))
MINUS = "\N{MINUS SIGN}"
EXACT = 1e-16  # where an error of exactly 0 is drawn on a logarithmic axis


def bit_states(outcomes: dict[str, hold_bit.Outcome]) -> str:
    """A panel per unit: its state as the read-out sees it, for both bits, over the longest sequence."""

    def draw(panels: Sequence[Axes]) -> None:
        for panel, (name, outcome) in zip(panels, outcomes.items(), strict=True):
            outputs = outcome.recalls[-1].outputs  # [2, T]
            T = outputs.shape[1]
            t = spread(T)
            for line, style in zip(outputs, ("-", DASHED), strict=True):
                panel.plot(t, line[t - 1], color=COLOURS[name], linestyle=style)
            panel.axhline(0, color=FAINT, linewidth=0.7, zorder=0)
            time_axis(panel, 1, T)
            training_ends(panel, hold_bit.TRAIN_LENGTH)
            panel.set_title(f"one {name} unit", color=COLOURS[name], fontweight="bold")
            panel.set(ylim=(-1.45, 1.45), yticks=(-1, 0, 1), yticklabels=(f"{MINUS}1", "0", "+1"))
        panels[0].set_ylabel("state, as read out")
        say_training_ends(panels[0], hold_bit.TRAIN_LENGTH, 0.53)
        panels[0].text(1.3, 1.12, "the input was +1")
        panels[0].text(1.3, -1.12, f"the input was {MINUS}1", va="top")

    return svg("bit-states", 3, (10.4, 2.9), draw, sharey=True)


def bit_errors(outcomes: dict[str, hold_bit.Outcome]) -> str:
    """How the units learn, and what they still know after more steps than they were trained on."""

    def draw(panels: Sequence[Axes]) -> None:
        learning, longer = panels
        for panel in panels:
            error_axis(panel, -16)
        for name, outcome in outcomes.items():
            plot(learning, outcome.curve, color=COLOURS[name])
            plot(longer, [(test.length, test.error) for test in outcome.recalls], color=COLOURS[name], marker="o")
        learning.set(xlim=(0, None), xlabel="training step", ylabel="mean squared error")
        learning.set_title(f"Learning: error after {hold_bit.TRAIN_LENGTH} steps")
        longer.set_title("Memory: error against length")
        lengths = [test.length for test in outcomes["BMRU"].recalls]
        time_axis(longer, min(lengths), max(lengths), "length of the sequence")
        label_ends(learning, ends({name: outcome.curve[-1][1] for name, outcome in outcomes.items()}))
        label_ends(longer, ends({name: outcome.recalls[-1].error for name, outcome in outcomes.items()}))

    return svg("bit-errors", 2, (10.4, 3.3), draw)


def copy_outputs(outcomes: dict[str, copy_first.Outcome]) -> str:
    """A panel per model: what it would answer at each step, for five first numbers."""

    def draw(panels: Sequence[Axes]) -> None:
        for panel, (name, outcome) in zip(panels, outcomes.items(), strict=True):
            T = outcome.outputs.shape[1]
            t = spread(T)
            for line, first in zip(outcome.outputs, copy_first.FIRST, strict=True):
                panel.axhline(first, color=FAINT, linewidth=0.7, zorder=0)
                panel.plot(t, line[t - 1], color=COLOURS[name], linewidth=1)
            time_axis(panel, 1, T)
            training_ends(panel, outcome.run.task.length)
            panel.set_title(f"{name} model", color=COLOURS[name], fontweight="bold")
            panel.set(ylim=(-3.5, 3.5), yticks=copy_first.FIRST)
            panel.set_yticklabels([f"{first:+g}".replace("-", MINUS) if first else "0" for first in copy_first.FIRST])
        panels[0].set_ylabel("answer")
        say_training_ends(panels[0], outcomes["BMRU"].run.task.length, 0.94)

    return svg("copy-outputs", 3, (10.4, 3.2), draw, sharey=True)


def copy_errors(outcomes: dict[str, copy_first.Outcome]) -> str:
    """Learning curves, and the error on longer sequences with two levels of noise."""

    def draw(panels: Sequence[Axes]) -> None:
        for panel in panels:
            error_axis(panel, -5)
        learning, *tests = panels
        curves = {name: outcome.result["history"] for name, outcome in outcomes.items()}
        for name, history in curves.items():
            plot(learning, [(record["epoch"], record["valid_mse"]) for record in history], color=COLOURS[name])
        learning.set(xlabel="epoch", ylabel="mean squared error", xlim=(0, None))
        learning.set_title(f"Learning: error after {outcomes['BMRU'].run.task.length} steps")
        label_ends(learning, ends({name: history[-1]["valid_mse"] for name, history in curves.items()}))
        for panel, noise in zip(tests, copy_first.NOISES, strict=True):
            for name, outcome in outcomes.items():
                plot(panel, outcome.errors[noise], color=COLOURS[name], marker="o")
            lengths = [length for length, _ in outcomes["BMRU"].errors[noise]]
            time_axis(panel, min(lengths), max(lengths), "length of the sequence")
            panel.set_title(f"Longer sequences, noise {noise:g}")
            label_ends(panel, ends({name: outcome.errors[noise][-1][1] for name, outcome in outcomes.items()}))

    return svg("copy-errors", 3, (10.4, 3.3), draw, sharey=True)


def spread(T: int) -> Tensor:
    """Timesteps from 1 to T: all of the first 100, then a few hundred, evenly on a logarithmic axis."""
    later = torch.logspace(0, math.log10(T), 600).long().clamp(1, T)
    return torch.cat([torch.arange(1, min(T, 100) + 1), later]).unique()


def plot(panel: Axes, points: Sequence[tuple[int, float]], **style: Any) -> None:
    """Errors, with 0 at the lowest tick."""
    places, errors = zip(*points, strict=True)
    panel.plot(places, [max(error, EXACT) for error in errors], clip_on="marker" not in style, **style)


def ends(values: dict[str, float]) -> list[tuple[float, str, str]]:
    """What :func:`label_ends` writes: errors, names, colours."""
    return [(max(value, EXACT), name, COLOURS[name]) for name, value in values.items()]


def time_axis(panel: Axes, first: int, last: int, words: str = "timestep") -> None:
    panel.set(xscale="log", xlim=(first, last), xlabel=words)
    label_powers(panel.xaxis, [10.0**k for k in range(10) if first <= 10**k <= last])


def error_axis(panel: Axes, least: int) -> None:
    """Logarithmic from 10^least on; a dotted line at 1, the error of always answering 0."""
    panel.set(yscale="log", ylim=(10.0**least / 3, 60))
    label_powers(panel.yaxis, [10.0**k for k in range(least, 2, 1 if least > -8 else 4)])
    panel.axhline(1, color=FAINT, linewidth=1, linestyle=DOTTED, zorder=0)


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


def training_ends(panel: Axes, T: int) -> None:
    """A line at the longest sequence of the training."""
    panel.axvline(T, color=FAINT, linewidth=1, linestyle=DOTTED, zorder=0)


def say_training_ends(panel: Axes, T: int, height: float) -> None:
    """Words beside that line, at this height of the panel, 0 to 1."""
    place: dict[str, Any] = {"xycoords": ("data", "axes fraction"), "textcoords": "offset points"}
    panel.annotate("training ends here", (T, height), (4, 0), color=FAINT, fontsize=8.5, **place)


def svg(
    name: str, columns: int, size: tuple[float, float], draw: Callable[[Sequence[Axes]], None], **options: Any
) -> str:
    """Draw on a row of panels and return one ``<svg>`` element whose identifiers start with ``name``."""

    def make() -> Figure:
        figure = Figure(figsize=size, layout="constrained")
        draw(list(figure.subplots(1, columns, **options)))
        return figure

    return embed(name, make)
