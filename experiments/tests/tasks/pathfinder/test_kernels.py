"""The compiled loops: as many attempts as the original, and patches clipped at the border."""

import math
from dataclasses import replace

import numpy as np
import pytest

from multistable_experiments.tasks.pathfinder.generator import prepare
from multistable_experiments.tasks.pathfinder.kernels import paint, place
from multistable_experiments.tasks.pathfinder.settings import settings


@pytest.mark.parametrize(
    ("level", "distractors", "attempts", "placed", "n"),
    [("hard", 10, 315, 2.2, 330), ("hard", 5, 289, 1.2, 200), ("easy", 10, 22, 3.3, 600)],
)
def test_place_needs_as_many_attempts_as_the_original(level, distractors, attempts, placed, n):
    """The means come from n images. Attempts are geometric (deviation = mean); distractors are rounded to 0.1."""
    s = replace(settings(level), distractors=distractors)
    tables, _ = prepare(s)
    rng = np.random.default_rng(0)
    strokes = np.empty((s.max_strokes, 3), np.int64)
    runs = [
        place(rng, tables, 1, s.contour_length, s.distractor_length, distractors, 3, 5, strokes) for _ in range(2000)
    ]
    counts = np.array([count for _, count, _ in runs])
    tries = np.array([tries for _, _, tries in runs])
    error = math.sqrt(1 / n + 1 / len(runs))
    assert abs(tries.mean() - attempts) < 3 * attempts * error
    assert abs(counts.mean() - placed) < 3 * counts.std() * error + 0.05


def test_paint_clips_patches_at_the_border():
    canvas = np.zeros((3, 3))
    paint(np.ones((1, 3, 3)), np.array([[0, 0, 2]]), canvas)
    assert canvas.tolist() == [[0, 1, 1], [0, 1, 1], [0, 0, 0]]
