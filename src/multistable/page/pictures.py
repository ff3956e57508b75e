"""Pictures for a page: figures as SVG elements whose text is text and whose colours are the page's variables."""

import io
import re
from collections.abc import Callable
from typing import Any

import matplotlib
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

__all__ = ["COLOURS", "FAINT", "INK", "embed"]

# Okabe and Ito's colours, which colour-blind readers tell apart; in a page each is a variable, for light and dark.
COLOURS = {"BMRU": "#0072b2", "LRU": "#d55e00", "GRU": "#009e73", "hybrid": "#9a4f96"}
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


def embed(name: str, make: Callable[[], Figure], variables: dict[str, str] | None = None) -> str:
    """The figure that ``make`` draws in the style of the pages, as one ``<svg>`` element.

    Its identifiers start with ``name``. ``variables`` are more colours with the names of their variables.
    """
    style: dict[Any, Any] = {**STYLE, "svg.hashsalt": name}
    with matplotlib.rc_context(style):
        figure = make()
        FigureCanvasSVG(figure)
        file = io.StringIO()
        nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        figure.savefig(file, format="svg", transparent=True, metadata=nothing)
    text = file.getvalue()
    text = text[text.index("<svg") :]  # without what makes it a document of its own
    text = re.sub(r' (width|height)="[^"]*pt"', "", text, count=2)  # the page decides
    text = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{name}-", text)  # no identifier twice in a page
    for colour, variable in (VARIABLES | (variables or {})).items():
        text = text.replace(colour, f"var(--{variable})")
    return text
