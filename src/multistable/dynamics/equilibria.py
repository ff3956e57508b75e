"""All equilibria ``h = f(h, ...)`` of a field, element by element.

``F(h) = f(h) - h`` is evaluated on a grid. Where F dips towards zero between two grid points without crossing, the
extremum is found and tested too, so that a pair of roots is not missed because it is closer than the grid is fine. Each
crossing is then a bracket, in which Newton's method with bisection as a safeguard polishes the root. Everything is
computed in float64, and every root's residual is looked at.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from multistable.dynamics.fields import Field

__all__ = ["ConvergenceError", "Equilibria", "equilibria"]

_CHUNK = 1 << 15  # elements at a time: 17 MB for each float64 tensor of 64 grid points
_TOUCH = 8 * torch.finfo(torch.float64).eps  # an extremum of F this close to zero is a fold, not a pair of roots


class ConvergenceError(RuntimeError):
    """A root that should have converged did not."""


@dataclass(frozen=True)
class Equilibria:
    """Equilibria of a field for each element of a shape ``[...]``, in rising order along the last axis ``R``.

    Rows with fewer than R roots end in NaN (``False`` in the flags). Going up, stable and unstable roots alternate
    where the field's bounds hold; of a pair that has just merged (a fold, to rounding) neither is listed.
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
    lowest_slope: float
    """The least ``df/dh`` seen on the grid; a field that increases in h has none below 0."""


@torch.no_grad()
def equilibria(
    field: Field,
    *args: Tensor,
    bounds: tuple[float, float] | None = None,
    n_grid: int = 64,
    tol: float = 1e-12,
    strict: bool = True,
) -> Equilibria:
    """Every root of ``h = field(h, *args)`` between ``bounds``, for each element of the broadcast ``args``.

    Args:
        field: a pointwise field.
        args: its drives and constants, broadcast against each other.
        bounds: where to look. Default: those of the field.
        n_grid: cells of the grid. Roots are missed only if F has two extrema within one cell.
        tol: the largest residual ``|f(h) - h|`` of a converged root.
        strict: raise :class:`ConvergenceError` if a root did not converge, instead of saying so in ``converged``.

    >>> from multistable.dynamics import simplified_brc
    >>> found = equilibria(simplified_brc(), torch.tensor([0.0, 2.0]), torch.tensor(1.5))
    >>> found.count, found.stable[0]
    (tensor([3, 1]), tensor([ True, False,  True]))
    """
    if field.coupled:
        raise ValueError("field couples its units: its equilibria cannot be found unit by unit")
    lo, hi = field.bounds if bounds is None else bounds
    if not (-torch.inf < lo < hi < torch.inf):
        raise ValueError(f"bounds must be a finite interval, got {(lo, hi)}")
    if not args:
        raise ValueError("args must hold the drives and constants of the field, got none")
    full = torch.broadcast_tensors(*args)
    flat = [x.reshape(-1).double() for x in full]
    margin = 0.5 * (hi - lo) / n_grid  # a root may lie on the bound itself, as tanh(20) = 1 does in float64
    grid = torch.linspace(lo - margin, hi + margin, n_grid + 2, dtype=torch.float64, device=flat[0].device)
    parts = [_roots(field, [x[i : i + _CHUNK] for x in flat], grid) for i in range(0, len(flat[0]), _CHUNK)]
    found = _assemble(parts, field, flat, full[0].shape, tol)
    if strict and not bool((found.converged | found.h.isnan()).all()):
        missed = found.residual[~found.converged & ~found.h.isnan()]
        raise ConvergenceError(
            f"{missed.numel()} of {int(found.count.sum())} roots did not converge: largest residual "
            f"{float(missed.max()):.1e}, tolerance {tol:.1e}"
        )
    return found


def _roots(field: Field, args: list[Tensor], grid: Tensor) -> tuple[Tensor, Tensor, float]:
    """Of a chunk of E elements: which element each root belongs to, the root, and the least slope on the grid."""
    columns = [x[:, None] for x in args]
    excess = field(grid, *columns) - grid  # F [E, M]
    slope = field.slope(grid.expand_as(excess), *columns)
    if bool(excess.isnan().any()):
        raise ValueError("args must not make the field NaN")
    positive, rising = excess >= 0, slope >= 1
    same = positive[:, 1:] == positive[:, :-1]

    # F > 0 at both ends with a minimum between, or F < 0 with a maximum: two roots may hide in the cell.
    dips = same & (rising[:, 1:] != rising[:, :-1]) & (positive[:, 1:] == rising[:, 1:])
    element, cell = dips.nonzero(as_tuple=True)
    here = [x[element] for x in args]
    above = rising[element, cell + 1]
    turn = _bisect(lambda h: (field.slope(h, *here) >= 1) == above, grid[cell], grid[cell + 1])
    depth = torch.where(above, -1.0, 1.0) * (field(turn, *here) - turn)
    split = depth > _TOUCH
    element, cell, turn = element[split], cell[split], turn[split]

    crossing, first = (~same).nonzero(as_tuple=True)
    owner = torch.cat([crossing, element, element])
    low = torch.cat([grid[first], grid[cell], turn])
    high = torch.cat([grid[first + 1], turn, grid[cell + 1]])
    order = torch.argsort(low, stable=True)
    order = order[torch.argsort(owner[order], stable=True)]
    owner, low, high = owner[order], low[order], high[order]
    return owner, _newton(field, [x[owner] for x in args], low, high), float(slope.min()) if len(slope) else 1.0


def _bisect(upper: Callable[[Tensor], Tensor], low: Tensor, high: Tensor) -> Tensor:
    """Where a condition that is false at ``low`` and true at ``high`` becomes true; 60 halvings reach float64."""
    for _ in range(60 if len(low) else 0):
        middle = 0.5 * (low + high)
        true = upper(middle)
        low, high = torch.where(true, low, middle), torch.where(true, middle, high)
    return high


def _newton(field: Field, args: list[Tensor], low: Tensor, high: Tensor, max_steps: int = 100) -> Tensor:
    """Roots of F, one in each bracket: Newton, and bisection where it leaves the bracket or does not halve its step."""
    if not len(low):
        return low
    falling = field(low, *args) - low >= 0
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


def _assemble(
    parts: list[tuple[Tensor, Tensor, float]], field: Field, flat: list[Tensor], shape: torch.Size, tol: float
) -> Equilibria:
    """From lists of roots to rows ``[..., R]``, padded with NaN, with slopes, residuals and flags."""
    E = len(flat[0])
    owner = torch.cat([flat[0].new_empty(0, dtype=torch.long), *(part[0] + i * _CHUNK for i, part in enumerate(parts))])
    root = torch.cat([flat[0].new_empty(0), *(part[1] for part in parts)])
    count = torch.bincount(owner, minlength=E)
    R = int(count.max()) if E else 1
    rank = torch.arange(len(owner), device=owner.device) - (count.cumsum(0) - count)[owner]
    h = flat[0].new_full((E, R), torch.nan)
    h[owner, rank] = root
    here = [x[owner] for x in flat]
    slope, residual = torch.full_like(h, torch.nan), torch.full_like(h, torch.nan)
    slope[owner, rank] = field.slope(root, *here)
    residual[owner, rank] = (field(root, *here) - root).abs()
    stable, converged = slope.abs() < 1, residual <= tol
    h, slope, stable, residual, converged = (x.reshape(*shape, R) for x in (h, slope, stable, residual, converged))
    lowest = min((part[2] for part in parts), default=1.0)
    return Equilibria(h, slope, stable, residual, converged, count.reshape(shape), lowest)
