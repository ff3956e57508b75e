"""Images as lists of strokes, and the one function that draws them.

A stroke is a glyph (a small patch: a dash in some direction and contrast, a marker) and the cell it is centred on; an
image is the maximum of its strokes, spread over 0 to 255. Hard images have 39 strokes of 4 bytes, not 1024 pixels.
Needs numpy only.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["Glyphs", "Strokes", "first", "join", "render"]

_CHUNK = 256  # images drawn at once: their canvases stay in the cache


@dataclass(frozen=True)
class Glyphs:
    """The patches of one kind of images."""

    size: int
    """Side S of an image."""
    levels: NDArray[np.float64]
    """``[V]``: the brightnesses that occur, ascending, the first 0."""
    patches: NDArray[np.uint16]
    """``[G, P, P]``, P odd: numbers of levels. Levels ascend, so a maximum of numbers is one of brightnesses."""


@dataclass(frozen=True)
class Strokes:
    """n images. The strokes of all images follow each other: long snakes, distractors, the two markers."""

    count: NDArray[np.uint16]
    """``[n]``: strokes of each image."""
    label: NDArray[np.uint8]
    """``[n]``: 1 where the markers sit on the two ends of one snake."""
    margin: NDArray[np.uint8]
    """``[n]``: the gap between paddles."""
    glyph: NDArray[np.uint16]
    y: NDArray[np.uint8]
    x: NDArray[np.uint8]

    def __len__(self) -> int:
        return len(self.count)


def join(parts: Sequence[Strokes]) -> Strokes:
    """The images of all parts, one after the other."""
    return Strokes(*(np.concatenate([getattr(p, f) for p in parts]) for f in Strokes.__dataclass_fields__))


def first(strokes: Strokes, n: int) -> Strokes:
    """The first n images, or all if there are fewer."""
    end = int(strokes.count[:n].sum())
    ends = {"count": n, "label": n, "margin": n, "glyph": end, "y": end, "x": end}
    return Strokes(**{name: getattr(strokes, name)[:stop] for name, stop in ends.items()})


def render(glyphs: Glyphs, strokes: Strokes) -> NDArray[np.uint8]:
    """Draw the images: ``[n, S, S]``."""
    n, S = len(strokes), glyphs.size
    images = np.empty((n, S, S), np.uint8)
    ends = np.cumsum(strokes.count, dtype=np.int64)
    for start in range(0, n, _CHUNK):
        part = slice(start, min(start + _CHUNK, n))
        images[part] = _to_bytes(glyphs.levels[_paint(glyphs, strokes, strokes.count[part], ends[part])])
    return images


def _paint(glyphs: Glyphs, strokes: Strokes, count: NDArray[np.uint16], ends: NDArray[np.int64]) -> NDArray[np.uint16]:
    """The number of the level of each pixel ``[n, S, S]``, on a canvas with room for patches that cross the border."""
    n, S, P = len(count), glyphs.size, glyphs.patches.shape[1]
    side = S + P - 1
    canvas = np.zeros(n * side * side, np.uint16)
    window = (np.arange(P)[:, None] * side + np.arange(P)).ravel()
    patches = glyphs.patches.reshape(len(glyphs.patches), -1)
    for k in range(int(count.max(initial=0))):
        images = np.flatnonzero(count > k)
        stroke = ends[images] - count[images] + k
        corner = images * side * side + strokes.y[stroke].astype(np.int64) * side + strokes.x[stroke]
        cells = corner[:, None] + window
        canvas[cells] = np.maximum(canvas[cells], patches[strokes.glyph[stroke]])
    edge = P // 2
    return canvas.reshape(n, side, side)[:, edge : edge + S, edge : edge + S]


def _to_bytes(values: NDArray[np.float64]) -> NDArray[np.uint8]:
    """Spread each image over 0 to 255 and round, as ``scipy.misc.imsave`` did."""
    low, high = values.min(axis=(1, 2), keepdims=True), values.max(axis=(1, 2), keepdims=True)
    return (np.clip((values - low) * (255.0 / (high - low)), 0, 255) + 0.5).astype(np.uint8)
