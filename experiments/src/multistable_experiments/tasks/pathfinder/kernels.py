"""The compiled loops that place snakes (numba). ``generator.py`` calls them.

A growing snake is ``[pivot y, pivot x, direction, paddle, tip y, tip x]``. The last three are its newest paddle, whose
zone is marked as taken only after the next one has been placed, so that a paddle may touch the one it continues.
Strokes are rows (paddle, y, x).
"""

import math

import numpy as np

from multistable.ops.compiled import compiled
from multistable_experiments.tasks.pathfinder.settings import SIZE

__all__ = ["paint", "place"]

_compile = compiled()

COLLISION = 1.8  # two paddles overlap where their zones add up to this
TAKEN = 0.3  # a cell above this is not free
DEAD_END = 1e-4  # a snake cannot continue if its candidates together weigh less
CROWDED = 0.01  # no more distractors if less than this share of the cells is free


@_compile
def _below(rng, n):
    return int(rng.random() * n)


@_compile
def _inside(mask, y, x):
    return 0 <= y < mask.shape[0] and 0 <= x < mask.shape[1]


@_compile
def _window(mask, patch, y, x):
    """The part of a patch centred on (y, x) that lies in the image: its first and last row and column."""
    reach, S = patch.shape[0] // 2, mask.shape[0]
    return max(0, reach - y), min(2 * reach, S - 1 - y + reach), max(0, reach - x), min(2 * reach, S - 1 - x + reach)


@_compile
def _collides(mask, patch, y, x):
    top, bottom, left, right = _window(mask, patch, y, x)
    dy, dx = y - patch.shape[0] // 2, x - patch.shape[0] // 2
    for i in range(top, bottom + 1):
        for j in range(left, right + 1):
            if np.float64(mask[i + dy, j + dx]) + np.float64(patch[i, j]) >= COLLISION:
                return True
    return False


@_compile
def _take(mask, patch, y, x):
    """Mark the zone of a paddle as taken."""
    top, bottom, left, right = _window(mask, patch, y, x)
    dy, dx = y - patch.shape[0] // 2, x - patch.shape[0] // 2
    for i in range(top, bottom + 1):
        for j in range(left, right + 1):
            mask[i + dy, j + dx] = max(mask[i + dy, j + dx], patch[i, j])


@_compile
def _blocked(mask, neighbours, y, x):
    """The largest value of the cells within the margin."""
    worst = mask[y, x]
    for n in range(neighbours.shape[0]):
        i, j = y + neighbours[n, 0], x + neighbours[n, 1]
        if _inside(mask, i, j):
            worst = max(worst, mask[i, j])
    return worst


@_compile
def _extend(rng, t, tries, mask, snake):
    """Add a paddle to a snake: turn at the next pivot towards a free candidate, straight ahead most likely."""
    pivot_y = math.ceil(snake[0] + t.to_pivot[snake[2], 0])
    pivot_x = math.ceil(snake[1] + t.to_pivot[snake[2], 1])
    K = t.candidates.shape[0]
    cumulative = np.empty(K)
    total = 0.0
    for k in range(K):
        y, x = pivot_y + t.candidates[k, 0], pivot_x + t.candidates[k, 1]
        weight = t.straightness[snake[2], k]
        if weight > 0.0 and _inside(mask, y, x):
            total += weight * (1.0 - _blocked(mask, t.neighbours, y, x))
        cumulative[k] = total
    if total < DEAD_END:
        return False
    for _ in range(tries):
        k = min(np.searchsorted(cumulative, rng.random() * total, side="right"), K - 1)
        y, x = pivot_y + t.candidates[k, 0], pivot_x + t.candidates[k, 1]
        paddle = t.around.shape[0] + k
        if not _collides(mask, t.zone[paddle], y, x):
            _take(mask, t.zone[snake[3]], snake[4], snake[5])
            snake[:] = (pivot_y, pivot_x, paddle, paddle, y, x)
            return True
    return False


@_compile
def _begin(t, mask, direction, y, x, snake):
    """Put the first paddle at (y, x); False if its head or first pivot would lie outside the image."""
    head_y, head_x = math.ceil(y + t.to_head[direction, 0]), math.ceil(x + t.to_head[direction, 1])
    pivot_y = math.ceil(head_y + t.to_first_pivot[direction, 0])
    pivot_x = math.ceil(head_x + t.to_first_pivot[direction, 1])
    snake[:] = (pivot_y, pivot_x, direction, direction, y, x)
    return _inside(mask, head_y, head_x) and _inside(mask, pivot_y, pivot_x)


@_compile
def _begin_first(rng, t, tries, mask, snake):
    """Begin a long snake near the centre of the image."""
    for _ in range(tries):
        direction = _below(rng, t.start_count.shape[0])
        if t.start_count[direction] == 0:
            return False
        cell = t.starts[direction, _below(rng, t.start_count[direction])]
        if _begin(t, mask, direction, cell[0], cell[1], snake):
            return True
    return False


