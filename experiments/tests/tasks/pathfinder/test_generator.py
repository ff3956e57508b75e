"""The generator: images are complete, seeded and like the original's, and labels do not leak."""

import hashlib
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from multistable_experiments.tasks.pathfinder.generator import draw, draw_strokes, prepare, render
from multistable_experiments.tasks.pathfinder.settings import LEVELS, settings
from pathfinder_statistics import per_image, same_distribution, standard_errors

COUNT = 5000  # number of images in the tests of labels


@pytest.mark.parametrize("level", LEVELS)
def test_every_paddle_and_two_markers_are_placed(level):
    s = settings(level)
    glyphs = prepare(s)[1]
    L = s.contour_length
    for label, strokes in draw_strokes(s, seed=3, batch=0, count=200):
        targets, others, markers = strokes[: 2 * L], strokes[2 * L : -2], strokes[-2:]
        assert (targets[:, 0] < glyphs.distractors).all()
        assert len(others) % s.distractor_length == 0
        assert ((others[:, 0] >= glyphs.distractors) & (others[:, 0] < glyphs.markers)).all()
        assert (markers[:, 0] >= glyphs.markers).all()
        first, last = targets[[0, L], 1:], targets[[L - 1, 2 * L - 1], 1:]
        origins = [a for a in (0, 1) if (markers[0, 1:] == first[a]).all()]
        terminals = [a for a in (0, 1) if (markers[1, 1:] == last[a]).all()]  # rarely, both snakes end in the same cell
        assert label in [int(origin == terminal) for origin in origins for terminal in terminals]


def test_paddles_leave_gaps():
    """Paddles of a snake are spaced by about a paddle and two margins, and stay inside the padding."""
    s = settings("easy")
    for _, strokes in draw_strokes(s, 0, 0, 20):
        for a in (0, 1):
            tips = strokes[a * s.contour_length : (a + 1) * s.contour_length, 1:]
            steps = np.linalg.norm(np.diff(tips[1:], axis=0), axis=1)
            assert steps.max() <= 2 * (s.paddle_length + 2 * s.margin) + 2
            assert steps.min() > 0
            assert tips.min() >= s.padding
            assert tips.max() < 32 - s.padding


def test_render_takes_the_maximum_scaled_to_bytes():
    """Against a loop over strokes and pixels."""
    s = settings("hard")
    patches = prepare(s)[1].patches
    reach = patches.shape[1] // 2
    drawn = [strokes for _, strokes in draw_strokes(s, 0, 0, 3)]
    for strokes, image in zip(drawn, render(s, drawn), strict=True):
        canvas = np.zeros((32, 32))
        for glyph, y, x in strokes:
            for i, j in np.ndindex(patches.shape[1:]):
                at = y + i - reach, x + j - reach
                if min(at) >= 0 and max(at) < 32:
                    canvas[at] = max(canvas[at], patches[glyph, i, j])
        assert np.array_equal(image, np.floor(canvas * 255 / canvas.max() + 0.5))
        assert image.max() == 255
        assert image.min() == 0


def test_images_depend_on_seed_and_batch_only():
    s = settings("easy")
    many, few = draw(s, 7, 2, 50), draw(s, 7, 2, 20)
    assert all(np.array_equal(a[:20], b) for a, b in zip(many, few, strict=True))
    for key in ((7, 3), (8, 2)):
        assert not (few[0] == draw(s, *key, 20)[0]).all(axis=(1, 2)).any()
    with pytest.raises(ValueError, match="seed must be at least 0, got -1"):
        draw(s, -1, 0, 1)


@pytest.mark.parametrize(
    ("level", "digest"),
    [("easy", "273a0defdde1becb"), ("intermediate", "8f7814e1fea3b612"), ("hard", "317f69ac60efe3c4")],
)
def test_images_are_unchanged(level, digest):
    """Data sets are identified by their seed: another Pillow, numpy or numba must not silently change them."""
    images, labels = draw(settings(level), 0, 0, 200)
    assert hashlib.sha256(images.tobytes() + labels.tobytes()).hexdigest()[:16] == digest


