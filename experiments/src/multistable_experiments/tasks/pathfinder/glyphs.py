"""The patches that images are made of: a dash of each direction, the room it takes, and the disc of a marker.

Each is drawn at ``antialias`` times the size and reduced with Pillow's Lanczos filter on 8 bits, as the original does.
"""

import math

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from multistable_experiments.tasks.pathfinder.settings import Settings

__all__ = ["LOBE", "dash", "disc", "disc_class", "disc_classes", "disc_reach", "move"]

Patch = NDArray[np.uint8]
LOBE = 3
"""Lanczos' filter reaches 3 pixels of the reduced image."""


def move(y: int, x: int, theta: float, distance: float) -> tuple[int, int]:
    """The cell at a distance in direction theta, both coordinates rounded up."""
    return math.ceil(y + distance * np.sin(theta)), math.ceil(x + distance * np.cos(theta))


def dash(s: Settings, margin: int, theta: float) -> tuple[Patch, Patch]:
    """A dash that starts in the centre of its patch and runs in direction theta, and the room it takes.

    Both are ``[P, P]`` with ``P = 2 * s.reach(margin) + 1``.
    """
    width = s.paddle_thickness * s.antialias
    if width != int(width):
        raise ValueError(f"paddle_thickness * antialias must be a whole number, got {width}")
    reach = s.reach(margin)
    centre = reach * s.antialias
    canvas = Image.new("L", (2 * centre + 1, 2 * centre + 1), 0)
    end_y, end_x = move(centre, centre, theta, s.paddle_length * s.antialias)
    ImageDraw.Draw(canvas).line([(centre, centre), (end_x, end_y)], fill=255, width=int(width))
    room = _dilate(np.asarray(canvas), margin * s.antialias)
    return _reduce(np.asarray(canvas), 2 * reach + 1), _reduce(room, 2 * reach + 1)


def disc_reach(s: Settings) -> int:
    """Half the side of a marker's patch."""
    return math.ceil(s.marker_radius) + LOBE


def disc_classes(s: Settings) -> int:
    """Markers look alike except near a border, where the filter is cut: how many looks there are along an axis."""
    return 2 * (disc_reach(s) + LOBE) + 1


def disc_class(y: int, classes: int, size: int) -> int:
    """Which of the looks a marker in row (or column) y of an image has; the middle one is far from both borders."""
    far = classes // 2
    return min(y, far) + far - min(size - 1 - y, far)


def disc(s: Settings, row: int, col: int) -> Patch:
    """The marker of the classes (row, col) on a patch ``[2R + 1, 2R + 1]`` around its cell; zero outside the image."""
    R, aa = disc_reach(s), s.antialias
    size = disc_classes(s)  # in an image of this size the cell (row, col) has the classes (row, col)
    rows, cols = np.ogrid[-row * aa : (size - row) * aa, -col * aa : (size - col) * aa]
    canvas = np.where(rows**2 + cols**2 <= (s.marker_radius * aa) ** 2, 255, 0).astype(np.uint8)
    return np.pad(_reduce(canvas, size), R)[row : row + 2 * R + 1, col : col + 2 * R + 1]


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


def _reduce(canvas: Patch, size: int) -> Patch:
    return np.asarray(Image.fromarray(canvas).resize((size, size), Image.Resampling.LANCZOS))
