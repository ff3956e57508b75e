"""All equilibria ``h = f(h, ...)`` of a field, element by element, and bifurcation diagrams.

``F(h) = f(h) - h`` is evaluated on a grid and at its *turns*, the extrema where df/dh = 1, so that pairs of roots
closer than the grid spacing are found too. A field may supply its turns; otherwise they are searched for on the grid:
there is one where F turns towards zero between two grid points, and two where ``df/dh`` peaks beyond 1 there. Between
turns F is monotone, and each change of its sign is a bracket, in which Newton's method with bisection as a safeguard
polishes the root. Everything is computed in float64, and every root's residual is checked.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from multistable.dynamics.fields import Field, broadcast, check_field
from multistable.ops.checks import check_sizes

__all__ = [
    "BifurcationDiagram",
    "ConvergenceError",
    "Equilibria",
    "bifurcation_diagram",
    "equilibria",
    "search_ends",
]

_CHUNK = 1 << 15  # elements at a time: 17 MB for each float64 tensor of 64 grid points
_TOUCH = 8 * torch.finfo(torch.float64).eps  # of F or df/dh - 1: an extremum this close to zero touches it


class ConvergenceError(RuntimeError):
    """A root that should have converged did not."""


@dataclass(frozen=True)
class Equilibria:
    """Equilibria of a field for each element of a shape ``[...]``, in rising order along the last axis ``R``.

    Rows with fewer than R roots end in NaN (``False`` in the flags). Going up, stable and unstable roots alternate
    where the field's bounds hold. A pair that has just merged (a fold, to rounding) is not listed.
    """

    h: Tensor
    """The roots, ``[..., R]`` float64."""
    slope: Tensor
    """``df/dh`` at the roots."""
    stable: Tensor
    """``|df/dh| < 1``: iterating f from nearby comes back."""
    residual: Tensor
    """``|f(h) - h|``."""
    converged: Tensor
    """Residual within the tolerance."""
    count: Tensor
    """Number of roots, ``[...]``."""


@torch.no_grad()
def equilibria(
    field: Field,
    *args: Tensor | float,
    bounds: tuple[float, float] | None = None,
    n_grid: int = 64,
    tol: float = 1e-12,
    strict: bool = True,
) -> Equilibria:
    """Every root of ``h = field(h, *args)`` between ``bounds``, for each element of the broadcast ``args``.

    Args:
        field: a pointwise field.
        args: its drives and constants, tensors or numbers, broadcast against each other.
        bounds: where to look. Default: those of the field.
        n_grid: cells of the grid. Without ``field.turns``, roots are missed only where ``df/dh`` has a peak that is
            narrower than a cell.
        tol: the largest residual ``|f(h) - h|`` of a converged root.
        strict: raise :class:`ConvergenceError` if a root did not converge, instead of flagging it in ``converged``.

    >>> from multistable.dynamics import simplified_brc
    >>> found = equilibria(simplified_brc(), torch.tensor([0.0, 2.0]), 1.5)
    >>> found.count, found.stable[0]
    (tensor([3, 1]), tensor([ True, False,  True]))
    """
    check_field(field)
    if field.coupled:
        raise ValueError("field couples its units: its equilibria cannot be found unit by unit")
    lo, hi = field.bounds if bounds is None else bounds
    if not (-torch.inf < lo < hi < torch.inf):
        raise ValueError(f"bounds must be a finite interval, got {(lo, hi)}")
    check_sizes(1, n_grid=n_grid)
    names = [*field.drives, *field.constants]
    if len(args) != len(names):
        raise ValueError(f"args must be the field's drives and constants, {', '.join(names)}, got {len(args)}")
    device = next((x.device for x in args if isinstance(x, Tensor)), None)
    full = broadcast(*(torch.as_tensor(x, dtype=torch.float64, device=device) for x in args))
    flat = [x.reshape(-1) for x in full]
    grid = torch.linspace(*search_ends((lo, hi), n_grid), n_grid + 2, dtype=torch.float64, device=flat[0].device)
    parts = [_roots(field, [x[i : i + _CHUNK] for x in flat], grid) for i in range(0, len(flat[0]), _CHUNK)]
    found = _assemble(parts, field, flat, full[0].shape, tol)
    if strict and not bool((found.converged | found.h.isnan()).all()):
        missed = found.residual[~found.converged & ~found.h.isnan()]
        raise ConvergenceError(
            f"{missed.numel()} of {int(found.count.sum())} roots did not converge: largest residual "
            f"{float(missed.max()):.1e}, tolerance {tol:.1e}"
        )
    return found


@dataclass(frozen=True)
class BifurcationDiagram:
    """Equilibria along one drive, as rows ``[X, R]`` padded with NaN: ``x`` repeated, ``h`` and ``stable``."""

    x: Tensor
    h: Tensor
    stable: Tensor

    @property
    def regimes(self) -> list[tuple[float, float, int]]:
        """Intervals of x, first to last sample, with the number of stable equilibria in each."""
        counts: list[int] = cast(Any, self.stable.sum(dim=1)).tolist()
        starts = [0] + [i for i in range(1, len(counts)) if counts[i] != counts[i - 1]]
        ends = [i - 1 for i in starts[1:]] + [len(counts) - 1]
        xs: list[float] = cast(Any, self.x[:, 0]).tolist()
        return [(xs[i], xs[j], counts[i]) for i, j in zip(starts, ends, strict=True)]


def bifurcation_diagram(field: Field, xs: Tensor, *args: Tensor | float, n_grid: int = 256) -> BifurcationDiagram:
    """Equilibria of ``field`` for each value of its first drive in ``xs [X]``, the other arguments held at ``args``.

    >>> from multistable.dynamics import simplified_brc
    >>> diagram = bifurcation_diagram(simplified_brc(), torch.linspace(-2, 2, 401), 1.5)
    >>> [(round(a, 2), round(b, 2), n) for a, b, n in diagram.regimes]     # folds at x = -0.905 and 0.905
    [(-2.0, -0.91, 1), (-0.9, 0.9, 2), (0.91, 2.0, 1)]
    """
    _check_line(xs)
    found = equilibria(field, xs, *args, n_grid=n_grid)
    return BifurcationDiagram(xs.double()[:, None].expand_as(found.h), found.h, found.stable)


def _check_line(xs: object) -> None:
    if not isinstance(xs, Tensor) or xs.ndim != 1 or not len(xs):
        got = f"shape {list(xs.shape)}" if isinstance(xs, Tensor) else type(xs).__name__
        raise ValueError(f"xs must be a line of values, [X], got {got}")


def search_ends(bounds: tuple[float, float], n_grid: int) -> tuple[float, float]:
    """Ends of the grid, a little outside: a root may lie on the bound itself, as tanh(20) = 1 does in float64."""
    lo, hi = bounds
    margin = 0.5 * (hi - lo) / n_grid
    return lo - margin, hi + margin


def _roots(field: Field, args: list[Tensor], grid: Tensor) -> tuple[Tensor, Tensor]:
    """The roots of a chunk of E elements: the element that each belongs to, and its value."""
    columns = [x[:, None] for x in args]
    excess = field(grid, *columns) - grid  # F [E, M]
    slope = field.slope(grid.expand_as(excess), *columns)
    if bool(excess.isnan().any()):
        raise ValueError("args must not make the field NaN")
    turns = _turns(field, args, grid, excess >= 0, slope)  # [E, K]
    h, order = torch.cat([grid.expand_as(excess), turns], dim=1).sort(dim=1, stable=True)
    excess = torch.cat([excess, field(turns, *columns) - turns], dim=1).gather(1, order)
    fold = (order >= len(grid)) & (excess.abs() <= _TOUCH)  # counts as on the side where F comes from: no pair there
    clear = torch.where(fold, 0, torch.arange(h.shape[1], device=h.device)).cummax(dim=1).values
    positive = (excess >= 0).gather(1, clear)
    owner, first = (positive[:, 1:] != positive[:, :-1]).nonzero(as_tuple=True)
    here, falling = [x[owner] for x in args], positive[owner, first]
    return owner, _newton(field, here, h[owner, first], h[owner, first + 1], falling)


def _turns(field: Field, args: list[Tensor], grid: Tensor, positive: Tensor, slope: Tensor) -> Tensor:
    """Extrema of F that may hide a pair of roots, ``[E, K]``, in any order, padded with the end of the grid."""
    if field.turns is not None:
        known = field.turns(*args)
        return torch.where((known > grid[0]) & (known < grid[-1]), known, grid[-1])
    element, low, high = _dips(grid, positive, slope >= 1)
    owner, start, top, end = _peaks(field, args, grid, slope)
    element, low, high = torch.cat([element, owner, owner]), torch.cat([low, start, top]), torch.cat([high, top, end])
    here = [x[element] for x in args]
    above = field.slope(high, *here) >= 1
    turn = _bisect(lambda h: (field.slope(h, *here) >= 1) == above, low, high)
    return _rows(element, turn, len(slope), float(grid[-1]))


def _dips(grid: Tensor, positive: Tensor, rising: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Cells with F > 0 at both ends and a minimum between, or F < 0 and a maximum: element and ends of each."""
    same, turning = positive[:, 1:] == positive[:, :-1], rising[:, 1:] != rising[:, :-1]
    element, cell = (same & turning & (positive[:, 1:] == rising[:, 1:])).nonzero(as_tuple=True)
    return element, grid[cell], grid[cell + 1]


