"""The scans in plain torch, for any device, with hand-written gradients.

A loop over T small operations is slow, so time is cut into about sqrt(T) chunks of about sqrt(T) steps::

    1. local    scan all chunks at once from an empty state        sqrt(T) operations on [B, C, N]
    2. carry    walk over the chunks' last states                  sqrt(T) operations on [B, N]
    3. apply    give every step the state that entered its chunk   one operation on [B, T, N]

Two steps of a latch compose to a latch, and two of a linear recurrence to a linear one (associativity), which is
what makes step 2 right. The latch only selects, so its result has the same bits as the loop's. The linear recurrence
multiplies the coefficients of a chunk: where that product overflows (it cannot for ``|a| <= 1``), a state of 0, which
the loop would keep at 0, becomes NaN.

The backward of both recurrences is the same recurrence with time reversed. With ``G_t`` the gradient that reaches
``h_t`` from step t and all later ones, ``G_t = grad_t + keep_{t+1} G_{t+1}`` for the latch and
``G_t = grad_t + conj(a_{t+1}) G_{t+1}`` for the linear recurrence.

Maps of K states compose to maps, so a machine's chunks are first composed, then carried, then walked through: three
times sqrt(T) operations, and every state is looked up, never computed.

Time is axis 1. With ``reverse`` everything runs from the last step to the first, here by flipping.
"""

import math
from typing import overload

import torch
import torch.nn.functional as F
from torch import Tensor

from multistable.ops import maps
from multistable.ops.numerics import aligned, from_pairs, to_pairs, wide
from multistable.surrogate import derivative

__all__ = [
    "bmru_backward",
    "bmru_forward",
    "latch_backward",
    "latch_forward",
    "linear_backward",
    "linear_forward",
    "map_adjoint",
    "map_forward",
    "map_pack",
]


def bmru_forward(
    cand: Tensor, beta: Tensor, alpha: Tensor, h0: Tensor | None, reset: Tensor | None, h: Tensor, *, reverse: bool
) -> None:
    """Fill ``h [B, T, N]`` with the states of a BMRU; ``h0 [B, N]`` has the dtype of ``cand``."""
    write, side = gates(cand, beta)
    latch_forward(write, alpha.to(cand.dtype) * side, h0, reset, h, reverse=reverse)


def bmru_backward(
    grad_h: Tensor | None,
    grad_last: Tensor | None,
    cand: Tensor,
    beta: Tensor,
    alpha: Tensor,
    h0: Tensor | None,
    reset: Tensor | None,
    h: Tensor,
    grad_cand: Tensor,
    grad_beta: Tensor,
    *,
    alpha_surr: float,
    reverse: bool,
) -> tuple[Tensor, Tensor]:
    """Fill ``grad_cand, grad_beta [B, T, N]``; return the wide gradients of ``alpha [N]`` and ``h0 [B, N]``."""
    dtype = wide(cand.dtype)
    cand, beta, alpha = cand.to(dtype), beta.to(dtype), alpha.to(cand.dtype).to(dtype)
    write, side = gates(cand, beta)
    total, grad_h0 = _latch_adjoint(grad_h, grad_last, _hold(write, reset), dtype, reverse)
    h_prev = previous(h, h0, reset, reverse).to(dtype)

    distance = cand.abs() - beta.abs()
    grad_distance = total * (alpha * side - h_prev) * derivative(distance, alpha_surr)
    grad_value = torch.where(write, total, 0.0)
    grad_cand.copy_(grad_distance * cand.sgn() + grad_value * alpha * 2.0 * derivative(cand, alpha_surr))
    grad_beta.copy_(-grad_distance * beta.sgn())
    return (grad_value * side).sum(dim=(0, 1)), grad_h0


def latch_forward(
    write: Tensor, value: Tensor, h0: Tensor | None, reset: Tensor | None, h: Tensor, *, reverse: bool
) -> None:
    """Fill ``h [B, T, N]`` with the states of a latch; ``write`` is boolean."""
    if reset is not None:  # a reset that is not overwritten at once is a write of zero
        value = torch.where(write, value, torch.zeros_like(value))
        write = write | reset[..., None]
    h.copy_(flip(_chunked_latch(flip(write, reverse), flip(value, reverse), h0), reverse))


