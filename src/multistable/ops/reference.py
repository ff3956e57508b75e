"""The definition: three recurrences as loops over time; latch and linear are differentiated by autograd.

    latch     h_t = value_t  where write_t,  else h_{t-1}
    linear    h_t = a_t * h_{t-1} + b_t
    map       s_t = map_t[s_{t-1}],  s one of K states

The BMRU is a latch with ``write_t = |cand_t| >= |beta_t|`` and ``value_t = alpha * S(cand_t)``. Every other backend
is tested against this file. ``reset_t`` sets the state to zero just before step t.

Half precision is computed in float32 and rounded once at the end; a latch only selects, so its result is exact.
"""

import math
from typing import Any

import torch
from torch import Tensor

from multistable.ops.autograd import Function
from multistable.ops.numerics import wide
from multistable.surrogate import derivative, sign, with_tangents

__all__ = [
    "bmru_scan",
    "bmru_step",
    "gates",
    "latch",
    "latch_scan",
    "linear_scan",
    "map_adjoint",
    "map_scan",
    "rounded",
]


def bmru_scan(
    cand: Tensor,
    beta: Tensor,
    alpha: Tensor,
    h0: Tensor | None = None,
    *,
    alpha_surr: float = 1.0,
    reset: Tensor | None = None,
) -> Tensor:
    """States ``h [B, T, N]`` of a BMRU from ``cand, beta [B, T, N]``, ``alpha [N]``, ``h0 [B, N]``."""
    h = _start(cand, h0)
    hs: list[Tensor] = []
    c, b, level = _widen(cand), _widen(beta), rounded(alpha, cand.dtype)
    for t in range(cand.shape[1]):
        h = _bmru_step(c[:, t], b[:, t], level, _restart(h, reset, t), alpha_surr)
        hs.append(h)
    return torch.stack(hs, dim=1).to(cand.dtype) if hs else torch.zeros_like(cand)


def bmru_step(cand: Tensor, beta: Tensor, alpha: Tensor, h_prev: Tensor, *, alpha_surr: float = 1.0) -> Tensor:
    """One timestep of the BMRU: ``cand, beta, h_prev [..., N]``, ``alpha [N]`` -> ``h [..., N]`` in cand's dtype."""
    if not torch.is_grad_enabled():
        return _select(cand, beta, alpha.to(cand.dtype), h_prev.to(cand.dtype))
    level, h_prev = (rounded(x, cand.dtype) for x in (alpha, h_prev))
    return _bmru_step(_widen(cand), _widen(beta), level, h_prev, alpha_surr).to(cand.dtype)


def _select(cand: Tensor, beta: Tensor, alpha: Tensor, h_prev: Tensor) -> Tensor:
    """The step in plain comparisons, without what gradients need: 22 us instead of 60 for a few units."""
    distance, width = cand.abs(), beta.abs()
    value = torch.where(cand < 0, -alpha, alpha)
    return torch.where(distance < width, h_prev, torch.where(distance >= width, value, math.nan))  # NaN is neither


def _bmru_step(cand: Tensor, beta: Tensor, alpha: Tensor, h_prev: Tensor, alpha_surr: float) -> Tensor:
    return latch(*_gates(cand, beta, alpha, alpha_surr), h_prev)


def gates(cand: Tensor, beta: Tensor, alpha: Tensor, alpha_surr: float) -> tuple[Tensor, Tensor, Tensor]:
    """The gate of zeros and ones, the value to write and the level, in the dtype of the computation; they have the
    surrogate gradients of the BMRU."""
    level = rounded(alpha, cand.dtype)
    return *_gates(_widen(cand), _widen(beta), level, alpha_surr), level


def _gates(cand: Tensor, beta: Tensor, alpha: Tensor, alpha_surr: float) -> tuple[Tensor, Tensor]:
    write = _at_least(cand.abs(), beta.abs(), alpha_surr)
    side = torch.where(beta.isnan(), beta, sign(cand, alpha_surr))  # +1, -1, or NaN where either input is
    return write, alpha * side


def latch(write: Tensor, value: Tensor, h_prev: Tensor) -> Tensor:
    """One step of a latch, elementwise, with a gradient for a float ``write``."""
    return _latch(write, value, h_prev)


def latch_scan(write: Tensor, value: Tensor, h0: Tensor | None = None, *, reset: Tensor | None = None) -> Tensor:
    """States ``h [B, T, N]`` of a latch; a float ``write`` of zeros and ones receives ``G_t (value_t - h_{t-1})``."""
    dtype, h = value.dtype, _start(value, h0)
    hs: list[Tensor] = []
    write, value = _widen(write), _widen(value)
    for t in range(value.shape[1]):
        h = latch(write[:, t], value[:, t], _restart(h, reset, t))
        hs.append(h)
    return torch.stack(hs, dim=1).to(dtype) if hs else torch.zeros_like(value, dtype=dtype)