def _peaks(field: Field, args: list[Tensor], grid: Tensor, slope: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Places between grid points where df/dh, below 1 at all of them, rises above 1, or the reverse: two turns each.

    Returns element, grid point before, place and grid point after. A parabola rises above its highest sample by at most
    a quarter of the larger step beside it; a peak is examined if the whole step could take it beyond 1.
    """
    distance = torch.nn.functional.pad((slope - 1)[None], (1, 1), mode="replicate")[0]
    left, middle, right = distance[:, :-2], distance[:, 1:-1], distance[:, 2:]
    same = ((left >= 0) == (middle >= 0)) & ((right >= 0) == (middle >= 0))
    left, middle, right = left.abs(), middle.abs(), right.abs()
    near = same & (middle <= torch.minimum(left, right)) & (2 * middle <= torch.maximum(left, right))
    element, place = near.nonzero(as_tuple=True)
    here, sign = [x[element] for x in args], torch.where(slope[element, place] >= 1, 1.0, -1.0)
    start, end = grid[(place - 1).clamp(min=0)], grid[(place + 1).clamp(max=len(grid) - 1)]
    top = _lowest(lambda h: sign * (field.slope(h, *here) - 1), start, end)
    beyond = sign * (field.slope(top, *here) - 1) < -_TOUCH
    return element[beyond], start[beyond], top[beyond], end[beyond]


def _lowest(function: Callable[[Tensor], Tensor], low: Tensor, high: Tensor) -> Tensor:
    """The place of the only minimum between ``low`` and ``high``, to 1e-8 of the interval, by golden section."""
    ratio = 0.5 * (math.sqrt(5) - 1)
    a, b = high - ratio * (high - low), low + ratio * (high - low)
    at_a, at_b = function(a), function(b)
    for _ in range(38 if len(low) else 0):
        left = at_a < at_b  # the minimum is left of b
        low, high = torch.where(left, low, a), torch.where(left, b, high)
        probe = torch.where(left, high - ratio * (high - low), low + ratio * (high - low))
        value = function(probe)
        a, b = torch.where(left, probe, b), torch.where(left, a, probe)
        at_a, at_b = torch.where(left, value, at_b), torch.where(left, at_a, value)
    return 0.5 * (low + high)


def _bisect(upper: Callable[[Tensor], Tensor], low: Tensor, high: Tensor) -> Tensor:
    """The place where a condition, false at ``low``, becomes true, as at ``high``; 60 halvings reach float64."""
    for _ in range(60 if len(low) else 0):
        middle = 0.5 * (low + high)
        true = upper(middle)
        low, high = torch.where(true, low, middle), torch.where(true, middle, high)
    return high


def _newton(
    field: Field, args: list[Tensor], low: Tensor, high: Tensor, falling: Tensor, max_steps: int = 100
) -> Tensor:
    """Roots of F, one in each bracket: Newton, and bisection where it leaves the bracket or does not halve its step.

    ``falling`` says that F goes from positive to negative.
    """
    if not len(low):
        return low
    h, last = 0.5 * (low + high), high - low
    best, least = h, torch.full_like(h, torch.inf)
    for _ in range(max_steps):
        excess = field(h, *args) - h
        better = excess.abs() < least
        best, least = torch.where(better, h, best), torch.where(better, excess.abs(), least)
        left = (excess >= 0) == falling  # the root is to the right of h
        low, high = torch.where(left, h, low), torch.where(left, high, h)
        step = excess / (1 - field.slope(h, *args))
        outside = ~((h + step > low) & (h + step < high)) | (step.abs() > 0.5 * last)
        step = torch.where(excess == 0, 0.0, torch.where(outside, 0.5 * (low + high) - h, step))
        h, last = h + step, step.abs()
        if bool((last <= 1e-16).all()):
            break
    return best


def _rows(owner: Tensor, value: Tensor, E: int, fill: float) -> Tensor:
    """Gather values by the element that owns each into rows ``[E, R]``, in the given order, padded with ``fill``."""
    count = torch.bincount(owner, minlength=E)
    order = torch.argsort(owner, stable=True)
    owner, value = owner[order], value[order]
    rank = torch.arange(len(owner), device=owner.device) - (count.cumsum(0) - count)[owner]
    rows = value.new_full((E, int(count.max()) if E else 1), fill)
    rows[owner, rank] = value
    return rows


def _assemble(
    parts: list[tuple[Tensor, Tensor]], field: Field, flat: list[Tensor], shape: torch.Size, tol: float
) -> Equilibria:
    """Turn lists of roots into rows ``[..., R]``, padded with NaN, with slopes, residuals and flags."""
    owner = torch.cat([flat[0].new_empty(0, dtype=torch.long), *(part[0] + i * _CHUNK for i, part in enumerate(parts))])
    root = torch.cat([flat[0].new_empty(0), *(part[1] for part in parts)])
    here = [x[owner] for x in flat]
    quantities = root, field.slope(root, *here), (field(root, *here) - root).abs()
    h, slope, residual = (_rows(owner, x, len(flat[0]), math.nan) for x in quantities)
    h, slope, residual = (x.reshape(*shape, x.shape[-1]) for x in (h, slope, residual))
    stable, converged, count = slope.abs() < 1, residual <= tol, (~h.isnan()).sum(-1)
    return Equilibria(h, slope, stable, residual, converged, count)
