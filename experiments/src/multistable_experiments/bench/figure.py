"""The figure of the kernels' speed, drawn from a file of ``multistable bench --device cuda``."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from multistable_experiments.page.pictures import COLOURS
from multistable_experiments.paper.figures.style import GREY, label, panels

__all__ = ["draw_share_of_copy", "shares"]

RANDOM = ", random shape"
KERNELS = ("BMRU forward", "BMRU backward", "LRU forward", "LRU backward")


def draw_share_of_copy(path: Path) -> Figure:
    """Speed of the kernels as a share of that of a copy of the bytes they must move, over those bytes.

    Random shapes if the file has any, otherwise those on which the kernels were tuned; filled: float32, open: bfloat16.
    """
    figure, axes = panels(1, 2, width=4.2, height=2.8, sharey=True)
    rows = json.loads(path.read_text(encoding="utf-8"))["rows"] if path.exists() else []
    drawn_at_random = any(row["name"].endswith(RANDOM) for row in rows)
    for axis, passes in zip(axes.flat, ("forward", "backward"), strict=True):
        label(axis, passes, "megabytes that must be moved", "" if passes == "backward" else "share of a copy's speed")
        axis.set(xscale="log", xlim=(100, 10_000), ylim=(0, 1.05))
        axis.set_xticks([100, 1_000, 10_000], ["100", "1,000", "10,000"])
        axis.axhline(1, color=GREY, linewidth=0.8, linestyle=(0, (1, 2)))
        for name in (kernel for kernel in KERNELS if kernel.endswith(passes)):
            draw_kernel(axis, name.split()[0], shares(rows, name, drawn_at_random))
    if any(line.get_marker() == "o" for line in axes.flat[0].lines):
        axes.flat[0].legend(frameon=False, fontsize=8, loc="lower right")
    words = "random shapes" if drawn_at_random else "shapes on which the kernels were tuned; others are slower"
    figure.supxlabel(words if rows else "no results yet: multistable bench --device cuda", fontsize=8, color=GREY)
    return figure


def draw_kernel(axis: Axes, name: str, found: Sequence[tuple[float, float, str]]) -> None:
    for dtype, inside in (("float32", COLOURS[name]), ("bfloat16", "white")):
        points = [(size, share) for size, share, own in found if own == dtype]
        if points:
            words = name if dtype == "float32" else None
            axis.plot(*zip(*points, strict=True), "o", ms=5, color=COLOURS[name], mfc=inside, label=words)


def shares(rows: Sequence[dict[str, Any]], kernel: str, random: bool) -> list[tuple[float, float, str]]:
    """Megabytes, share of a copy's speed and dtype of each row of a kernel.

    >>> shares([{"name": "LRU forward", "baseline": "copy of 1,233 MB", "ratio": 0.8, "dtype": "float32"}],
    ...        "LRU forward", random=False)
    [(1233.0, 0.8, 'float32')]
    """
    found = []
    for row in rows:
        size = re.fullmatch(r"copy of ([\d,]+) MB", row["baseline"])
        if size and row["name"] == kernel + RANDOM * random:
            found.append((float(size[1].replace(",", "")), row["ratio"], row["dtype"]))
    return found
