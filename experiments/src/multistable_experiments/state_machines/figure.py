"""The figure of a trained machine: its graph beside that of its target."""

import math
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch

from multistable.machines import Machine, extract
from multistable_experiments.files import read_json
from multistable_experiments.paper.figures.style import GREY, panels
from multistable_experiments.state_machines.store import load_model
from multistable_experiments.tasks.state_tracking import machine

__all__ = ["SHOWN", "draw_machine", "paired"]

SHOWN = "S3-softmax-seed4"
"""Of the machines of S3 trained with a loss at every step, the one with the fewest joint states."""
SYMBOLS = {1: "#d55e00", 2: "#0072b2"}
"""Two of S3's elements that generate it, and the colours of their transitions."""
COLOURS = ("#e69f00", "#56b4e9", "#009e73", "#f0e442", "#cc79a7", "#999999")
Place = tuple[float, float]


def draw_machine(folder: Path, name: str = SHOWN) -> Figure:
    """The word problem of S3, and a trained model's joint states, each placed with the target's state it stands for.

    Colours are outputs, arrows the transitions of two symbols that generate the group (both machines read six).
    """
    figure, axes = panels(1, 2, width=4.2, height=4.2)
    path = folder / f"{name}.json"
    if not path.exists():
        figure.supxlabel(f"no result yet: multistable machines {name.split('-')[0]}", fontsize=8)
        return figure
    result = read_json(path)
    target, model = machine(result["training"]["machine"]), load_model(result)
    found = extract(model)
    stands_for = paired(found, target)
    draw_graph(axes.flat[0], target, circle(target.n_states, list(range(target.n_states))))
    draw_graph(axes.flat[1], found, circle(target.n_states, stands_for))
    axes.flat[0].set_title(f"target: {target.n_states} states", fontsize=9)
    axes.flat[1].set_title(f"trained model: {found.n_states} joint states of {model.rnn.units} units", fontsize=9)
    return figure


def paired(found: Machine, target: Machine) -> list[int]:
    """For each state of ``found`` the state that the target is in at the same time; raises if there are several."""
    stands_for, todo = {0: 0}, [0]
    for state in todo:  # grows while it is read
        for symbol, after in enumerate(found.table[state]):
            q = target.table[stands_for[state]][symbol]
            if stands_for.setdefault(after, q) != q:
                raise ValueError(f"state {after} stands for states {stands_for[after]} and {q} of the target")
            if after not in todo:
                todo.append(after)
    return [stands_for[state] for state in range(found.n_states)]


def circle(Q: int, stands_for: list[int]) -> list[Place]:
    """States in the sectors of what they stand for: three abreast, further ones in rings outside."""
    counts, places = [0] * Q, list[Place]()
    for q in stands_for:
        ring, side = divmod(counts[q], 3)
        counts[q] += 1
        abreast = min(3, stands_for.count(q) - 3 * ring)
        angle = math.pi / 2 - 2 * math.pi / Q * (q + 0.26 * (side - (abreast - 1) / 2))
        radius = 1.0 + 0.28 * ring
        places.append((radius * math.cos(angle), radius * math.sin(angle)))
    return places


def draw_graph(axis: Axes, found: Machine, places: list[Place]) -> None:
    for symbol, colour in SYMBOLS.items():
        for state, row in enumerate(found.table):
            if row[symbol] != state:
                axis.add_patch(arrow(places[state], places[row[symbol]], colour))
    for state, (x, y) in enumerate(places):
        edge = "black" if state == 0 else GREY  # the start has a black ring
        axis.scatter(x, y, s=110, color=COLOURS[found.output[state] % len(COLOURS)], edgecolors=edge, zorder=3)
    size = 0.2 + max(math.hypot(*place) for place in places)
    axis.set(xlim=(-size, size), ylim=(-size, size), aspect="equal")
    axis.axis("off")


def arrow(start: Place, end: Place, colour: str) -> FancyArrowPatch:
    style = {"arrowstyle": "-|>", "connectionstyle": "arc3,rad=0.12", "shrinkA": 6, "shrinkB": 6}
    return FancyArrowPatch(start, end, **style, mutation_scale=9, color=colour, linewidth=0.9, alpha=0.8)
