"""The exact memory recurrent unit: which branch of stable equilibria a unit is on, for all timesteps in parallel.

At step t a unit has stable equilibria ``stable_0 < stable_1 < ...`` with unstable ones between them. The internal clock
takes ``h_{t-1}`` to the stable root in its interval between unstable roots: the clock is slow, ``(1 - c) h + c f`` with
a small c, and the iterates of a map that increases in h cannot jump over a root. ``h_{t-1}`` is itself one of K values
that are known without history, the stable roots of step t - 1. So step t is a *map* from branches to branches, all maps
can be computed at once, and their composition is associative: a scan.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from multistable.dynamics.equilibria import equilibria, search_ends
from multistable.dynamics.fields import Field, broadcast
from multistable.dynamics.implicit import implicit
from multistable.ops import latch_scan, map_adjoint, map_scan, pieces
from multistable.ops.autograd import Function
from multistable.ops.border import Border
from multistable.ops.checks import check_gradient, check_sizes
from multistable.ops.layer_scans import map_credit, pack_maps
from multistable.ops.maps import MOST_STATES
from multistable.ops.operators import each_example
from multistable.ops.portable import previous
from multistable.surrogate import derivative

__all__ = ["branch_scan", "check_branches"]

_CHUNK = 1 << 15  # elements whose grid is evaluated at a time
_ROUNDING = 1e-12  # of a field at its bounds


def branch_scan(
    field: Field,
    args: Sequence[Tensor],
    h0: Tensor | None = None,
    *,
    reset: Tensor | None = None,
    max_branches: int = 2,
    alpha_surr: float | None = None,
    max_gain: float = math.inf,
    n_grid: int = 64,
    border: Border | None = None,
) -> Tensor:
    """States ``h [B, T, N]`` of the unit that converges at every step, from ``h_{t-1}`` to an ``h_t = f(h_t, args_t)``:
    the limit of the map ``(1 - c) h + c f`` for every c that makes it increase in h.

    Args:
        field: pointwise.
        args: drives and constants, of shapes that broadcast to ``[B, T, N]``.
        h0: the state before the first step, ``[B, N]``; zeros if None.
        reset: ``[B, T]`` booleans; the state is zero just before a marked step.
        max_branches: K, the most stable equilibria an element may have; at most 16.
        alpha_surr: sharpness of the surrogate gradient on the choice of branch; None for the exact gradient alone,
            that of the value on the chosen branch.
        max_gain: bound on the gain ``1 / (1 - df/dh)`` of implicit gradients, infinite at a fold.
        n_grid: see :func:`~multistable.dynamics.equilibria`.
        border: of a piece, if the sequence is cut; by default all steps of the piece are valid, and time runs forward.

    The surrogate: let ``credit_t[k]`` be the loss, to first order, of being on branch k at step t (through all values
    read from then on). The comparison ``h_{t-1} >= u`` with an unstable root u between branches i and i + 1 receives
    ``(credit_t[i + 1] - credit_t[i]) / (1 + (alpha_surr pi (h_{t-1} - u))^2)``. Only the branch maps carry credit back,
    so it neither fades nor grows while a branch is kept. Where the state flows past the place of a branch that the
    input has removed (at g, where ``f - h`` comes close to zero), that is a choice too: ``|f(g) - g|`` receives the
    credit of where the state went, less that of g, times the same function of ``|f(g) - g|``.

    A NaN argument makes the state NaN until a step with a single branch.
    """
    check_branches(max_branches)
    check_gradient(alpha_surr, max_gain)
    cut, given = pieces.current(), broadcast(*args)
    border = Border(cut) if cut is not None and border is None else border
    B, T, N = given[0].shape
    dtype = given[0].dtype
    if T == 0 and border is None:
        return given[0]
    bad = torch.stack([x.isnan() for x in given]).any(dim=0)
    args = [torch.where(bad, 0.0, x) for x in given]
    stable, unstable = _without_gradient(_find_branches, field, max_branches, n_grid, *args)
    start = args[0].new_zeros(B, N) if h0 is None else h0.to(dtype)
    lost = _lost(bad, unstable, start, reset, border)
    with torch.no_grad():
        before = _before(stable, start[..., None].expand(B, N, max_branches), reset, border)  # [B, T, N, K]
        maps = (before[..., None] >= unstable.to(dtype)[..., None, :]).sum(-1, dtype=torch.uint8)
        maps, branch = _branch(maps, border)
    h = implicit(field, stable.gather(-1, branch).squeeze(-1), *args, max_gain=max_gain)
    if alpha_surr is None or max_branches == 1:
        return _spoil(h, lost, bad, given)
    columns = [x[..., None] for x in args]
    exists = unstable.isfinite()
    u = implicit(field, torch.where(exists, unstable, 0.0).to(dtype), *columns, max_gain=max_gain)
    before = _before(h, start, reset, border)
    margin = torch.where(exists, before[..., None] - u, math.inf)
    (ghost,) = _without_gradient(_find_ghosts, field, n_grid, before.detach(), h.detach(), *args)
    passed = torch.where(ghost == h, math.inf, (h - before).detach().sign() * (field(ghost, *args) - ghost))
    if border is not None:  # padding chooses nothing
        valid = border.valid(h)[..., None]
        margin, passed = torch.where(valid[..., None], margin, math.inf), torch.where(valid, passed, math.inf)
    later = unstable.to(dtype)
    if reset is not None:  # what follows a reset compares zero in the place of g
        later = torch.where(reset[..., None, None], torch.where(later > 0, math.inf, -math.inf), later)
    later = _after(later, math.inf, border)
    onward = (ghost[..., None] >= later).sum(-1, keepdim=True)  # the branch that g would have led to
    h = h + _Choice.apply(margin, passed, stable, maps, branch, ghost, onward, alpha_surr, border)
    return _spoil(h, lost, bad, given)


def check_branches(max_branches: int) -> None:
    check_sizes(1, max_branches=max_branches)
    if max_branches > MOST_STATES:
        raise ValueError(f"max_branches must be at most {MOST_STATES}, got {max_branches}")


@torch.no_grad()
def _branch(maps: Tensor, border: Border | None) -> tuple[Tensor, Tensor]:
    """The maps, and the branch at each step, ``[B, T, N, 1]``.

    The first map of all is constant, because its only input is h0. Padding keeps the branch.
    """
    if border is None:
        return maps, map_scan(maps)[..., None].long()
    same = torch.arange(maps.shape[-1], dtype=torch.uint8, device=maps.device)
    maps = torch.where(border.valid(maps)[..., None, None], maps, same)
    return maps, border.turn(map_scan(border.turn(maps), reverse=border.reverse))[..., None].long()


@torch.no_grad()
def _lost(bad: Tensor, unstable: Tensor, start: Tensor, reset: Tensor | None, border: Border | None) -> Tensor:
    """Where the state is NaN, ``[B, T, N]``: from a NaN argument or start until a step with one branch, which does not
    depend on the previous state."""
    write = bad | ~unstable.isfinite().any(-1)
    if border is not None:
        write &= border.valid(bad)[..., None]
        return border.latch_scan(write, bad.to(start.dtype), start.isnan().to(start.dtype), reset, "auto") != 0
    return latch_scan(write, bad.to(start.dtype), start.isnan().to(start.dtype), reset=reset) != 0


def _spoil(h: Tensor, lost: Tensor, bad: Tensor, args: Sequence[Tensor]) -> Tensor:
    """``h`` with NaN where it is lost, in the gradients too: by products with 1 and NaN, because ``torch.where`` would
    give NaN arguments no gradient."""
    h = h + torch.where(bad, torch.stack([*args]).sum(dim=0), 0.0)
    return h * torch.where(lost, math.nan, 1.0).to(h.dtype)


def _find_branches(field: Field, K: int, n_grid: int, *args: Tensor) -> tuple[Tensor, ...]:
    """Stable roots ``[B, T, N, K]``, padded with the last, and unstable ones ``[B, T, N, K - 1]``, with infinity."""
    h = _from_stable_to_stable(field, equilibria(field, *args, n_grid=n_grid).h, [x.double() for x in args], n_grid)
    if h.shape[-1] > 2 * K - 1:
        raise ValueError(f"field has {(h.shape[-1] + 1) // 2} stable branches, max_branches is {K}")
    h = torch.nn.functional.pad(h, (0, 2 * K - 1 - h.shape[-1]), value=math.nan)
    highest = h.nan_to_num(-math.inf).amax(-1, keepdim=True)
    stable = torch.where(h.isnan(), highest, h)[..., 0::2].to(args[0].dtype)
    return stable, h[..., 1::2].nan_to_num(math.inf)


def _from_stable_to_stable(field: Field, h: Tensor, args: Sequence[Tensor], n_grid: int) -> Tensor:
    """Rows of equilibria ``[..., R]`` without an unstable one at either end, which can only lie on a bound: the growth
    ``h + x h (1 - h)`` on (0, 1) has one at 0. Raise if the flow leaves the bounds."""

    def excess(at: float) -> Tensor:
        return field(torch.full_like(args[0], at), *args) - at

    lo, hi = field.bounds
    if bool(((excess(lo) < -_ROUNDING) | (excess(hi) > _ROUNDING)).any()):
        raise ValueError(f"field must map its bounds {(lo, hi)} into themselves, but some element leaves them there")
    rising = (excess(search_ends(field.bounds, n_grid)[0]) < 0)[..., None]  # what is crossed first going up
    h = torch.where(rising, torch.nn.functional.pad(h[..., 1:], (0, 1), value=math.nan), h)
    count = (~h.isnan()).sum(-1, keepdim=True)
    odd = count - 1 + count % 2
    h = torch.where(torch.arange(h.shape[-1], device=h.device) < odd, h, math.nan)
    return h[..., : int(odd.max())] if odd.numel() else h


def _before(x: Tensor, start: Tensor, reset: Tensor | None, border: Border | None) -> Tensor:
    """The entries of ``[B, T, N, ...]`` one step earlier: ``start`` at first, zero after a reset."""
    if border is not None:
        start = border.before(border.last(x), start, x)[0]
    return previous(x, start, reset, reverse=False)


def _after(x: Tensor, end: float, border: Border | None) -> Tensor:
    """The entries of ``[B, T, N, ...]`` one step later; ``end`` after the last step."""
    if border is not None:
        return border.after(x, torch.full_like(x[:, :1].sum(dim=1), end))
    return torch.cat([x[:, 1:], torch.full_like(x[:, :1], end)], dim=1)


@torch.no_grad()
def _find_ghosts(field: Field, n_grid: int, before: Tensor, after: Tensor, *args: Tensor) -> tuple[Tensor, ...]:
    """Where the flow from ``before`` to ``after`` is slowest on its way; ``after`` where it never slows down."""
    lo, hi = field.bounds
    grid = torch.linspace(lo, hi, n_grid + 1, dtype=after.dtype, device=after.device)
    ghosts: list[Tensor] = []
    flat = [x.reshape(-1, 1) for x in (before, after, *args)]
    for i in range(0, max(1, len(flat[0])), _CHUNK):
        start, end, *columns = (x[i : i + _CHUNK] for x in flat)
        speed = (field(grid, *columns) - grid).abs()
        inside = (grid > torch.minimum(start, end)) & (grid < torch.maximum(start, end))
        slow = (speed[:, 1:-1] <= speed[:, :-2]) & (speed[:, 1:-1] <= speed[:, 2:]) & inside[:, :-2] & inside[:, 2:]
        least, place = torch.where(slow, speed[:, 1:-1], math.inf).min(dim=1)
        ghosts.append(torch.where(least.isfinite(), grid[place + 1], end[:, 0]))
    return (torch.cat(ghosts).reshape(after.shape),)


class _Search(Function):
    """Call a function that has no gradient. ``vmap`` cannot trace it, so it is called once per example."""

    @staticmethod
    def forward(function: Callable[..., tuple[Tensor, ...]], *args: Any) -> tuple[Tensor, ...]:
        return function(*args)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.mark_non_differentiable(*output)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> None:
        return None

    vmap = staticmethod(each_example(lambda *args: _without_gradient(*args)))


def _without_gradient(function: Callable[..., tuple[Tensor, ...]], *args: Any) -> tuple[Tensor, ...]:
    return _Search.apply(function, *args)


class _Choice(Function):
    """Zeros ``[B, T, N]`` whose gradient is that of the choice of branch, see :func:`branch_scan`."""

    generate_vmap_rule = True

    @staticmethod
    def forward(
        margin: Tensor,
        passed: Tensor,
        stable: Tensor,
        maps: Tensor,
        branch: Tensor,
        ghost: Tensor,
        onward: Tensor,
        alpha_surr: float,
        border: Border | None,
    ) -> Tensor:
        return torch.zeros_like(stable[..., 0])

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        *tensors, ctx.alpha_surr, ctx.border = inputs
        ctx.save_for_backward(*tensors)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        margin, passed, stable, maps, branch, ghost, onward = ctx.saved_tensors
        credit = _credit(maps, grads[0][..., None] * stable, ctx.border)
        after = _after(credit, 0.0, ctx.border)
        instead = grads[0] * ghost + after.gather(-1, onward).squeeze(-1)
        to_passed = (credit.gather(-1, branch).squeeze(-1) - instead) * derivative(passed, ctx.alpha_surr)
        return credit.diff(dim=-1) * derivative(margin, ctx.alpha_surr), to_passed, *[None] * 7


def _credit(maps: Tensor, grad: Tensor, border: Border | None) -> Tensor:
    """What the loss gains from being on each branch from step t on, ``[B, T, N, K]``."""
    if border is None:
        return map_adjoint(maps, grad)[0]
    words, grad = pack_maps(border.turn(maps), "auto"), border.turn(grad)
    return border.turn(map_credit(words, grad, border.cut, reset=None, reverse=border.reverse, backend="auto")[0])