@_compile
def _begin_second(rng, t, tries, mask, other, snake):
    """Begin a long snake at the seed distance from the other, without a test for overlap."""
    for _ in range(tries):
        direction = _below(rng, t.start_count.shape[0])
        offset = t.around[_below(rng, t.around.shape[0])]
        y, x = int(np.rint(other[4] + offset[0])), int(np.rint(other[5] + offset[1]))
        if _begin(t, mask, direction, y, x, snake):
            return True
    return False


@_compile
def _targets(rng, t, tries, length, padding, mask, strokes, tips):
    """Try once to place the two long snakes, which grow in turns. ``tips [2, 2, 2]``: snake, first or last, (y, x)."""
    pair = np.empty((2, 6), np.int64)
    if not _begin_first(rng, t, tries, mask, pair[0]):
        return False
    if not _begin_second(rng, t, tries, mask, pair[0], pair[1]):
        return False
    mask[:] = 1.0
    mask[padding : mask.shape[0] - padding, padding : mask.shape[1] - padding] = 0.0
    for n in range(length):
        for a in range(2):
            if n > 0 and not _extend(rng, t, tries, mask, pair[a]):
                return False
            strokes[a * length + n] = pair[a, 3:]
    _take(mask, t.zone[pair[1, 3]], pair[1, 4], pair[1, 5])  # of the second only, as in the original
    for a in range(2):
        tips[a, 0] = strokes[a * length, 1:]
        tips[a, 1] = strokes[(a + 1) * length - 1, 1:]
    return True


@_compile
def _free_cells(mask, body, cells):
    """Fill ``cells`` with those from which no cell of a body is taken; the border of the image counts as taken."""
    S = mask.shape[0]
    count = 0
    for y in range(S):
        for x in range(S):
            free = True
            for n in range(body.shape[0]):
                i, j = y + body[n, 0], x + body[n, 1]
                if _inside(mask, i, j) and (i == 0 or j == 0 or i == S - 1 or j == S - 1 or mask[i, j] > TAKEN):
                    free = False
                    break
            if free:
                cells[count, 0], cells[count, 1] = y, x
                count += 1
    return count


@_compile
def _begin_anywhere(rng, t, tries, mask, cells, snake):
    """Begin a short snake anywhere its first paddle fits."""
    if np.sum(mask <= TAKEN) < CROWDED * mask.size:
        return False
    for _ in range(tries):
        direction = _below(rng, t.start_count.shape[0])
        if t.body_count[direction] == 0:
            return False
        count = _free_cells(mask, t.body[direction, : t.body_count[direction]], cells)
        if count == 0:
            return False
        cell = cells[_below(rng, count)]
        if _begin(t, mask, direction, cell[0], cell[1], snake):
            return True
    return False


@_compile
def _distractor(rng, t, tries, length, mask, cells, strokes):
    """Try once to place a short snake; ``mask`` changes even if it fails."""
    snake = np.empty(6, np.int64)
    if not _begin_anywhere(rng, t, tries, mask, cells, snake):
        return False
    strokes[0] = snake[3:]
    for n in range(1, length):
        if not _extend(rng, t, tries, mask, snake):
            return False
        strokes[n] = snake[3:]
    _take(mask, t.zone[snake[3]], snake[4], snake[5])
    return True


@_compile
def place(rng, t, padding, length, short_length, distractors, paddle_tries, snake_tries, strokes):
    """Place the snakes of one image.

    ``strokes`` receives the paddles of the two long snakes, then those of the distractors. Returns the first and last
    tips of the long snakes ``[2, 2, 2]``, the number of distractors placed, and of attempts at the long snakes.
    """
    mask, trial = np.empty((SIZE, SIZE), np.float32), np.empty((SIZE, SIZE), np.float32)
    cells = np.empty((SIZE * SIZE, 2), np.int64)
    tips = np.empty((2, 2, 2), np.int64)
    attempts = 1
    while not _targets(rng, t, paddle_tries, length, padding, mask, strokes, tips):
        attempts += 1
    placed = 0
    for _ in range(distractors):
        for _ in range(snake_tries):
            trial[:] = mask
            start = 2 * length + placed * short_length
            if _distractor(rng, t, paddle_tries, short_length, trial, cells, strokes[start:]):
                mask[:] = trial
                placed += 1
                break
    return tips, placed, attempts


@_compile
def paint(patches, strokes, canvas):
    """Raise each pixel of ``canvas`` to the brightest of the patches centred on it. Strokes are rows (glyph, y, x)."""
    for n in range(strokes.shape[0]):
        _take(canvas, patches[strokes[n, 0]], strokes[n, 1], strokes[n, 2])
