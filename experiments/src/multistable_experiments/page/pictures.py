"""Embed figures in a page: SVG elements whose text is text and whose colours are the page's variables."""

import io
import re
from collections.abc import Callable, Sequence
from typing import Any

import matplotlib
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

__all__ = ["COLOURS", "FAINT", "INK", "embed", "label_ends"]

# Okabe and Ito's colours, which colour-blind readers can distinguish; in a page each is a variable, for light and dark.
COLOURS = {"BMRU": "#0072b2", "LRU": "#d55e00", "GRU": "#009e73", "hybrid": "#9a4f96", "minGRU": "#b57900"}
INK, FAINT = "#1a1b1c", "#8a8b8c"
VARIABLES = {colour: name.lower() for name, colour in COLOURS.items()} | {INK: "ink", FAINT: "faint"}
STYLE: dict[str, Any] = {
    "svg.fonttype": "none",
    "font.size": 9.5,
    "axes.titlesize": 10.5,
    "axes.titlelocation": "left",
    "axes.titlepad": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": FAINT,
    "xtick.color": FAINT,
    "ytick.color": FAINT,
    **dict.fromkeys(("text.color", "axes.labelcolor", "axes.titlecolor", "xtick.labelcolor", "ytick.labelcolor"), INK),
    "lines.linewidth": 2,
    "lines.markersize": 4.5,
}


def embed(name: str, make: Callable[[], Figure], variables: dict[str, str] | None = None) -> Markup:
    """Return the figure that ``make`` draws in the style of the pages, as one ``<svg>`` element.

    Its identifiers start with ``name``. ``variables`` maps more colours to the names of their CSS variables.
    """
    style: dict[Any, Any] = {**STYLE, "svg.hashsalt": name}
    with matplotlib.rc_context(style):
        figure = make()
        FigureCanvasSVG(figure)
        file = io.StringIO()
        no_metadata = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        figure.savefig(file, format="svg", transparent=True, metadata=no_metadata)
    text = file.getvalue()
    text = text[text.index("<svg") :]  # drop the XML prolog
    text = re.sub(r"\s*<!--.*?-->", "", text, flags=re.DOTALL)
    text = re.sub(r' (width|height)="[^"]*pt"', "", text, count=2)  # the page sets the size
    text = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{name}-", text)  # identifiers are unique in a page
    for colour, variable in (VARIABLES | (variables or {})).items():
        text = text.replace(colour, f"var(--{variable})")
    return Markup(text)  # matplotlib escapes the words in it


def label_ends(panel: Axes, ends: Sequence[tuple[float, str, str]]) -> None:
    """Label the right ends of lines, ``(value, words, colour)``; labels that would overlap are moved apart.

    Set the panel's y limits first.
    """
    to_fraction = panel.transData + panel.transAxes.inverted()
    x = panel.get_xlim()[1]
    placed = sorted((float(to_fraction.transform((x, value))[1]), words, colour) for value, words, colour in ends)
    for place, (_, words, colour) in zip(apart([p for p, *_ in placed], 0.075), placed, strict=True):
        # a line of text is 0.075 of the panel's height
        panel.annotate(words, (1.03, place), xycoords="axes fraction", color=colour, weight="bold", va="center")


def apart(places: list[float], gap: float) -> list[float]:
    """Push the rising numbers apart, evenly, until no two are closer than ``gap``.

    >>> [round(place, 2) for place in apart([0.1, 0.5, 0.5, 0.51], 0.2)]
    [0.1, 0.3, 0.5, 0.7]
    """
    for _ in range(100):
        for i in range(len(places) - 1):
            missing = max(0.0, gap - (places[i + 1] - places[i])) / 2
            places[i : i + 2] = places[i] - missing, places[i + 1] + missing
    return places
