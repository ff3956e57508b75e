"""The figure of the comparison: at which step each layer fails, drawn from ``multistable machines --study rivals``."""

from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from multistable_experiments.files import read_json
from multistable_experiments.page.pictures import COLOURS, INK
from multistable_experiments.paper.figures.style import GREY, label, panels
from multistable_experiments.state_machines.plan import CONTESTS
from multistable_experiments.state_machines.rivals import CELLS, LAYERS, SEARCH_SEED, TEST

__all__ = ["draw_failing_length", "failing_lengths"]

NEVER = 3 * TEST["longest"]
"""Where models that never fail are drawn."""
ALL = COLOURS | {"FSM": INK, "LSTM": "#56b4e9", "DeltaNet": "#cc79a7"}
Lengths = dict[tuple[str, str], list[int | None]]


def failing_lengths(folder: Path) -> Lengths:
    """By machine and layer, the step at which each seed's model first errs; None for never in the test."""
    found: Lengths = {}
    for path in sorted(folder.glob("rival-*.json")):
        result = read_json(path)
        item = result["contest"]
        if item["seed"] != SEARCH_SEED:
            found.setdefault((item["machine"], item["cell"]), []).append(result["test"]["failing_length"])
    return found


def draw_failing_length(folder: Path) -> Figure:
    """A panel for each machine: a point per seed, open and at the right edge if the model never fails.

    Dotted: the longest sequence in training.
    """
    found = failing_lengths(folder)
    machines = [name for name in CONTESTS if any(machine == name for machine, _ in found)]
    figure, axes = panels(1, max(1, len(machines)), width=2.5, height=2.6, sharey=True)
    for axis, machine in zip(axes.flat, machines or ["parity"], strict=True):
        label(axis, machine, "step of the first error", "")
        axis.set(xscale="log", xlim=(0.8, 1.6 * NEVER), ylim=(len(CELLS) - 0.5, -0.5))
        axis.set_xticks([1, 100, 10_000, NEVER], ["1", "100", "10,000", "never"])
        axis.minorticks_off()
        axis.set_yticks(range(len(CELLS)), [LAYERS[cell] for cell in CELLS])
        axis.axvline(CONTESTS[machine].length, color=GREY, linewidth=0.8, linestyle=(0, (1, 2)))
        for row, cell in enumerate(CELLS):
            draw_layer(axis, row, LAYERS[cell], found.get((machine, cell), []))
    if not found:
        figure.supxlabel("no results yet: multistable machines --study rivals", fontsize=8, color=GREY)
    return figure


def draw_layer(axis: Axes, row: int, name: str, lengths: list[int | None]) -> None:
    if not lengths:
        axis.text(1, row, "not computed", fontsize=7, color=GREY, va="center")
    for seed, length in enumerate(lengths):
        place, height = length or NEVER, row + 0.13 * (seed - (len(lengths) - 1) / 2)  # side by side
        colour = ALL[name.split(",")[0]]  # that of the layer, whatever its arguments
        axis.plot(place, height, "o", ms=4.5, color=colour, mfc=colour if length else "white", clip_on=False)
