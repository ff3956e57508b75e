"""What a whole Pathfinder file must hold: balance, markers, paddles, no leak of the label, no image in two sets.

    python benchmarks/pathfinder_checks.py hard32.npz

Prints one line per check and ends with status 1 if one fails.
"""

import argparse
import hashlib
import math
import sys
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

from multistable_experiments.tasks.pathfinder.compact import read_strokes
from multistable_experiments.tasks.pathfinder.splits import lra_split, paper_split, s4_split
from multistable_experiments.tasks.pathfinder.strokes import Strokes, render


def difference(values: np.ndarray, labels: np.ndarray) -> tuple[float, float]:
    """Means of the images of label 1 less label 0, and the standard error."""
    a, b = values[labels == 1], values[labels == 0]
    return float(a.mean() - b.mean()), math.sqrt(a.var() / len(a) + b.var() / len(b))


def marker_distance(strokes: Strokes) -> np.ndarray:
    last = np.cumsum(strokes.count, dtype=np.int64) - 1
    return np.hypot(*(v[last].astype(int) - v[last - 1] for v in (strokes.y, strokes.x)))


def probe(images: np.ndarray, labels: np.ndarray, epochs: int = 20) -> float:
    """Accuracy of a logistic regression on pixels: trained on the first 80 %, tested on the last 10 %."""
    torch.manual_seed(0)
    x, y = torch.from_numpy(images).flatten(1), torch.from_numpy(labels).float()
    train, _, test = lra_split(len(x))
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
    origin, glyphs, strokes = read_strokes(path)
    images, labels = render(glyphs, strokes), strokes.label
    n, s = len(images), origin.settings
    failed = []

    def check(name: str, value: object, holds: bool) -> None:
        print(f"{'ok  ' if holds else 'FAIL'} {name}: {value}", flush=True)
        if not holds:
            failed.append(name)

    check("size, MB", f"{path.stat().st_size / 1e6:.1f}", path.stat().st_size < 45e6)
    check("pixels, mean and standard deviation", f"{images.mean():.3f} {images.std():.3f}", True)
    check("share of label 1", f"{labels.mean():.4f}", abs(labels.mean() - 0.5) < max(0.005, 1.5 / math.sqrt(n)))
    others = strokes.count.astype(int) - 2 * s.contour_length - 2
    whole = (others >= 0) & (others % int(s.distractor_length) == 0)
    check("images with all paddles and two markers", f"{whole.mean():.4%}", bool(whole.all()))
    check("distractors per image", f"{others.mean() / int(s.distractor_length):.3f}", True)
    bright = (images > 215).sum(axis=(1, 2))
    check("fewest pixels as bright as a marker", int(bright.min()), int(bright.min()) >= 3)
    delta, error = difference(images.mean(axis=(1, 2)), labels)
    check("mean intensity, label 1 less label 0", f"{delta:+.4f} +- {error:.4f}", abs(delta) < 3 * error)
    distance = marker_distance(strokes)
    for label in (1, 0):
        found = distance[labels == label]
        check(f"distance between markers, label {label}", f"{found.mean():.2f} +- {found.std():.2f}", True)
    repeats = (labels[1:] == labels[:-1]).mean()
    check("neighbours in the file with one label", f"{repeats:.4f}", abs(repeats - 0.5) < 1.5 / math.sqrt(n))
    slope = np.corrcoef(np.arange(n) % origin.batch, labels)[0, 1]
    check("correlation of label and place in the batch", f"{slope:+.4f}", abs(slope) < 3 / math.sqrt(n))
    digests = np.array([hashlib.blake2b(image.tobytes()).hexdigest() for image in images])
    for rule in (paper_split, lra_split, s4_split):
        sets = [set(digests[rows.numpy()].tolist()) for rows in rule(n)]
        shared = len(sets[0] & sets[1]) + len(sets[0] & sets[2]) + len(sets[1] & sets[2])
        check(f"images in two sets, {rule.__name__}", shared, shared == 0)
    accuracy = probe(images, labels)
    check("logistic regression on pixels", f"{accuracy:.2%}", accuracy < 0.52)
    sys.exit(len(failed) > 0)


if __name__ == "__main__":
    main()
