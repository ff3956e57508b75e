"""The generator: what every image must hold, and that a seed decides all of it."""

import math

import numpy as np
import pytest
from PIL import Image

from multistable_experiments.tasks.pathfinder import glyphs as patches
from multistable_experiments.tasks.pathfinder.generator import _kit, draw, glyphs
from multistable_experiments.tasks.pathfinder.kernels import place
from multistable_experiments.tasks.pathfinder.settings import settings
from multistable_experiments.tasks.pathfinder.strokes import Glyphs, Strokes, first, join, render

LEVELS = ("easy", "intermediate", "hard")

# The marker's pixels around its cell, from images of the original program (rows and columns -2 to 2).
MARKER = [[0, 28, 65, 3, 1], [28, 228, 254, 133, 2], [66, 255, 255, 190, 6], [0, 132, 178, 55, 1], [1, 0, 0, 0, 1]]


def rows(strokes: Strokes) -> list[np.ndarray]:
    """(glyph, y, x) of each image."""
    table = np.stack([strokes.glyph, strokes.y, strokes.x], axis=1).astype(int)
    return np.split(table, np.cumsum(strokes.count)[:-1])


def test_dash_is_that_of_the_original():
    line, room = patches.dash(settings("hard"), 1, 0.0)
    assert line.shape == room.shape == (9, 9)
    assert line[4, 3:8].tolist() == [0, 102, 135, 116, 0]
    s = settings("hard")
    dashes = np.stack([patches.dash(s, 1, math.radians(d))[0] for d in range(360)]) / 255
    peak, mass = dashes.max(axis=(1, 2)), dashes.sum(axis=(1, 2))
    assert (round(peak.min(), 2), round(peak.max(), 2), round(peak.mean(), 2)) == (0.40, 0.60, 0.47)
    assert (round(mass.min(), 2), round(mass.max(), 2), round(mass.mean(), 2)) == (1.01, 1.77, 1.50)


def test_disc_is_that_of_the_original():
    s = settings("hard")
    middle = patches.disc_classes(s) // 2
    disc = patches.disc(s, middle, middle)
    R = patches.disc_reach(s)
    assert disc[R - 2 : R + 3, R - 2 : R + 3].tolist() == MARKER


