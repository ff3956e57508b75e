"""Draw Pathfinder images: a fresh implementation of the algorithm of drewlinsley/pathfinder with the settings of LRA.

An image is a list of strokes. A stroke is a glyph (a small patch: a dash of some direction and contrast, or a marker)
and the cell it is centred on. Every batch has its own stream of random numbers, so batches can be drawn in any order.
"""

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from multistable_experiments.tasks.pathfinder.glyphs import disc
from multistable_experiments.tasks.pathfinder.kernels import paint, place
from multistable_experiments.tasks.pathfinder.settings import SIZE, Settings
from multistable_experiments.tasks.pathfinder.tables import Tables, tables

__all__ = ["draw", "draw_strokes", "render"]

Strokes = NDArray[np.int64]
"""``[k, 3]``: glyph, y, x; first the long snakes, then the distractors, then the two markers."""


class Glyphs(NamedTuple):
    """All patches, and where those of each kind start."""

    patches: NDArray[np.float64]
    """``[G, P, P]``, P odd: brightness."""
    distractors: int
    """Dashes of long snakes come first, then those of distractors."""
    markers: int
    """A marker for each cell, because the image's border cuts the filter that draws it."""


def draw(s: Settings, seed: int, batch: int, count: int) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """The first ``count`` images ``[n, 32, 32]`` of a batch and their labels ``[n]``: 1 if one snake joins the markers.

    >>> from multistable_experiments.tasks.pathfinder.settings import settings
    >>> draw(settings("easy"), seed=0, batch=0, count=2)[0].shape
    (2, 32, 32)
    """
    drawn = draw_strokes(s, seed, batch, count)
    return render(s, [strokes for _, strokes in drawn]), np.array([label for label, _ in drawn], np.uint8)


def draw_strokes(s: Settings, seed: int, batch: int, count: int) -> list[tuple[int, Strokes]]:
    """Labels and strokes of the first ``count`` images of a batch. They depend on seed and batch, not on ``count``."""
    if seed < 0:
        raise ValueError(f"seed must be at least 0, got {seed}")
    rng = np.random.default_rng([seed, batch])
    return [_draw_one(s, rng) for _ in range(count)]


def render(s: Settings, images: list[Strokes]) -> NDArray[np.uint8]:
    """Paint the images; each is spread over 0 to 255 and rounded, as ``scipy.misc.imsave`` did."""
    patches = prepare(s)[1].patches
    x = np.zeros((len(images), SIZE, SIZE))
    for canvas, strokes in zip(x, images, strict=True):
        paint(patches, strokes, canvas)
    low, high = x.min(axis=(1, 2), keepdims=True), x.max(axis=(1, 2), keepdims=True)
    return (np.clip((x - low) * (255.0 / (high - low)), 0, 255) + 0.5).astype(np.uint8)


def _draw_one(s: Settings, rng: np.random.Generator) -> tuple[int, Strokes]:
    lookup, glyphs = prepare(s)
    label = int(rng.integers(2))
    length, short = s.contour_length, s.distractor_length
    strokes = np.empty((s.max_strokes, 3), np.int64)
    tips, placed, _ = place(
        rng, lookup, s.padding, length, short, s.distractors, s.paddle_tries, s.snake_tries, strokes
    )
    end = 2 * length + placed * short
    strokes[2 * length : end, 0] += glyphs.distractors
    origin = int(rng.integers(2))
    terminal = origin if label else 1 - origin
    for i, (y, x) in enumerate((tips[origin, 0], tips[terminal, 1])):
        strokes[end + i] = glyphs.markers + y * SIZE + x, y, x
    return label, strokes[: end + 2]


@lru_cache(maxsize=4)
def prepare(s: Settings) -> tuple[Tables, Glyphs]:
    """The tables and glyphs of these settings."""
    lookup, dashes = tables(s)
    patches: list[NDArray[np.float64]] = []
    for contrast in (s.snake_contrast * s.paddle_contrast, s.snake_contrast):
        # single precision, as in the original: it decides ties when brightnesses are rounded to bytes
        patches.extend((dashes / 255 * contrast).astype(np.float32).astype(np.float64))
    patches.extend(disc(s, y, x) / 255 for y in range(SIZE) for x in range(SIZE))
    P = max(len(patch) for patch in patches)
    padded = np.stack([np.pad(patch, (P - len(patch)) // 2) for patch in patches])
    return lookup, Glyphs(padded, len(dashes), 2 * len(dashes))
