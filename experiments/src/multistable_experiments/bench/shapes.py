"""Shapes for the benchmark on a GPU, drawn from a seed that nobody can tune for: the digits of the measured commit."""

import random
from math import ceil, exp, log

__all__ = ["SMALL", "Shape", "percentile", "random_shapes", "seed_of"]

Shape = tuple[int, int, int]
"""B, T, N."""
COUNT = 40
BATCHES, LENGTHS, WIDTHS = (1, 1024), (64, 1 << 20), (32, 4096)
LEAST, MOST = 256e6, 4e9
"""Bytes that a BMRU's forward must move, three tensors: below, launching and latency rule."""
SMALL: tuple[Shape, ...] = (
    (1, 1000, 64), (16, 32, 64), (16, 1000, 64), (32, 1000, 100), (7, 9999, 200), (4, 100_000, 64), (64, 784, 64),
    (256, 100, 256), (1, 65_536, 256), (8, 4096, 512),
)  # fmt: skip
"""Shapes that move less, compared with a copy of as many bytes, without a goal."""


def seed_of(commit: str | None) -> int:
    """The first eight hexadecimal digits of a commit; 0 if it is unknown.

    >>> seed_of("0000000f12")
    15
    """
    return int(commit[:8], 16) if commit else 0


def random_shapes(seed: int, count: int = COUNT) -> list[tuple[Shape, int]]:
    """Shapes, each with the bytes of a number, 4 and 2 in turns. Sizes are uniform on a logarithmic scale; half of the
    widths are multiples of 64, a quarter of 8, and a quarter any number."""
    draw = random.Random(seed)
    shapes: list[tuple[Shape, int]] = []
    while len(shapes) < count:
        multiple, itemsize = (64, 64, 8, 1)[len(shapes) // 2 % 4], (4, 2)[len(shapes) % 2]
        B, T, N = (round(exp(draw.uniform(log(least), log(most)))) for least, most in (BATCHES, LENGTHS, WIDTHS))
        N = max(multiple, round(N / multiple) * multiple)
        if LEAST <= 3 * itemsize * B * T * N <= MOST:
            shapes.append(((B, T, N), itemsize))
    return shapes


def percentile(values: list[float], share: float) -> float:
    """The smallest value such that at least this share of them is not above it; the lower of two medians.

    >>> percentile([0.9, 0.1, 0.5], 0.5), percentile([0.9, 0.1, 0.5, 0.7], 0.5)
    (0.5, 0.5)
    """
    return sorted(values)[ceil(share * len(values)) - 1]
