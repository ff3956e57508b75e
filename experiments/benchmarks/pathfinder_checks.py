"""Check a whole file of Pathfinder images: balance, markers, paddles, no leak of the label, no image in two sets.

    python benchmarks/pathfinder_checks.py hard32.npz

Prints one line per check and exits with status 1 if one fails.
"""

import argparse
import hashlib
import math
import sys
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

from multistable_experiments.tasks.pathfinder.generated import BATCH, read
from multistable_experiments.tasks.pathfinder.generator import draw_strokes
from multistable_experiments.tasks.pathfinder.settings import settings
from multistable_experiments.tasks.pathfinder.task import split_rows


def difference(values: np.ndarray, labels: np.ndarray) -> tuple[float, float]:
    """Means of the images of label 1 less label 0, and the standard error."""
    a, b = values[labels == 1], values[labels == 0]
    return float(a.mean() - b.mean()), math.sqrt(a.var() / len(a) + b.var() / len(b))


def probe(images: np.ndarray, labels: np.ndarray, epochs: int = 20) -> float:
    """Accuracy of a logistic regression on pixels: trained on the first 80 %, tested on the last 10 %."""
    torch.manual_seed(0)
    x, y = torch.from_numpy(images).flatten(1), torch.from_numpy(labels).float()
    train, _, test = split_rows(len(x), "lra")
    model = torch.nn.Linear(x.shape[1], 1)
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(epochs):
        for batch in train[torch.randperm(len(train))].split(1000):
            loss = F.binary_cross_entropy_with_logits(model(x[batch].float() / 64).squeeze(1), y[batch])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
    with torch.no_grad():
        return float(((model(x[test].float() / 64).squeeze(1) > 0) == (y[test] > 0)).float().mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    path = parser.parse_args().file
    level, seed, labels, images = read(path)
    n, s = len(images), settings(level)
    strokes = [
        image
        for start in range(0, n, BATCH)
        for _, image in draw_strokes(s, seed, start // BATCH, min(BATCH, n - start))
    ]
    failed = []

    def check(name: str, value: object, holds: bool) -> None:
        print(f"{'ok  ' if holds else 'FAIL'} {name}: {value}", flush=True)
        if not holds:
            failed.append(name)

    check("size, MB", f"{path.stat().st_size / 1e6:.1f}", path.stat().st_size < 64e6)
    check("pixels, mean and standard deviation", f"{images.mean():.3f} {images.std():.3f}", True)
    check("share of label 1", f"{labels.mean():.4f}", abs(labels.mean() - 0.5) < max(0.005, 1.5 / math.sqrt(n)))
    others = np.array([len(image) for image in strokes]) - 2 * s.contour_length - 2
    whole = (others >= 0) & (others % s.distractor_length == 0)
    check("images with all paddles and two markers", f"{whole.mean():.4%}", bool(whole.all()))
    check("distractors per image", f"{others.mean() / s.distractor_length:.3f}", True)
    bright = (images > 215).sum(axis=(1, 2))
    check("fewest pixels as bright as a marker", int(bright.min()), int(bright.min()) >= 3)
    delta, error = difference(images.mean(axis=(1, 2)), labels)
    check("mean intensity, label 1 less label 0", f"{delta:+.4f} +- {error:.4f}", abs(delta) < 3 * error)
    distance = np.array([np.linalg.norm(image[-1, 1:] - image[-2, 1:]) for image in strokes])
    for label in (1, 0):
        values = distance[labels == label]
        check(f"distance between markers, label {label}", f"{values.mean():.2f} +- {values.std():.2f}", True)
    repeats = (labels[1:] == labels[:-1]).mean()
    check("neighbours in the file with one label", f"{repeats:.4f}", abs(repeats - 0.5) < 1.5 / math.sqrt(n))
    slope = np.corrcoef(np.arange(n) % BATCH, labels)[0, 1]
    check("correlation of label and place in the batch", f"{slope:+.4f}", abs(slope) < 3 / math.sqrt(n))
    digests = np.array([hashlib.blake2b(image.tobytes()).hexdigest() for image in images])
    for rule in ("paper", "lra", "s4"):
        sets = [set(digests[rows.numpy()].tolist()) for rows in split_rows(n, rule)]
        shared = len(sets[0] & sets[1]) + len(sets[0] & sets[2]) + len(sets[1] & sets[2])
        check(f"images in two sets, {rule}", shared, shared == 0)
    accuracy = probe(images, labels)
    check("logistic regression on pixels", f"{accuracy:.2%}", accuracy < 0.52)
    sys.exit(len(failed) > 0)


if __name__ == "__main__":
    main()