def latch_backward(
    grad_h: Tensor | None,
    grad_last: Tensor | None,
    write: Tensor,
    value: Tensor,
    h0: Tensor | None,
    reset: Tensor | None,
    h: Tensor,
    grad_write: Tensor | None,
    grad_value: Tensor,
    *,
    reverse: bool,
) -> Tensor:
    """Fill ``grad_value`` and, unless None, ``grad_write [B, T, N]``; return the wide gradient of ``h0``."""
    dtype = wide(value.dtype)
    total, grad_h0 = _latch_adjoint(grad_h, grad_last, _hold(write, reset), dtype, reverse)
    grad_value.copy_(torch.where(write, total, 0.0))
    if grad_write is not None:
        grad_write.copy_(total * (value.to(dtype) - previous(h, h0, reset, reverse).to(dtype)))
    return grad_h0


def linear_forward(
    a: Tensor, b: Tensor, h0: Tensor | None, reset: Tensor | None, h: Tensor, *, pairs: bool, reverse: bool
) -> None:
    """Fill ``h`` with the states of a linear recurrence; ``pairs``: real parts, then imaginary on the last axis."""
    a, b = _numbers(a.to(wide(b.dtype)), pairs), _numbers(b, pairs)
    h0 = b.new_zeros(b.shape[0], b.shape[2]) if h0 is None else _numbers(h0, pairs)
    a, b, reset = flip(a, reverse), flip(b, reverse), flip(reset, reverse)
    h.copy_(_reals(flip(_chunked_linear(a, b, h0, reset), reverse), pairs))


def linear_backward(
    grad_h: Tensor | None,
    grad_last: Tensor | None,
    a: Tensor,
    h0: Tensor | None,
    reset: Tensor | None,
    h: Tensor,
    grad_b: Tensor,
    *,
    pairs: bool,
    reverse: bool,
) -> tuple[Tensor, Tensor]:
    """Fill ``grad_b``; return the wide gradients of ``a`` (in a's shape) and of ``h0``."""
    a, states = _numbers(a.to(wide(h.dtype)), pairs), _numbers(h, pairs)
    grad = torch.zeros_like(states) if grad_h is None else _numbers(grad_h, pairs)
    last = torch.zeros_like(states[:, 0]) if grad_last is None else _numbers(grad_last, pairs)
    start = None if h0 is None else _numbers(h0, pairs)

    # The adjoint runs against the scan and uses the coefficient of the step after; 1 lets the last gradient in.
    # Conjugates are computed, not flagged (`conj`): in the first call of a compiled graph torch ignores the flag.
    steps = a.conj_physical().expand(states.shape)
    after = _shift(steps, torch.ones_like(last), not reverse)
    restart = None if reset is None else _shift(reset, torch.zeros_like(reset[:, 0]), not reverse)
    back = not reverse
    total = flip(_chunked_linear(flip(after, back), flip(grad, back), last, flip(restart, back)), back)
    grad_b.copy_(_reals(total, pairs))
    grad_a = total * previous(states, start, reset, reverse).conj_physical()
    first = -1 if reverse else 0
    grad_h0 = steps[:, first] * total[:, first]
    if reset is not None:
        grad_h0 = torch.where(reset[:, first, None], 0.0, grad_h0)
    return _reals(grad_a.sum(dim=(0, 1)) if a.ndim == 1 else grad_a, pairs), _reals(grad_h0, pairs)


def map_pack(states: Tensor, words: Tensor) -> None:
    """Fill ``words [B, T, N]`` from maps ``[B, T, N, K]`` of states below K."""
    words.copy_(maps.pack(states))


def map_forward(
    words: Tensor, s0: Tensor | None, reset: Tensor | None, states: Tensor, *, K: int, reverse: bool
) -> None:
    """Fill ``states [B, T, N]`` of machines with K states from the words of their maps; all states are uint8."""
    bits, (B, T, N) = maps.state_bits(K), states.shape
    if reset is not None:
        words = torch.where(reset[..., None], maps.constant(words, bits), words)
    steps = _chunks(flip(words, reverse))  # [B, C, L, N]
    whole = steps[:, :, 0]
    for i in range(1, steps.shape[2]):
        whole = maps.compose(whole, steps[:, :, i], bits)
    state = words.new_zeros(B, N) if s0 is None else s0.to(words.dtype)
    entering: list[Tensor] = []
    for c in range(steps.shape[1]):
        entering.append(state)
        state = maps.look_up(whole[:, c], state, bits)
    state = torch.stack(entering, dim=1)
    walked: list[Tensor] = []
    for i in range(steps.shape[2]):
        state = maps.look_up(steps[:, :, i], state, bits)
        walked.append(state.to(torch.uint8))
    states.copy_(flip(torch.stack(walked, dim=2).flatten(1, 2)[:, :T], reverse))


