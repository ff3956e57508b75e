"""The hysteresis scan on one piece of a sequence that is cut over ranks."""

from typing import Any

import torch
from torch import Tensor

from multistable.dynamics.bistable import fold_of, sides
from multistable.dynamics.hysteresis_tiles import branches, gradients, start_bit, upper_start
from multistable.ops.autograd import Function
from multistable.ops.border import Border
from multistable.ops.numerics import wide
from multistable.surrogate import heaviside

__all__ = ["scan_piece"]


def scan_piece(
    x: Tensor,
    beta: Tensor,
    h0: Tensor | None,
    reset: Tensor | None,
    alpha_surr: float | None,
    max_gain: float,
    backend: str,
    border: Border,
) -> Tensor:
    """:func:`hysteresis_scan` on one piece. Whether its first step keeps the bit depends on the branches of the step
    before it, on another rank: two numbers per unit, beside the latch's own message."""
    with torch.no_grad():
        last_x, last_beta = (border.last(part).to(wide(x.dtype)) for part in (x, beta))
        last = torch.cat([part.to(x.dtype) for part in sides(last_x, last_beta, fold_of(last_beta))], dim=-1)
        start = upper_start(h0, x)
        enters, known = border.before(last, torch.cat([start, -start], dim=-1), x)
        high, low = enters.chunk(2, dim=-1)
        upper, lower, write, value, two = branches(x, beta, high, low, reset)
        valid = border.valid(x)
        closed = ~valid if reset is None else ~valid | reset  # gates without a gradient
        if h0 is None and x.shape[1]:
            closed[:, 0] |= ~known  # there was no state to keep
        write = write * valid[..., None]
    bit = None
    if h0 is not None:
        bit = start_bit(h0, x) if alpha_surr is None else heaviside(h0, alpha_surr).to(x.dtype)
    if alpha_surr is not None:
        write, value = _Choice.apply(x, beta, write, value, closed, alpha_surr)
    bits = border.latch_scan(write, value, bit, None, backend)
    return _Value.apply(x, beta, bits, upper, lower, two, max_gain)


class _Choice(Function):
    """Gate and value of the bit, with the surrogate gradients of :func:`hysteresis_scan`; ``closed [B, T]``: gates that
    get none."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, beta: Tensor, write: Tensor, value: Tensor, closed: Tensor, alpha_surr: float
    ) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(x, beta, closed)
        ctx.alpha_surr = alpha_surr
        return write.clone(), value.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, beta, closed = ctx.saved_tensors
        choice = grads[0].masked_fill(closed[..., None], 0), grads[1]
        none = torch.zeros_like(x)
        return *gradients(none, x, beta, none, choice, ctx.alpha_surr, 1.0), *[None] * 4


class _Value(Function):
    """The state on the branch that a bit chooses, with the implicit gradient and that of the bit."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, beta: Tensor, bits: Tensor, upper: Tensor, lower: Tensor, two: Tensor, max_gain: float
    ) -> Tensor:
        h = torch.lerp(lower, upper, bits)
        ctx.save_for_backward(x, beta, h, (upper - lower).masked_fill_(~two, 0))
        ctx.max_gain = max_gain
        return h

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, beta, h, gap = ctx.saved_tensors
        to_x, to_beta = gradients(grads[0], x, beta, h, None, None, ctx.max_gain)
        return to_x, to_beta, grads[0] * gap, *[None] * 4
