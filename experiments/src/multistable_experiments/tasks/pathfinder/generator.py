"""Draw Pathfinder images: a fresh implementation of the algorithm of drewlinsley/pathfinder with the settings of LRA.

Every batch has its own stream of random numbers, so batches can be made in any order and in any number of processes.
"""

from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from multistable_experiments.tasks.pathfinder.glyphs import disc, disc_class, disc_classes
from multistable_experiments.tasks.pathfinder.kernels import place
from multistable_experiments.tasks.pathfinder.settings import Settings, check_seed
from multistable_experiments.tasks.pathfinder.strokes import Glyphs, Strokes
from multistable_experiments.tasks.pathfinder.tables import Tables, tables

__all__ = ["draw", "glyphs"]


class _Kit(NamedTuple):
    """What it takes to draw: per margin the tables and the first glyphs of long and of short snakes; the markers'."""

    tables: tuple[Tables, ...]
    targets: tuple[int, ...]
    distractors: tuple[int, ...]
    markers: int
    glyphs: Glyphs


def glyphs(s: Settings) -> Glyphs:
    """The patches that images of these settings are drawn with."""
    return _kit(s).glyphs


def draw(s: Settings, seed: int, batch: int, count: int) -> Strokes:
    """The first ``count`` images of a batch; the same for the same seed and batch, whatever the count.

    >>> from multistable_experiments.tasks.pathfinder.settings import settings
    >>> from multistable_experiments.tasks.pathfinder.strokes import render
    >>> render(glyphs(settings("easy")), draw(settings("easy"), seed=0, batch=0, count=2)).shape
    (2, 32, 32)
    """
    check_seed(seed)
    kit = _kit(s)
    rng = np.random.default_rng([seed, batch])
    images = [_draw_one(s, kit, rng) for _ in range(count)]
    drawn = np.concatenate([strokes for _, _, strokes in images]) if images else np.empty((0, 3), np.int64)
    return Strokes(
        count=np.array([len(strokes) for _, _, strokes in images], np.uint16),
        label=np.array([label for label, _, _ in images], np.uint8),
        margin=np.array([margin for _, margin, _ in images], np.uint8),
        glyph=drawn[:, 0].astype(np.uint16),
        y=drawn[:, 1].astype(np.uint8),
        x=drawn[:, 2].astype(np.uint8),
    )


def _draw_one(s: Settings, kit: _Kit, rng: np.random.Generator) -> tuple[int, int, NDArray[np.int64]]:
    """Label, margin and strokes (glyph, y, x) of one image."""
    label, m = int(rng.integers(2)), int(rng.integers(len(s.margins)))
    length, short = s.contour_length, int(s.distractor_length)
    strokes = np.empty((s.strokes, 3), np.int64)
    tips, placed, _ = place(
        rng, kit.tables[m], s.size, s.padding, length, short, s.distractors, s.paddle_tries, s.snake_tries, strokes
    )
    end = 2 * length + placed * short
    strokes[: 2 * length, 0] += kit.targets[m]
    strokes[2 * length : end, 0] += kit.distractors[m]
    origin = int(rng.integers(2))
    terminal = origin if label else 1 - origin
    C = disc_classes(s)
    for i, (y, x) in enumerate((tips[origin, 0], tips[terminal, 1])):
        strokes[end + i] = kit.markers + disc_class(y, C, s.size) * C + disc_class(x, C, s.size), y, x
    return label, s.margins[m], strokes[: end + 2]


@lru_cache(maxsize=4)
def _kit(s: Settings) -> _Kit:
    sets = [tables(s, margin) for margin in s.margins]
    patches: list[NDArray[np.float64]] = []
    firsts: list[int] = []
    for _, dashes in sets:
        for contrast in (s.snake_contrast * s.paddle_contrast, s.snake_contrast):
            firsts.append(len(patches))
            # single precision, as in the original: it decides ties when brightnesses are rounded to bytes
            patches.extend((dashes / 255 * contrast).astype(np.float32).astype(np.float64))
    markers = len(patches)
    C = disc_classes(s)
    patches.extend(disc(s, row, col) / 255 for row in range(C) for col in range(C))
    return _Kit(tuple(t for t, _ in sets), tuple(firsts[::2]), tuple(firsts[1::2]), markers, _number(s.size, patches))


def _number(size: int, patches: Iterable[NDArray[np.float64]]) -> Glyphs:
    """Patches of different sides as one array of numbers of levels."""
    patches = list(patches)
    P = max(len(patch) for patch in patches)
    same = np.stack([np.pad(patch, (P - len(patch)) // 2) for patch in patches])
    levels, numbers = np.unique(same, return_inverse=True)
    return Glyphs(size, levels, numbers.reshape(same.shape).astype(np.uint16))
