"""The hysteresis scan without its latch: branches, gates and gradients of all timesteps, tile by tile."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from multistable.dynamics.bistable import climbs, fold_of, sides
from multistable.ops.numerics import wide
from multistable.ops.threads import for_each
from multistable.surrogate import derivative

__all__ = ["branches", "gradients", "start_bit", "upper_start"]

# Elements at a time: on a CPU some ten tensors of a tile stay in its cache, elsewhere memory is the only limit. Torch
# does not split operations on fewer than 2^15 elements, so tiles can run in parallel on threads of our own. Torch's
# threads would synchronise after each of the 140 operations of a tile. On two shared cores whole tensors took 4 times
# as long for forward and backward at (8, 512, 256), and on one thread as long as tiles.
_TILE = {"cpu": (1 << 15) - 1}
_TILE_ELSEWHERE = 1 << 26


def upper_start(h0: Tensor | None, x: Tensor) -> Tensor:
    """The upper branch before the first step, ``[B, N]``; the lower one is its mirror image."""
    return x.new_zeros(x.shape[0], x.shape[2]) if h0 is None else h0.to(x.dtype).abs()


def start_bit(h0: Tensor | None, x: Tensor) -> Tensor | None:
    """The bit with which the latch starts, in the dtype of ``x``."""
    return None if h0 is None else (h0 >= 0).to(x.dtype)


def branches(
    x: Tensor, beta: Tensor, upper_before: Tensor, lower_before: Tensor, reset: Tensor | None
) -> tuple[Tensor, ...]:
    """Both branches, gate and value of the bit, and whether there are two, ``[B, T, N]``; the branches before the first
    step are ``[B, N]``."""
    upper, lower, write, value = (torch.empty_like(x, memory_format=torch.contiguous_format) for _ in range(4))
    two = torch.empty_like(upper, dtype=torch.bool)

    def fill(b: slice, t: slice) -> None:
        if t.start == 0:
            before = upper_before[b, None], lower_before[b, None]
        else:
            before = upper[b, t.start - 1 : t.start], lower[b, t.start - 1 : t.start]
        restart = None if reset is None else reset[b, t, None]
        outputs = upper[b, t], lower[b, t], write[b, t], value[b, t], two[b, t]
        _fill_branches(x[b, t], beta[b, t], *before, restart, *outputs)

    _for_tiles(x, fill)
    return upper, lower, write, value, two


def _fill_branches(
    x: Tensor,
    beta: Tensor,
    upper_before: Tensor,
    lower_before: Tensor,
    restart: Tensor | None,
    upper: Tensor,
    lower: Tensor,
    write: Tensor,
    value: Tensor,
    two: Tensor,
) -> None:
    """Fill a tile ``[B, T, N]``: both branches, the latch that chooses (gate and value of the bit), whether to choose.

    ``upper_before`` and ``lower_before`` are the branches before the tile's first step, ``[B, 1, N]``. If the state
    flows from both of them to the same branch (always, if there is only one), the bit is written; else it is kept.
    After a step with one branch the bit is its sign, and the mirror image stands for the other bit.
    """
    dtype = wide(x.dtype)
    x, beta = x.to(dtype), beta.to(dtype)
    fold = fold_of(beta)
    high, low = sides(x, beta, fold)
    upper.copy_(high)
    lower.copy_(low)
    before = [torch.cat([a, b], dim=1)[:, :-1] for a, b in ((upper_before, upper), (lower_before, lower))]
    if restart is not None:
        before = [part.masked_fill_(restart, 0) for part in before]
    high, low = (part.to(dtype) for part in before)
    from_high, from_low = (climbs(part, x, beta, fold[0]) for part in (high, low))
    torch.lt(x.abs(), fold[2], out=two)
    same = from_high == from_low
    write.copy_(same | ~two)
    moved = same.logical_and_(two)
    value.copy_((moved & from_high) | (~moved & (x >= 0)))
    value.masked_fill_(moved & high.isnan(), math.nan)  # a NaN state is kept and stays visible


def gradients(
    grad: Tensor,
    x: Tensor,
    beta: Tensor,
    h: Tensor,
    choice: tuple[Tensor, Tensor] | None,
    alpha_surr: float | None,
    max_gain: float,
) -> tuple[Tensor, Tensor]:
    """The gradients of x and beta; ``choice`` are those of gate and value of the bit."""
    grad_x, grad_beta = (torch.empty_like(x, memory_format=torch.contiguous_format) for _ in range(2))

    def fill(b: slice, t: slice) -> None:
        own = None if choice is None else (choice[0][b, t], choice[1][b, t])
        inputs = grad[b, t], x[b, t], beta[b, t], h[b, t]
        _fill_gradients(*inputs, own, alpha_surr, max_gain, grad_x[b, t], grad_beta[b, t])

    _for_tiles(x, fill)
    return grad_x, grad_beta


def _fill_gradients(
    grad: Tensor,
    x: Tensor,
    beta: Tensor,
    h: Tensor,
    choice: tuple[Tensor, Tensor] | None,
    alpha_surr: float | None,
    max_gain: float,
    grad_x: Tensor,
    grad_beta: Tensor,
) -> None:
    """Fill a tile with the implicit gradient of the value plus the surrogate gradient of the choice."""
    dtype = wide(x.dtype)
    grad, x, beta, h = (part.to(dtype) for part in (grad, x, beta, h))
    rest = torch.addcmul(torch.ones_like(h), h, h, value=-1)  # 1 - h^2
    fall = torch.addcmul(1 - rest, beta, rest, value=-1)  # 1 - (beta + 1)(1 - h^2), zero at a fold
    dx = rest.div_(torch.maximum(fall, rest / max_gain)).mul_(grad)
    dbeta = h * dx
    if choice is not None and alpha_surr is not None:
        to_gate, to_value = (part.to(dtype) for part in choice)
        h_c, _, x_c = fold_of(beta)
        to_gate = to_gate * derivative(x.abs() - x_c, alpha_surr)
        dx.addcmul_(to_gate, x.sign())
        dbeta.addcmul_(to_gate, h_c, value=-1)
        dx.addcmul_(to_value, derivative(x, alpha_surr))
    grad_x.copy_(dx)
    grad_beta.copy_(dbeta)


def _for_tiles(x: Tensor, fill: Callable[[slice, slice], None]) -> None:
    """Call ``fill`` for slices of batch and time that cover ``x [B, T, N]``, time running forward.

    A compiler gets one tile: it cuts the work itself, and a loop would fix B and T and be unrolled, 140 operations
    per tile.
    """
    B, T, N = x.shape
    if torch.compiler.is_compiling():
        fill(slice(0, B), slice(0, T))
        return
    size = max(1, _TILE.get(x.device.type, _TILE_ELSEWHERE) // max(N, 1))  # rows of N
    steps = max(1, min(T, size))
    many = max(1, size // steps)

    @torch.no_grad()
    def fill_sequences(b: int) -> None:
        for t in range(0, T, steps):
            fill(slice(b, b + many), slice(t, t + steps))

    # Modes are per thread: no_grad is set in each, inference mode needs a single one.
    several = x.device.type == "cpu" and x.numel() > size * N and not torch.is_inference_mode_enabled()
    for_each(range(0, B, many), fill_sequences, torch.get_num_threads() if several else 1)
