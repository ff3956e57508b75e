"""Dashes and markers match the original program."""

import math

import numpy as np
from PIL import Image

from multistable_experiments.tasks.pathfinder import glyphs
from multistable_experiments.tasks.pathfinder.settings import SIZE, settings

HARD = settings("hard")

# The marker's pixels around its cell, from images of the original program (rows and columns -2 to 2).
MARKER = [[0, 28, 65, 3, 1], [28, 228, 254, 133, 2], [66, 255, 255, 190, 6], [0, 132, 178, 55, 1], [1, 0, 0, 0, 1]]


def test_dash_matches_the_original():
    line, zone = glyphs.dash(HARD, 0.0)
    assert line.shape == zone.shape == (9, 9)
    assert line[4, 3:8].tolist() == [0, 102, 135, 116, 0]
    dashes = np.stack([glyphs.dash(HARD, math.radians(d))[0] for d in range(360)]) / 255
    peak, mass = dashes.max(axis=(1, 2)), dashes.sum(axis=(1, 2))
    assert (round(peak.min(), 2), round(peak.max(), 2), round(peak.mean(), 2)) == (0.40, 0.60, 0.47)
    assert (round(mass.min(), 2), round(mass.max(), 2), round(mass.mean(), 2)) == (1.01, 1.77, 1.50)


def test_disc_matches_the_original():
    disc = glyphs.disc(HARD, 16, 16)
    R = glyphs.disc_reach(HARD)
    assert disc[R - 2 : R + 3, R - 2 : R + 3].tolist() == MARKER


def test_disc_near_a_border_is_clipped_like_a_whole_image():
    R = glyphs.disc_reach(HARD)
    for y, x in [(0, 0), (2, 29), (SIZE - 3, 3), (SIZE - 1, SIZE - 1), (SIZE // 2, 1), (5, 6), (7, SIZE - 8)]:
        yy, xx = np.ogrid[: 2 * SIZE, : 2 * SIZE]
        canvas = ((yy - 2 * y) ** 2 + (xx - 2 * x) ** 2 <= (2 * HARD.marker_radius) ** 2) * np.uint8(255)
        whole = np.asarray(Image.fromarray(canvas).resize((SIZE, SIZE), Image.Resampling.LANCZOS))
        pasted = np.zeros((SIZE + 2 * R, SIZE + 2 * R), np.uint8)
        pasted[y : y + 2 * R + 1, x : x + 2 * R + 1] = glyphs.disc(HARD, y, x)
        assert np.array_equal(pasted[R:-R, R:-R], whole), (y, x)