def map_adjoint(words: Tensor, grad: Tensor, reset: Tensor | None, lam: Tensor, *, reverse: bool) -> Tensor:
    """Fill ``lam [B, T, N, K]`` with the adjoint of ``grad``; return that before the first step, wide.

    Against the order of the scan, step i hands ``lam_i[map_i]`` on to step i + 1. ``route`` is the entry of what came
    into the chunk that has reached each state, ``open_`` whether no reset has cut it off.
    """
    B, T, N, K = grad.shape
    back, dtype = not reverse, wide(grad.dtype)
    total = torch.unflatten(_chunks(flip(grad.to(dtype, copy=True), back).flatten(2)), 3, (N, K))  # [B, C, L, N, K]
    index = torch.unflatten(_chunks(flip(maps.unpack(words, K), back).flatten(2)), 3, (N, K))
    passes = torch.ones_like(words[..., :1], dtype=torch.bool) if reset is None else ~reset[..., None]
    passes = _chunks(flip(passes, back))[..., None]
    route, open_ = torch.arange(K, device=grad.device).expand_as(index).clone(), torch.ones_like(passes)
    for i in range(1, total.shape[2]):
        before = index[:, :, i - 1]
        total[:, :, i] += torch.where(passes[:, :, i - 1], total[:, :, i - 1].gather(-1, before), 0.0)
        route[:, :, i] = route[:, :, i - 1].gather(-1, before)
        open_[:, :, i] = open_[:, :, i - 1] & passes[:, :, i - 1]
    carry = grad.new_zeros(B, N, K, dtype=dtype)
    for c in range(total.shape[1]):
        came = carry[:, None].expand_as(route[:, c]).gather(-1, route[:, c])
        total[:, c] += torch.where(open_[:, c], came, 0.0)
        carry = torch.where(passes[:, c, -1], total[:, c, -1].gather(-1, index[:, c, -1]), 0.0)
    lam.copy_(flip(total.flatten(1, 2)[:, :T], back))
    first = -1 if reverse else 0
    start = lam[:, first].to(dtype).gather(-1, maps.unpack(words[:, first], K))
    return start if reset is None else torch.where(reset[:, first, None, None], 0.0, start)


def gates(cand: Tensor, beta: Tensor) -> tuple[Tensor, Tensor]:
    """``write`` (boolean; NaN writes) and ``side``: S(cand), NaN where either input is NaN."""
    write = ~(cand.abs() < beta.abs())
    side = torch.where(cand >= 0, 1.0, torch.where(cand < 0, -1.0, cand)).to(cand.dtype)
    return write, torch.where(beta.isnan(), beta, side)


def _hold(write: Tensor, reset: Tensor | None) -> Tensor:
    """Where the state before the step passes through it."""
    return ~write if reset is None else ~(write | reset[..., None])


def _latch_adjoint(
    grad_h: Tensor | None, grad_last: Tensor | None, hold: Tensor, dtype: torch.dtype, reverse: bool
) -> tuple[Tensor, Tensor]:
    """``G [B, T, N]``, the gradient that reaches each state from all later steps, and the gradient of h0."""
    B, T, N = hold.shape
    grad = hold.new_zeros(B, T, N, dtype=dtype) if grad_h is None else grad_h.to(dtype)
    last = hold.new_zeros(B, N, dtype=dtype) if grad_last is None else grad_last.to(dtype)
    after = _shift(hold, torch.ones_like(hold[:, 0]), not reverse)
    total = flip(_chunked_sum(flip(after, not reverse), flip(grad, not reverse), last), not reverse)
    first = -1 if reverse else 0
    return total, torch.where(hold[:, first], total[:, first], 0.0)


def _chunked_latch(write: Tensor, value: Tensor, h0: Tensor | None) -> Tensor:
    """Latch states by chunks of time. ``write, value [B, T, N]``."""
    B, T, N = value.shape
    write, value = _chunks(write.clone()), _chunks(value.clone())  # [B, C, L, N], overwritten below
    for i in range(1, value.shape[2]):
        value[:, :, i] = torch.where(write[:, :, i], value[:, :, i], value[:, :, i - 1])
        write[:, :, i] |= write[:, :, i - 1]
    h = value.new_zeros(B, N) if h0 is None else h0
    entering: list[Tensor] = []
    for c in range(value.shape[1]):
        entering.append(h)
        h = torch.where(write[:, c, -1], value[:, c, -1], h)
    states = torch.where(write, value, torch.stack(entering, dim=1)[:, :, None])
    return states.flatten(1, 2)[:, :T]