def linear_scan(a: Tensor, b: Tensor, h0: Tensor | None = None, *, reset: Tensor | None = None) -> Tensor:
    """States ``h [B, T, N]`` of the linear recurrence, real or complex; ``a`` is ``[B, T, N]`` or constant, ``[N]``."""
    dtype, h = b.dtype, _start(b, h0)
    hs: list[Tensor] = []
    a, b = _widen(a), _widen(b)
    for t in range(b.shape[1]):
        h = (a if a.ndim == 1 else a[:, t]) * _restart(h, reset, t) + b[:, t]
        hs.append(h)
    return torch.stack(hs, dim=1).to(dtype) if hs else torch.zeros_like(b, dtype=dtype)


def map_scan(maps: Tensor, s0: Tensor | None = None, *, reset: Tensor | None = None, reverse: bool = False) -> Tensor:
    """States ``s [B, T, N]`` of machines; ``maps [B, T, N, K]``: the state after, for every state before."""
    B, T, N, _ = maps.shape
    s = maps.new_zeros(B, N) if s0 is None else s0
    states = torch.zeros_like(maps[..., 0])
    for t in reversed(range(T)) if reverse else range(T):
        s = maps[:, t].gather(-1, _restart(s, reset, t)[..., None].long()).squeeze(-1)
        states[:, t] = s
    return states


def map_adjoint(
    maps: Tensor, grad: Tensor, *, reset: Tensor | None = None, reverse: bool = False
) -> tuple[Tensor, Tensor]:
    """``lam_t[k] = grad_t[k] + lam_{t+1}[map_{t+1}[k]]`` as ``lam [B, T, N, K]``, and ``lam_0 [B, N, K]`` before the
    first step."""
    B, T, N, K = grad.shape
    lam, before = torch.zeros_like(grad), grad.new_zeros(B, N, K, dtype=wide(grad.dtype))
    for t in range(T) if reverse else reversed(range(T)):
        total = grad[:, t] + before
        lam[:, t] = total
        before = total.gather(-1, maps[:, t].long())
        if reset is not None:
            before = torch.where(reset[:, t, None, None], 0.0, before)
    return lam, before.to(grad.dtype)


def _widen(x: Tensor) -> Tensor:
    """``x`` in the dtype of the computation."""
    return x.to(wide(x.dtype))


def _start(like: Tensor, h0: Tensor | None) -> Tensor:
    """``h0`` rounded to the dtype of the scan, or zeros ``[B, N]``."""
    if h0 is None:
        return _widen(like.new_zeros(like.shape[0], like.shape[2]))
    return rounded(h0, like.dtype)


def _restart(h: Tensor, reset: Tensor | None, t: int) -> Tensor:
    """The state before step t: zero where ``reset`` says so (selected: an overflow must not outlive a reset)."""
    return h if reset is None else torch.where(reset[:, t, None], torch.zeros_like(h), h)


class _AtLeast(Function):
    """``x >= y`` as 0.0 or 1.0 (NaN is 1), with the surrogate gradient of ``heaviside(x - y)``."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, y: Tensor, alpha_surr: float) -> Tensor:
        return (~(x < y)).to(x.dtype)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, float], output: Tensor) -> None:
        x, y, ctx.alpha_surr = inputs
        ctx.save_for_backward(x, y)
        ctx.save_for_forward(x, y)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None]:
        x, y = ctx.saved_tensors
        grad = grads[0] * derivative(x - y, ctx.alpha_surr)
        return grad, -grad, None

    @staticmethod
    def tangent(ctx: Any, *tangents: Any) -> Tensor:
        x, y = ctx.saved_tensors
        return (tangents[0] - tangents[1]) * derivative(x - y, ctx.alpha_surr)


class _Latch(Function):
    """``value`` where ``write``, else ``h_prev``: selected, never multiplied, with a gradient for ``write`` too.

    A gate of NaN writes NaN.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(write: Tensor, value: Tensor, h_prev: Tensor) -> Tensor:
        return torch.where(write != 0, _written(write, value), h_prev)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor, Tensor]:
        write, value, h_prev = ctx.saved_tensors
        (grad,), zero = grads, torch.zeros_like(value)
        grad_write = grad * (_written(write, value) - h_prev) if write.is_floating_point() else None
        return grad_write, torch.where(write != 0, grad, zero), torch.where(write != 0, zero, grad)

    @staticmethod
    def tangent(ctx: Any, *tangents: Any) -> Tensor:
        (write, value, h_prev), (to_write, to_value, to_h) = ctx.saved_tensors, tangents
        chosen = torch.where(write != 0, to_value, to_h)
        return chosen if to_write is None else chosen + to_write * (_written(write, value) - h_prev)


def _written(write: Tensor, value: Tensor) -> Tensor:
    return torch.where(write.isnan(), write, value) if write.is_floating_point() else value


def rounded(x: Tensor, dtype: torch.dtype) -> Tensor:
    """``x`` rounded to ``dtype``, in the dtype of the computation."""
    return x if x.dtype == dtype == wide(dtype) else _round(_widen(x), dtype)


class _Round(Function):
    """Round to ``dtype`` and back; the gradient passes in full precision."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, dtype: torch.dtype) -> Tensor:
        return x.to(dtype).to(wide(dtype))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, torch.dtype], output: Tensor) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return grads[0], None

    @staticmethod
    def tangent(ctx: Any, *tangents: Any) -> Tensor:
        return tangents[0]


_at_least, _latch, _round = map(with_tangents, (_AtLeast, _Latch, _Round))
