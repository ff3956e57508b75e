"""Statistics of Pathfinder images that two-sample tests compare."""

import math
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

EDGES = (0, 1, 10, 25, 50, 75, 100, 125, 150, 175, 200, 225, 250, 256)


def per_image(x: NDArray[np.uint8]) -> dict[str, NDArray[np.float64]]:
    """Statistics of each image, ``[n]`` each; their mean over images estimates the quantity."""
    v = x.astype(np.float64)
    ring = np.ones(x.shape[1:], bool)
    ring[1:-1, 1:-1] = False
    S = x.shape[1]
    centre = slice(S // 2 - 4, S // 2 + 4)
    mean = v.mean(axis=(1, 2))
    out = {
        "mean": mean,
        "second moment": (v**2).mean(axis=(1, 2)),
        "squared mean": mean**2,
        "border": v[:, ring].mean(axis=1),
        "centre": v[:, centre, centre].mean(axis=(1, 2)),
        "brightest quarter of rows": np.sort(v.mean(axis=2), axis=1)[:, -8:].mean(axis=1),
        "left half": v[:, :, : S // 2].mean(axis=(1, 2)),
        "upper half": v[:, : S // 2].mean(axis=(1, 2)),
        "neighbours in a row": (v[:, :, 1:] * v[:, :, :-1]).mean(axis=(1, 2)),
        "neighbours in a column": (v[:, 1:] * v[:, :-1]).mean(axis=(1, 2)),
        "neighbours on a diagonal": (v[:, 1:, 1:] * v[:, :-1, :-1]).mean(axis=(1, 2)),
        "neighbours on the other diagonal": (v[:, 1:, :-1] * v[:, :-1, 1:]).mean(axis=(1, 2)),
    }
    for low, high in pairwise(EDGES):
        out[f"share of {low}..{high - 1}"] = ((x >= low) & (x < high)).mean(axis=(1, 2))
    return out


def standard_errors(a: NDArray[np.float64], b: NDArray[np.float64]) -> float:
    """The difference of two means, in standard errors (Welch)."""
    return float((a.mean() - b.mean()) / math.sqrt(a.var(ddof=1) / len(a) + b.var(ddof=1) / len(b)))


def same_distribution(a: NDArray[np.float64], b: NDArray[np.float64]) -> float:
    """p-value of the Kolmogorov-Smirnov test (asymptotic)."""
    points = np.sort(np.concatenate([a, b]))
    shares = [np.searchsorted(np.sort(v), points, side="right") / len(v) for v in (a, b)]
    lam = np.abs(shares[0] - shares[1]).max() * math.sqrt(len(a) * len(b) / (len(a) + len(b)))
    if lam < 0.3:
        return 1.0  # the series below converges too slowly; the true value is above 0.9999
    return float(np.clip(2 * sum((-1) ** (k - 1) * math.exp(-2 * (k * lam) ** 2) for k in range(1, 101)), 0, 1))