@pytest.mark.parametrize("size", [32, 64])
def test_disc_near_a_border_is_cut_like_a_whole_image(size):
    s = settings("hard", size=size)
    R, C = patches.disc_reach(s), patches.disc_classes(s)
    for y, x in [(0, 0), (2, 29), (size - 3, 3), (size - 1, size - 1), (size // 2, 1), (5, 6), (7, size - 8)]:
        yy, xx = np.ogrid[: 2 * size, : 2 * size]
        canvas = ((yy - 2 * y) ** 2 + (xx - 2 * x) ** 2 <= (2 * s.marker_radius) ** 2) * np.uint8(255)
        whole = np.asarray(Image.fromarray(canvas).resize((size, size), Image.Resampling.LANCZOS))
        found = patches.disc(s, patches.disc_class(y, C, size), patches.disc_class(x, C, size))
        pasted = np.zeros((size + 2 * R, size + 2 * R), np.uint8)
        pasted[y : y + 2 * R + 1, x : x + 2 * R + 1] = found
        assert np.array_equal(pasted[R:-R, R:-R], whole), (y, x)


@pytest.mark.parametrize("level", LEVELS)
def test_draw_places_every_paddle_and_two_markers(level):
    s = settings(level)
    kit = _kit(s)
    strokes = draw(s, seed=3, batch=0, count=200)
    L, short = s.contour_length, int(s.distractor_length)
    for label, image in zip(strokes.label, rows(strokes), strict=True):
        targets, others, markers = image[: 2 * L], image[2 * L : -2], image[-2:]
        assert (targets[:, 0] < kit.distractors[0]).all()
        assert len(others) % short == 0
        assert ((others[:, 0] >= kit.distractors[0]) & (others[:, 0] < kit.markers)).all()
        assert (markers[:, 0] >= kit.markers).all()
        first, last = targets[[0, L], 1:], targets[[L - 1, 2 * L - 1], 1:]
        origins = [a for a in (0, 1) if (markers[0, 1:] == first[a]).all()]
        terminals = [a for a in (0, 1) if (markers[1, 1:] == last[a]).all()]  # rarely both snakes end on one cell
        assert label in [int(origin == terminal) for origin in origins for terminal in terminals]


@pytest.mark.parametrize("size", [32, 64, 128])
def test_draw_leaves_gaps(size):
    """Paddles of one snake follow each other in steps of about a paddle and two margins, inside the padding."""
    s = settings("easy", size=size)
    for image, margin in zip(rows(draw(s, 0, 0, 20)), draw(s, 0, 0, 20).margin, strict=True):
        for a in (0, 1):
            tips = image[a * s.contour_length : (a + 1) * s.contour_length, 1:]
            steps = np.linalg.norm(np.diff(tips[1:], axis=0), axis=1)
            assert steps.max() <= 2 * (s.paddle_length + 2 * margin) + 2
            assert steps.min() > 0
            assert tips.min() >= s.padding
            assert tips.max() < size - s.padding


def test_render_is_the_maximum_spread_over_bytes():
    """Against a loop over strokes and pixels."""
    s = settings("hard")
    g, strokes = glyphs(s), draw(s, 0, 0, 3)
    reach = g.patches.shape[1] // 2
    for image, found in zip(rows(strokes), render(g, strokes), strict=True):
        canvas = np.zeros((32, 32))
        for glyph, y, x in image:
            for i, j in np.ndindex(g.patches.shape[1:]):
                at = y + i - reach, x + j - reach
                if min(at) >= 0 and max(at) < 32:
                    canvas[at] = max(canvas[at], g.levels[g.patches[glyph, i, j]])
        assert np.array_equal(found, np.floor(canvas * 255 / canvas.max() + 0.5))
        assert found.max() == 255
        assert found.min() == 0


def test_render_cuts_patches_at_the_border():
    corner = Strokes(*(np.array([v]) for v in (1, 0, 1, 0, 0, 2)))
    small = Glyphs(3, np.array([0.0, 1.0]), np.ones((1, 3, 3), np.uint16))
    assert render(small, corner)[0].tolist() == [[0, 255, 255], [0, 255, 255], [0, 0, 0]]


def test_draw_depends_on_seed_and_batch_only():
    s = settings("easy")
    g = glyphs(s)
    many, few = draw(s, 7, 2, 50), draw(s, 7, 2, 20)
    assert np.array_equal(render(g, many)[:20], render(g, few))
    others = [render(g, draw(s, *key, 20)) for key in ((7, 3), (8, 2))]
    assert all(not (render(g, few) == other).all(axis=(1, 2)).any() for other in others)
    assert np.array_equal(render(g, first(many, 20)), render(g, few))
    assert len(first(few, 30)) == 20
    assert len(join([many, few])) == 70
    assert np.array_equal(render(g, join([many, few]))[50:], render(g, few))


def test_draw_has_not_changed():
    """Data sets are named by their seed: another Pillow, numpy or numba must not change them unnoticed."""
    s = settings("hard")
    strokes = draw(s, 0, 0, 5)
    assert [len(image) for image in rows(strokes)] == [42, 34, 38, 42, 34]
    assert render(glyphs(s), strokes).sum(axis=(1, 2), dtype=int).tolist() == [23906, 21634, 21040, 23384, 20077]


@pytest.mark.parametrize(
    ("level", "asked", "attempts", "placed", "n"),
    [("hard", 10, 315, 2.2, 330), ("hard", 5, 289, 1.2, 200), ("easy", 10, 22, 3.3, 600)],
)
def test_place_needs_as_many_attempts_as_the_original(level, asked, attempts, placed, n):
    """The table's means come from n images: attempts are geometric (deviation = mean), distractors printed to 0.1."""
    s = settings(level, distractors=asked)
    t = _kit(s).tables[0]
    rng = np.random.default_rng(0)
    strokes = np.empty((s.strokes, 3), np.int64)
    runs = [place(rng, t, 32, 1, s.contour_length, int(s.distractor_length), asked, 3, 5, strokes) for _ in range(2000)]
    counts = np.array([count for _, count, _ in runs])
    tries = np.array([tries for _, _, tries in runs])
    error = math.sqrt(1 / n + 1 / len(runs))
    assert abs(tries.mean() - attempts) < 3 * attempts * error
    assert abs(counts.mean() - placed) < 3 * counts.std() * error + 0.05


@pytest.mark.parametrize(
    ("words", "argument"),
    [({"level": "harder"}, "level"), ({"size": 33}, "size"), ({"distractors": -1}, "distractors")],
)
def test_settings_name_what_is_wrong(words, argument):
    with pytest.raises(ValueError, match=f"^{argument} must be .*, got "):
        settings(**words)