@pytest.fixture(scope="module")
def hard() -> tuple[np.ndarray, np.ndarray, list[np.ndarray]]:
    """Images, labels and strokes of the hard level."""
    s = settings("hard")
    drawn = [each for batch in range(COUNT // 1000) for each in draw_strokes(s, 11, batch, 1000)]
    strokes = [strokes for _, strokes in drawn]
    return render(s, strokes), np.array([label for label, _ in drawn]), strokes


def test_labels_are_balanced(hard):
    _, labels, _ = hard
    assert abs(labels.mean() - 0.5) < 3 * 0.5 / np.sqrt(COUNT)


def test_labels_do_not_correlate_with_brightness_or_order(hard):
    images, labels, _ = hard
    mean = images.mean(axis=(1, 2))
    assert abs(standard_errors(mean[labels == 1], mean[labels == 0])) < 3
    repeats = (labels[1:] == labels[:-1]).mean()
    assert abs(repeats - 0.5) < 3 * 0.5 / np.sqrt(COUNT)


def test_markers_are_as_far_apart_as_in_the_original(hard):
    """13.3 +- 5.2 on one snake, 12.5 +- 4.9 on two, from 330 images, half of each label."""
    _, labels, strokes = hard
    distance = np.array([np.linalg.norm(image[-1, 1:] - image[-2, 1:]) for image in strokes])
    for label, mean, deviation in ((1, 13.3, 5.2), (0, 12.5, 4.9)):
        values = distance[labels == label]
        assert abs(values.mean() - mean) < 3 * deviation / np.sqrt(165)
        assert abs(values.std() - deviation) < 3 * deviation / np.sqrt(2 * 165)


def test_no_image_occurs_twice(hard):
    images, _, _ = hard
    assert len(np.unique(images.reshape(COUNT, -1), axis=0)) == COUNT


def test_a_linear_probe_learns_nothing(hard):
    """Ridge regression of the label on the pixels; a leak would show in the half of the images held out."""
    images, labels, _ = hard
    x = torch.from_numpy(images.reshape(COUNT, -1)).double() / 255
    y = torch.from_numpy(labels).double() * 2 - 1
    x = torch.cat([x, torch.ones(COUNT, 1)], dim=1)
    half = COUNT // 2
    gram = x[:half].T @ x[:half] + 10 * torch.eye(x.shape[1])
    right = ((x[half:] @ torch.linalg.solve(gram, x[:half].T @ y[:half])).sign() == y[half:]).double().mean()
    assert abs(float(right) - 0.5) < 3 * 0.5 / np.sqrt(half) + 0.02


# Two-sample tests against images of the original program

REFERENCE = {
    "hard-10": ("hard", 10, "hard_nd10_330"),
    "hard-5": ("hard", 5, "hard_nd5_200"),
    "easy-10": ("easy", 10, "easy_nd10_600"),
}


@pytest.fixture(scope="module", params=REFERENCE)
def pair(request) -> tuple[np.ndarray, np.ndarray]:
    """Images of the original program, and 4,000 of ours."""
    level, distractors, name = REFERENCE[request.param]
    path = Path(os.environ.get("MULTISTABLE_DATA", ".")) / "pathfinder_reference" / f"{name}.npz"
    if not path.exists():
        pytest.skip(f"no {path.name} in $MULTISTABLE_DATA/pathfinder_reference")
    s = replace(settings(level), distractors=distractors)
    ours = np.concatenate([draw(s, 1, batch, 1000)[0] for batch in range(4)])
    with np.load(path) as file:
        return file["x"], ours


def test_means_agree_within_their_sampling_error(pair):
    theirs, ours = (per_image(x) for x in pair)
    off = {name: round(standard_errors(ours[name], theirs[name]), 2) for name in theirs}
    assert {name: z for name, z in off.items() if abs(z) > 3.3} == {}  # one set of 25 in 40 exceeds it by chance
    assert np.mean([z * z for z in off.values()]) < 3


def test_distributions_over_images_agree(pair):
    theirs, ours = (per_image(x) for x in pair)
    p = {name: same_distribution(ours[name], theirs[name]) for name in ("mean", "second moment", "centre", "left half")}
    assert min(p.values()) > 0.002, p


def test_every_pixel_has_the_same_mean(pair):
    """The map of means differs from ours no more than the maps of equally many of our own images do."""
    used = pair[1].mean(axis=0) > 2  # elsewhere one stroke in a hundred images dominates
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
