"""Colours, panels and labels of the paper's figures."""

from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

__all__ = ["BAND", "BLUE", "GREY", "RED", "label", "panels"]

BLUE, RED, GREY, BAND = "#1f5fa8", "#c23b22", "#8a8a8a", "#ececec"


def panels(rows: int, columns: int, width: float = 3.4, height: float = 2.6, **options: Any) -> tuple[Figure, Any]:
    """A figure and its axes ``[rows, columns]``, with two spines each."""
    figure = Figure(figsize=(width * columns, height * rows), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False, **options)
    for axis in axes.flat:
        axis.spines[["top", "right"]].set_visible(False)
        axis.tick_params(labelsize=8)
    return figure, axes


def label(axis: Axes, title: str, x: str, y: str) -> None:
    axis.set_title(title, fontsize=9, loc="left")
    axis.set_xlabel(x, fontsize=8.5)
    axis.set_ylabel(y, fontsize=8.5)
