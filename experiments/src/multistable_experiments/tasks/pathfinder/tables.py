"""Lookup tables of the generator's loops: directions, candidates, exclusion zones, free cells.

Directions are numbered: 0 to 359 are the whole degrees from -180 at which a snake may start, 360 + k points from a
pivot to candidate k. Angles are in radians, the unit vector is (y, x) = (sin, cos).
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from multistable_experiments.tasks.pathfinder.glyphs import Patch, dash
from multistable_experiments.tasks.pathfinder.settings import SIZE, Settings

__all__ = ["Tables", "tables"]

DEGREES = 360


class Tables(NamedTuple):
    """A directions, K candidates, P the side of a patch; L is the length of a paddle and m the margin."""

    to_pivot: NDArray[np.float64]
    """``[A, 2]``: from a pivot to the next one, L + 2m ahead."""
    to_head: NDArray[np.float64]
    """``[360, 2]``: from the tail of a first paddle to its head, L ahead."""
    to_first_pivot: NDArray[np.float64]
    """``[360, 2]``: from that head to the first pivot, L + m back."""
    around: NDArray[np.float64]
    """``[360, 2]``: from the first tip of one long snake to that of the other."""
    candidates: NDArray[np.int64]
    """``[K, 2]``: from a pivot to where the next paddle may end."""
    straightness: NDArray[np.float64]
    """``[A, K]``: weight of candidate k after direction a."""
    zone: NDArray[np.float32]
    """``[A, P, P]``: the exclusion zone of a paddle. Paddles 360 + k run from candidate k back to the pivot."""
    neighbours: NDArray[np.int64]
    """``[.., 2]``: the cells within m of a cell."""
    body: NDArray[np.int64]
    """``[360, .., 2]``: the cells that a first paddle covers fully, relative to its tail."""
    body_count: NDArray[np.int64]
    """``[360]``: their number; 0 where no snake may start in this direction."""
    starts: NDArray[np.int64]
    """``[360, .., 2]``: the cells at which the first long snake may start."""
    start_count: NDArray[np.int64]


def tables(s: Settings) -> tuple[Tables, NDArray[np.uint8]]:
    """The tables, and the dashes ``[A, P, P]`` to draw."""
    L, m = s.paddle_length, s.margin
    degrees = np.arange(-180, 180) * np.pi / 180
    candidates = _candidates(L + m)
    ahead = np.arctan2(candidates[:, 0], candidates[:, 1])
    theta = np.concatenate([degrees, ahead])
    drawn = [dash(s, angle) for angle in np.concatenate([degrees, _flip(ahead)])]
    zone = np.stack([zone for _, zone in drawn])
    bodies = [_body(patch, L + m) for patch in zone[:DEGREES]]
    frame = np.ones((SIZE, SIZE), bool)
    edge = max(2 * s.seed_distance, s.padding)
    frame[edge : SIZE - edge, edge : SIZE - edge] = False
    body, body_count = _pad_rows(bodies)
    starts, start_count = _pad_rows([_free(frame, body) if len(body) else body for body in bodies])
    return Tables(
        to_pivot=(L + 2 * m) * _unit(theta),
        to_head=L * _unit(degrees),
        to_first_pivot=(L + m) * _unit(_flip(degrees)),
        around=s.seed_distance * _unit(np.arange(360) * np.pi / 180),
        candidates=candidates,
        straightness=_straightness(theta, ahead, s.continuity),
        zone=(zone / 255).astype(np.float32),
        neighbours=_disc(m),
        body=body,
        body_count=body_count,
        starts=starts,
        start_count=start_count,
    ), np.stack([line for line, _ in drawn])


def _unit(theta: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.stack([np.sin(theta), np.cos(theta)], axis=-1)


def _flip(theta: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.where(theta < 0, theta + np.pi, theta - np.pi)


def _candidates(radius: int) -> NDArray[np.int64]:
    """Distinct cells on a circle around a pivot, one for each pixel of its length, rounded down."""
    angles = np.arange(0, 360, 360 / (2 * radius * np.pi)) * np.pi / 180
    return np.unique(np.floor(radius * _unit(angles)).astype(np.int64), axis=0)


def _straightness(before: NDArray[np.float64], after: NDArray[np.float64], continuity: float) -> NDArray[np.float64]:
    """``cos(min(continuity * delta, pi / 2))^2`` for a turn by delta from each direction to each other."""
    delta = np.abs(after[None, :] - before[:, None])
    delta = np.minimum(delta, 2 * np.pi - delta)
    return np.maximum(np.cos(np.minimum(delta * continuity, np.pi / 2)), 0) ** 2


def _disc(radius: int) -> NDArray[np.int64]:
    y, x = np.mgrid[-radius : radius + 1, -radius : radius + 1]
    return np.argwhere(y * y + x * x <= radius * radius) - radius


def _body(zone: Patch, half: int) -> NDArray[np.int64]:
    """Cells that a first paddle covers fully, relative to one cell left of and above its tail; empty if none may start.

    The original finds free cells with OpenCV's dilation of the taken ones by a window ``[2 half + 1]^2`` in which the
    paddle is drawn, its tail one right of and below the centre. Where the window holds no cell of the image the
    dilation is -1.8e308, and the search gives up when it meets a negative number. So the first paddle of a snake runs
    only in directions whose body can nowhere lie outside the image: -150 to -121 degrees. With all directions the hard
    level needs 43 attempts and places 8.1 of 10 distractors; this way it is 313 and 2.2 (the original: 315 and 2.2).
    """
    cells = np.argwhere(zone == 255) - len(zone) // 2 + 1
    cells = cells[(np.abs(cells) <= half).all(axis=1)]
    everything = np.ones((2 * half + 1, 2 * half + 1), bool)
    return cells[:0] if len(_free(everything, cells)) else cells


def _free(taken: NDArray[np.bool_], body: NDArray[np.int64]) -> NDArray[np.int64]:
    """Cells from which no cell of a body is taken; cells outside the image are not taken."""
    reach = int(np.abs(body).max(initial=0))
    padded = np.pad(taken, reach)
    S = len(taken)
    hit = np.zeros_like(taken)
    for dy, dx in body + reach:
        hit |= padded[dy : dy + S, dx : dx + S]
    return np.argwhere(~hit)


def _pad_rows(rows: list[NDArray[np.int64]]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Rows of different lengths as one zero-padded array, and the lengths."""
    counts = np.array([len(row) for row in rows])
    out = np.zeros((len(rows), max(1, counts.max()), 2), np.int64)
    for line, row in zip(out, rows, strict=True):
        line[: len(row)] = row
    return out, counts
