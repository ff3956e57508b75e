"""The labels: balanced, and to be had from the path only."""

import numpy as np
import pytest
import torch

from multistable_experiments.tasks.pathfinder.generator import draw, glyphs
from multistable_experiments.tasks.pathfinder.settings import settings
from multistable_experiments.tasks.pathfinder.strokes import Strokes, join, render
from pathfinder_statistics import standard_errors

COUNT = 5000


@pytest.fixture(scope="module")
def hard() -> tuple[np.ndarray, np.ndarray, Strokes]:
    s = settings("hard")
    strokes = join([draw(s, 11, batch, 1000) for batch in range(COUNT // 1000)])
    return render(glyphs(s), strokes), strokes.label, strokes


def test_labels_are_balanced(hard):
    _, labels, _ = hard
    assert abs(labels.mean() - 0.5) < 3 * 0.5 / np.sqrt(COUNT)


def test_labels_do_not_show_in_brightness_or_order(hard):
    images, labels, _ = hard
    mean = images.mean(axis=(1, 2))
    assert abs(standard_errors(mean[labels == 1], mean[labels == 0])) < 3
    repeats = (labels[1:] == labels[:-1]).mean()
    assert abs(repeats - 0.5) < 3 * 0.5 / np.sqrt(COUNT)


def test_markers_are_as_far_apart_as_in_the_original(hard):
    """13.3 +- 5.2 on one snake, 12.5 +- 4.9 on two, from 330 images of which half have the label."""
    _, labels, strokes = hard
    last = np.cumsum(strokes.count, dtype=int) - 1
    dy, dx = (v[last].astype(int) - v[last - 1] for v in (strokes.y, strokes.x))
    distance = np.hypot(dy, dx)
    for label, mean, deviation in ((1, 13.3, 5.2), (0, 12.5, 4.9)):
        found = distance[labels == label]
        assert abs(found.mean() - mean) < 3 * deviation / np.sqrt(165)
        assert abs(found.std() - deviation) < 3 * deviation / np.sqrt(2 * 165)


def test_no_image_comes_twice(hard):
    images, _, _ = hard
    assert len(np.unique(images.reshape(COUNT, -1), axis=0)) == COUNT


def test_a_linear_probe_learns_nothing(hard):
    """Ridge regression of the label on pixels, half of the images held out; a leak shows in the held-out half."""
    images, labels, _ = hard
    x = torch.from_numpy(images.reshape(COUNT, -1)).double() / 255
    y = torch.from_numpy(labels).double() * 2 - 1
    x = torch.cat([x, torch.ones(COUNT, 1)], dim=1)
    half = COUNT // 2
    gram = x[:half].T @ x[:half] + 10 * torch.eye(x.shape[1])
    right = ((x[half:] @ torch.linalg.solve(gram, x[:half].T @ y[:half])).sign() == y[half:]).double().mean()
    assert abs(float(right) - 0.5) < 3 * 0.5 / np.sqrt(half) + 0.02