def _chunked_sum(hold: Tensor, x: Tensor, start: Tensor) -> Tensor:
    """``y_t = x_t + (y_{t-1} where hold_t, else 0)`` by chunks of time: a linear scan whose coefficient selects."""
    T = x.shape[1]
    hold, y = _chunks(hold.clone()), _chunks(x.clone())
    for i in range(1, y.shape[2]):
        y[:, :, i] += torch.where(hold[:, :, i], y[:, :, i - 1], 0.0)
        hold[:, :, i] &= hold[:, :, i - 1]
    entering: list[Tensor] = []
    for c in range(y.shape[1]):
        entering.append(start)
        start = y[:, c, -1] + torch.where(hold[:, c, -1], start, 0.0)
    y += torch.where(hold, torch.stack(entering, dim=1)[:, :, None], 0.0)
    return y.flatten(1, 2)[:, :T]


def _chunked_linear(a: Tensor, b: Tensor, h0: Tensor, reset: Tensor | None) -> Tensor:
    """Linear states by chunks of time. ``a [B, T, N]`` or ``[N]``, ``b [B, T, N]``, real or complex."""
    T = b.shape[1]
    hs = _chunks(b.clone())  # [B, C, L, N]
    C, L = hs.shape[1:3]
    cum = a.expand(1, 1, L, -1).clone() if a.ndim == 1 else _chunks(a.clone())  # products of a since the chunk began
    open_ = None if reset is None else ~_chunks(reset[..., None].clone())  # no reset since the chunk began
    coefficient = cum.clone()
    for i in range(1, L):
        before = hs[:, :, i - 1] if open_ is None else torch.where(open_[:, :, i], hs[:, :, i - 1], 0.0)
        hs[:, :, i] += coefficient[:, :, i] * before
        cum[:, :, i] *= cum[:, :, i - 1]
        if open_ is not None:
            open_[:, :, i] &= open_[:, :, i - 1]
    entering: list[Tensor] = []
    for c in range(C):
        entering.append(h0)
        passed = cum[:, min(c, cum.shape[1] - 1), -1] * h0
        h0 = hs[:, c, -1] + (passed if open_ is None else torch.where(open_[:, c, -1], passed, 0.0))
    passed = cum * torch.stack(entering, dim=1)[:, :, None]
    hs += passed if open_ is None else torch.where(open_, passed, 0.0)
    return hs.flatten(1, 2)[:, :T]


def _chunks(x: Tensor) -> Tensor:
    """``[B, T, N] -> [B, C, L, N]``, C and L about sqrt(T), zeros (False) after the end."""
    T = x.shape[1]
    L = math.isqrt(max(T - 1, 0)) + 1
    C = -(-T // L)
    return torch.unflatten(F.pad(x, (0, 0, 0, C * L - T)), 1, (C, L))


def previous(h: Tensor, h0: Tensor | None, reset: Tensor | None, reverse: bool) -> Tensor:
    """The state each step starts from, ``[B, T, N]`` (or with more axes), after resets."""
    start = torch.zeros_like(h[:, 0]) if h0 is None else h0.to(h.dtype)
    before = _shift(h, start, reverse)
    return before if reset is None else torch.where(aligned(reset, before), torch.zeros_like(before), before)


def _shift(x: Tensor, first: Tensor, reverse: bool) -> Tensor:
    """Each step gets the entry of the step before it; ``first`` enters where time begins.

    Without a slice of T - 1 steps, for which ``torch.export`` would exclude T = 2.
    """
    if reverse:
        return torch.cat([x, first[:, None]], dim=1)[:, 1:]
    return torch.cat([first[:, None], x], dim=1)[:, : x.shape[1]]


@overload
def flip(x: Tensor, reverse: bool) -> Tensor: ...
@overload
def flip(x: None, reverse: bool) -> None: ...
@overload
def flip(x: Tensor | None, reverse: bool) -> Tensor | None: ...
def flip(x: Tensor | None, reverse: bool) -> Tensor | None:
    """Reverse time, if ``x`` has a time axis."""
    return x.flip(1) if reverse and x is not None and x.ndim > 1 else x


def _numbers(x: Tensor, pairs: bool) -> Tensor:
    """``x`` in the dtype of the computation; pairs become complex numbers."""
    return from_pairs(x) if pairs else x.to(wide(x.dtype))


def _reals(x: Tensor, pairs: bool) -> Tensor:
    """The inverse of :func:`_numbers`."""
    return to_pairs(x) if pairs else x
