"""The patches that images are made of: a dash in each direction, its exclusion zone, and the disc of a marker.

Each is drawn at ``antialias`` times the size and reduced with Pillow's Lanczos filter on 8 bits, as the original does.
"""

import math

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from multistable_experiments.tasks.pathfinder.settings import SIZE, Settings

__all__ = ["dash", "disc", "disc_reach"]

Patch = NDArray[np.uint8]
LOBE = 3
"""The Lanczos filter reaches 3 pixels of the reduced image."""


def dash(s: Settings, theta: float) -> tuple[Patch, Patch]:
    """A dash that starts in the centre of its patch and runs in direction theta, and its exclusion zone.

    Both are ``[P, P]`` with ``P = 2 * s.reach + 1``.
    """
    centre = s.reach * s.antialias
    canvas = Image.new("L", (2 * centre + 1, 2 * centre + 1), 0)
    distance = s.paddle_length * s.antialias
    end = math.ceil(centre + distance * np.cos(theta)), math.ceil(centre + distance * np.sin(theta))  # (x, y)
    ImageDraw.Draw(canvas).line([(centre, centre), end], fill=255, width=int(s.paddle_thickness * s.antialias))
    zone = _dilate(np.asarray(canvas), s.margin * s.antialias)
    return _reduce(np.asarray(canvas), 2 * s.reach + 1), _reduce(zone, 2 * s.reach + 1)


def disc_reach(s: Settings) -> int:
    """Half the side of a marker's patch."""
    return math.ceil(s.marker_radius) + LOBE


def disc(s: Settings, y: int, x: int) -> Patch:
    """The marker of the cell (y, x) on a patch ``[2R + 1, 2R + 1]`` around it; the image's border cuts the filter."""
    R, aa = disc_reach(s), s.antialias
    rows, cols = np.ogrid[-y * aa : (SIZE - y) * aa, -x * aa : (SIZE - x) * aa]
    canvas = np.where(rows**2 + cols**2 <= (s.marker_radius * aa) ** 2, 255, 0).astype(np.uint8)
    return np.pad(_reduce(canvas, SIZE), R)[y : y + 2 * R + 1, x : x + 2 * R + 1]


def _dilate(canvas: Patch, radius: int) -> Patch:
    """The largest value within a disc around each pixel."""
    side = len(canvas)
    padded = np.pad(canvas, radius)
    out = np.zeros_like(canvas)
    for dy in range(-radius, radius + 1):
        for dx in range(-radius, radius + 1):
            if dy * dy + dx * dx <= radius * radius:
                top, left = radius + dy, radius + dx
                np.maximum(out, padded[top : top + side, left : left + side], out=out)
    return out


def _reduce(canvas: Patch, side: int) -> Patch:
    return np.asarray(Image.fromarray(canvas).resize((side, side), Image.Resampling.LANCZOS))
