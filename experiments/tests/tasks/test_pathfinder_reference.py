"""Two-sample tests: generated images against images by the original program."""

import os
from pathlib import Path

import numpy as np
import pytest

from multistable_experiments.tasks.pathfinder.generator import draw, glyphs
from multistable_experiments.tasks.pathfinder.settings import settings
from multistable_experiments.tasks.pathfinder.strokes import join, render
from pathfinder_statistics import per_image, same_distribution, standard_errors

SETS = {
    "hard-10": ("hard", 10, "hard_nd10_330"),
    "hard-5": ("hard", 5, "hard_nd5_200"),
    "easy-10": ("easy", 10, "easy_nd10_600"),
}
COUNT = 4000


@pytest.fixture(scope="module", params=SETS)
def pair(request):
    """Images by the original, and ours."""
    level, asked, name = SETS[request.param]
    path = Path(os.environ.get("MULTISTABLE_DATA", ".")) / "pathfinder_reference" / f"{name}.npz"
    if not path.exists():
        pytest.skip(f"no {path.name} in $MULTISTABLE_DATA/pathfinder_reference")
    s = settings(level, distractors=asked)
    ours = render(glyphs(s), join([draw(s, 1, batch, 1000) for batch in range(COUNT // 1000)]))
    with np.load(path) as file:
        return file["x"], ours


def test_means_agree_within_their_sampling_error(pair):
    theirs, ours = (per_image(x) for x in pair)
    off = {name: round(standard_errors(ours[name], theirs[name]), 2) for name in theirs}
    assert {name: z for name, z in off.items() if abs(z) > 3.3} == {}  # 25 statistics: one in 40 sets has one by chance
    assert np.mean([z * z for z in off.values()]) < 3


def test_distributions_over_images_agree(pair):
    theirs, ours = (per_image(x) for x in pair)
    p = {name: same_distribution(ours[name], theirs[name]) for name in ("mean", "second moment", "centre", "left half")}
    assert min(p.values()) > 0.002, p


def test_every_pixel_has_the_same_mean(pair):
    """The map of means is no further from ours than those of as many of our own images are."""
    used = pair[1].mean(axis=0) > 2  # elsewhere a stroke in a hundred images decides
    theirs, ours = (x[:, used].astype(np.float32) for x in pair)
    n, deviation = len(theirs), ours.std(axis=0)

    def distance(x: np.ndarray, others: np.ndarray) -> float:
        z = (x.mean(axis=0) - others.mean(axis=0)) / (deviation * np.sqrt(1 / len(x) + 1 / len(others)))
        return float((z**2).mean())

    by_chance = [
        distance(ours[k : k + n], np.delete(ours, np.s_[k : k + n], axis=0)) for k in range(0, len(ours) - n + 1, n)
    ]
    assert used.sum() > 700
    assert distance(theirs, ours) < max(by_chance) + np.std(by_chance)
