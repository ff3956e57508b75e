"""Latch and BMRU scans on a GPU (Triton): the gradients.

Time is cut into chunks, tiles and strands as in ``triton_latch.py``, and everything runs from the last tile to the
first. With ``G`` the gradient that reaches a state from its own step and all later ones, the gate of that step gets
``G (value - h_prev)``, the value ``G`` where it was written, and the state before ``G`` where it was held. The states
are recomputed from one row of ``h`` per strand.
"""

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from multistable.ops.precision import wide
from multistable.ops.triton_latch import _load, _where
from multistable.ops.triton_tiles import Tile, flags, make_plan, rows, states

__all__ = ["bmru_backward", "latch_backward"]

# Measured on one H200 at (64, 2048, 256) and (256, 784, 256).
_TILES = {
    "few": Tile(BN=32, U=4, warps=2, vector=2, stages=3),
    "many": Tile(BN=32, U=4, warps=2, vector=4, stages=3),
    "few half": Tile(BN=32, U=4, warps=2, vector=4, stages=3),
    "many half": Tile(BN=32, U=4, warps=2, vector=4, stages=3),
}


# --- pieces -----------------------------------------------------------------------------------------------------------


@triton.jit
def _side(x, y):
    """S(x), NaN where x or y is NaN."""
    side = tl.where(x < 0, -1.0, 1.0).to(x.dtype)
    return tl.where((x != x) | (y != y), float("nan"), side)


@triton.jit
def _gate(x, y, level, BMRU: tl.constexpr):
    """Which units hold, and what the others write: from cand and beta, or from a latch's value and flag."""
    if BMRU:
        return tl.abs(x) < tl.abs(y), _side(x, y) * level
    else:
        return y == 0, x


@triton.jit
def _load_gate(p_x, p_y, mask, BMRU: tl.constexpr, ACC: tl.constexpr, EVEN: tl.constexpr):
    """Cand and beta, or value and write flag; masked lanes hold."""
    x = _load(p_x, mask, 0.0, EVEN).to(ACC)
    if BMRU:
        return x, _load(p_y, mask, 1.0, EVEN).to(ACC)
    else:
        return x, _load(p_y, mask, 0, EVEN)


@triton.jit
def _store(p, value, mask, EVEN: tl.constexpr):
    if EVEN:
        tl.store(p, value.to(p.dtype.element_ty))
    else:
        tl.store(p, value.to(p.dtype.element_ty), mask=mask)


@triton.jit
def _join(open_, sum_, open_2, sum_2):
    """Two stretches of time as one, the later first: what leaves it passes an open earlier one. Associative."""
    return open_ & open_2, sum_2 + tl.where(open_2 != 0, sum_, 0.0)


@triton.jit
def _append(before_open, before_sum, open_, sum_, before_open_2, before_sum_2, open_2, sum_2):
    """The same with a memory of all but the last stretch, so that a scan yields what *reaches* each strand."""
    bo, bs = _join(open_, sum_, before_open_2, before_sum_2)
    o, s = _join(open_, sum_, open_2, sum_2)
    return bo, bs, o, s


@triton.jit
def _reach(open_, sum_, carry, S: tl.constexpr):
    """Gradients that leave each strand towards the past [S, BN], the latest strand first, and what reaches the tile
    from the future [1, BN] -> what reaches each strand, and what leaves the tile."""
    if S == 1:
        return carry, sum_ + tl.where(open_ != 0, carry, 0.0)
    else:
        all_open, nothing = tl.full(open_.shape, 1, tl.int32), tl.zeros_like(sum_)
        before_open, before_sum, open_, sum_ = tl.associative_scan((all_open, nothing, open_, sum_), 0, _append)
        out = sum_ + tl.where(open_ != 0, carry, 0.0)
        earliest = (tl.arange(0, S) == S - 1)[:, None]
        out = tl.sum(tl.where(earliest, out, 0.0), 0, keep_dims=True)
        return before_sum + tl.where(before_open != 0, carry, 0.0), out


@triton.jit
def _surrogate(by_gate, by_side, x, y, slope: tl.constexpr):
    """Gradients of cand x and beta y from those of the gate and of the side, through the surrogate derivatives.

    ``1 / (1 + z^2)`` as the square of a reciprocal root: one instruction of the special function unit, where a division
    takes seven.
    """
    far, near = slope * (tl.abs(x) - tl.abs(y)), slope * x
    root_far, root_near = tl.rsqrt(1.0 + far * far), tl.rsqrt(1.0 + near * near)
    by_gate = by_gate * (root_far * root_far)
    by_x = by_gate * tl.where(x == 0, 0.0, tl.where(x < 0, -1.0, 1.0)) + 2.0 * by_side * (root_near * root_near)
    by_y = by_gate * tl.where(y == 0, 0.0, tl.where(y < 0, 1.0, -1.0))
    return by_x, by_y


# --- kernels ----------------------------------------------------------------------------------------------------------


@triton.jit
def _backward_kernel(
    g, g_b, g_t, G_T: tl.constexpr, into, x, x_b, x_t, X_T: tl.constexpr, y, y_b, y_t, Y_T: tl.constexpr,
    alpha, h0, reset, r_b, r_t, h, h_b, h_t, H_T: tl.constexpr,
    grad_x, dx_b, dx_t, DX_T: tl.constexpr, grad_y, dy_b, dy_t, DY_T: tl.constexpr, grad_alpha, grad_h0,
    T, N, C, L, blocks,
    BN: tl.constexpr, S: tl.constexpr, U: tl.constexpr, EVEN: tl.constexpr, STAGES: tl.constexpr,
    BMRU: tl.constexpr, ACC: tl.constexpr, slope: tl.constexpr,
):  # fmt: skip
    """Gradients of one chunk; ``into [B, C, N]`` is what reaches each chunk's last state from later ones, or None."""
    g_t = g_t if G_T is None else G_T
    x_t = x_t if X_T is None else X_T
    y_t = y_t if Y_T is None else Y_T
    h_t = h_t if H_T is None else H_T
    dx_t = dx_t if DX_T is None else DX_T
    dy_t = dy_t if DY_T is None else DY_T
    i_b, i_c, o_n = _where(blocks, C, BN)
    m_n = o_n < N
    o_s = S - 1 - tl.arange(0, S)  # the latest strand first: a scan that Triton reverses costs five times the shuffles
    begin, end = i_c * L, tl.minimum((i_c + 1) * L, T)
    tiles = tl.cdiv(end - begin, S * U)
    first = (begin + (tiles - 1) * S * U + o_s * U).to(tl.int64)[:, None]
    p_x = x + i_b * x_b + first * x_t + o_n
    p_y = y + i_b * y_b + first * y_t + o_n
    p_h = h + i_b * h_b + (first - 1) * h_t + o_n
    p_dx = grad_x + i_b * dx_b + first * dx_t + o_n
    if g is not None:
        p_g = g + i_b * g_b + first * g_t + o_n
    if grad_y is not None:
        p_dy = grad_y + i_b * dy_b + first * dy_t + o_n
    level, carry = tl.zeros([1, BN], ACC), tl.zeros([1, BN], ACC)
    if BMRU:
        level = tl.load(alpha + o_n, mask=m_n, other=0.0).to(ACC)
    if into is not None:
        carry = tl.load(into + (i_b * C + i_c) * N + o_n, mask=m_n, other=0.0).to(ACC)
    sum_alpha = tl.zeros([S, BN], ACC)

    for i in tl.range(tiles, num_stages=STAGES):
        t = begin + (tiles - 1 - i) * S * U
        xs, ys, gs, resets, befores = (), (), (), (), ()
        for u in tl.static_range(U):
            o_t = t + o_s * U + u
            mask = (o_t < end)[:, None] & m_n
            x_u, y_u = _load_gate(p_x + u * x_t, p_y + u * y_t, mask, BMRU, ACC, EVEN)
            xs += (x_u,)
            ys += (y_u,)
            if g is not None:
                gs += (_load(p_g + u * g_t, mask, 0.0, EVEN).to(ACC),)
            else:
                gs += (tl.zeros([S, BN], ACC),)
            if reset is not None:
                p_r = reset + i_b * r_b + o_t.to(tl.int64) * r_t
                resets += (tl.load(p_r, mask=o_t < end, other=0)[:, None] != 0,)

        # The state before each strand, a row of h or h0, and from it the state before each step.
        o_first = (t + o_s * U)[:, None]
        before = tl.load(p_h, mask=(o_first > 0) & (o_first <= end) & m_n, other=0.0).to(ACC)
        if h0 is not None:
            before += tl.load(h0 + i_b * N + o_n + o_first * 0, mask=(o_first == 0) & m_n, other=0.0).to(ACC)
        for u in tl.static_range(U):
            if reset is not None:
                before = tl.where(resets[u], 0.0, before)
            befores += (before,)
            hold, new = _gate(xs[u], ys[u], level, BMRU)
            before = tl.where(hold, before, new)

        # What leaves each strand towards the past; from these, what reaches each strand from the future.
        total, open_ = tl.zeros([S, BN], ACC), tl.full([S, BN], 1, tl.int1)
        for u in tl.static_range(U - 1, -1, -1):
            hold, _ = _gate(xs[u], ys[u], level, BMRU)
            if reset is not None:
                hold = hold & ~resets[u]
            total, open_ = tl.where(hold, total + gs[u], 0.0), open_ & hold
        reached, carry = _reach(open_.to(tl.int32), total, carry, S)

        for u in tl.static_range(U - 1, -1, -1):
            mask = (t + o_s * U + u < end)[:, None] & m_n
            total = reached + gs[u]
            hold, new = _gate(xs[u], ys[u], level, BMRU)
            by_value = tl.where(hold, 0.0, total)
            by_gate = total * (new - befores[u])
            if BMRU:
                by_x, by_y = _surrogate(by_gate, by_value * level, xs[u], ys[u], slope)
                sum_alpha += by_value * _side(xs[u], ys[u])
                _store(p_dx + u * dx_t, by_x, mask, EVEN)
                _store(p_dy + u * dy_t, by_y, mask, EVEN)
            else:
                _store(p_dx + u * dx_t, by_value, mask, EVEN)
                if grad_y is not None:
                    _store(p_dy + u * dy_t, by_gate, mask, EVEN)
            if reset is not None:
                hold = hold & ~resets[u]
            reached = tl.where(hold, total, 0.0)
        p_x -= S * U * x_t
        p_y -= S * U * y_t
        p_h -= S * U * h_t
        p_dx -= S * U * dx_t
        if g is not None:
            p_g -= S * U * g_t
        if grad_y is not None:
            p_dy -= S * U * dy_t

    if BMRU:
        tl.store(grad_alpha + (i_b * C + i_c) * N + o_n, tl.sum(sum_alpha, 0, keep_dims=True), mask=m_n)
    if i_c == 0:
        tl.store(grad_h0 + i_b * N + o_n, carry, mask=m_n)


@triton.jit
def _first_write_kernel(
    g, g_b, g_t, G_T: tl.constexpr, x, x_b, x_t, X_T: tl.constexpr, y, y_b, y_t, Y_T: tl.constexpr, reset, r_b, r_t,
    passed, total, T, N, C, L, blocks, BN: tl.constexpr, R: tl.constexpr, BMRU: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """What each chunk's gradient adds to the state that entered it: the sum of ``g`` before its first write.

    ``passed [B, C, N]`` says that nothing in the chunk wrote, so that later chunks' gradients pass too. Reads forwards,
    R rows at a time, until all units have written.
    """
    i_b, i_c, o_n = _where(blocks, C, BN)
    m_n = o_n < N
    o_r = tl.arange(0, R)
    begin, end = i_c * L, tl.minimum((i_c + 1) * L, T)
    open_, sum_ = m_n.to(tl.int32), tl.zeros([1, BN], ACC)
    t = begin
    missing = 1
    while missing > 0:
        o_t = (t + o_r).to(tl.int64)[:, None]
        m_t = t + o_r < end
        mask = m_t[:, None] & m_n
        p_x = x + i_b * x_b + o_t * x_t + o_n
        p_y = y + i_b * y_b + o_t * y_t + o_n
        x_r, y_r = _load_gate(p_x, p_y, mask, BMRU, ACC, False)
        hold, _ = _gate(x_r, y_r, 1.0, BMRU)
        if reset is not None:
            mark = tl.load(reset + i_b * r_b + (t + o_r).to(tl.int64) * r_t, mask=m_t, other=0)[:, None] != 0
            hold = hold & ~mark
        at = tl.min(tl.where(hold, R, o_r[:, None]), 0, keep_dims=True)  # the first row that writes, [1, BN]
        if g is not None:
            grad = tl.load(g + i_b * g_b + o_t * g_t + o_n, mask=mask, other=0.0).to(ACC)
            sum_ += tl.sum(tl.where((o_r[:, None] < at) & (open_ != 0), grad, 0.0), 0, keep_dims=True)
        open_ = open_ & (at == R).to(tl.int32)
        t += R
        missing = tl.where(t < end, tl.sum(open_), 0)
    p = (i_b * C + i_c) * N + o_n
    tl.store(passed + p, open_.to(tl.int8), mask=m_n)
    tl.store(total + p, sum_, mask=m_n)


@triton.jit
def _carry_kernel(passed, total, grad_last, into, N, C, BN: tl.constexpr, BC: tl.constexpr):
    """From what each chunk passes back to the gradient that reaches each chunk's last state, ``into [B, C, N]``."""
    i_b = tl.program_id(1).to(tl.int64)
    o_n = (tl.program_id(0) * BN + tl.arange(0, BN))[None, :]
    m_n = o_n < N
    o_j = tl.arange(0, BC)
    carry = tl.zeros([1, BN], into.dtype.element_ty)
    if grad_last is not None:
        carry = tl.load(grad_last + i_b * N + o_n, mask=m_n, other=0.0).to(into.dtype.element_ty)
    tl.store(into + (i_b * C + C - 1) * N + o_n, carry, mask=m_n)
    for j in range(0, C - 1, BC):
        p = (i_b * C + C - 1 - j - o_j)[:, None] * N + o_n
        mask = (j + o_j < C - 1)[:, None] & m_n
        open_ = tl.load(passed + p, mask=mask, other=1).to(tl.int32)
        sum_ = tl.load(total + p, mask=mask, other=0.0)
        open_, sum_ = tl.associative_scan((open_, sum_), 0, _join)
        reached = sum_ + tl.where(open_ != 0, carry, 0.0)
        tl.store(into + p - N, reached, mask=mask)
        carry = tl.sum(tl.where((o_j == BC - 1)[:, None], reached, 0.0), 0, keep_dims=True)


# --- host -------------------------------------------------------------------------------------------------------------


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
    slope = alpha_surr * math.pi
    grad_alpha, grad_h0 = _backward(
        grad_h, grad_last, cand, beta, alpha.contiguous(), h0, reset, h, grad_cand, grad_beta, slope, reverse
    )
    return grad_alpha.sum(dim=0), grad_h0


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
    write = write.view(torch.uint8)
    return _backward(grad_h, grad_last, value, write, None, h0, reset, h, grad_value, grad_write, 0.0, reverse)[1]


def _backward(
    grad_h: Tensor | None,
    grad_last: Tensor | None,
    x: Tensor,
    y: Tensor,
    alpha: Tensor | None,
    h0: Tensor | None,
    reset: Tensor | None,
    h: Tensor,
    grad_x: Tensor,
    grad_y: Tensor | None,
    slope: float,
    reverse: bool,
) -> tuple[Tensor, Tensor]:
    """The gradients of alpha per chunk ``[B * C, N]`` and of h0 ``[B, N]``."""
    B, T, N = h.shape
    dtype = wide(h.dtype)
    plan = make_plan(B, T, N, _TILES, h.itemsize == 2, h.device)
    absent = None, 0, 0, None
    grad = absent if grad_h is None else rows(grad_h, reverse)
    inputs = *rows(x, reverse), *rows(y, reverse)
    marks = flags(reset, reverse)
    sizes = T, N, plan.C, plan.L, plan.blocks
    kind = {"BMRU": alpha is not None, "ACC": tl.float64 if dtype == torch.float64 else tl.float32}
    into = states(grad_last)
    if plan.C > 1:
        passed, total = h.new_empty(B, plan.C, N, dtype=torch.int8), h.new_empty(B, plan.C, N, dtype=dtype)
        _first_write_kernel[(plan.programs,)](
            *grad, *inputs, *marks, passed, total, *sizes, BN=plan.BN, R=plan.S, num_warps=plan.warps, **kind
        )
        last, into = into, torch.empty_like(total)
        _carry_kernel[(plan.blocks, B)](passed, total, last, into, N, plan.C, BN=plan.BN, BC=32, num_warps=1)
    grad_alpha = h.new_empty(B * plan.C if alpha is not None else 0, N, dtype=dtype)
    grad_h0 = h.new_empty(B, N, dtype=dtype)
    outputs = *rows(grad_x, reverse), *(absent if grad_y is None else rows(grad_y, reverse))
    _backward_kernel[(plan.programs,)](
        *grad, into, *inputs, alpha, states(h0), *marks, *rows(h, reverse), *outputs, grad_alpha, grad_h0, *sizes,
        BN=plan.BN, S=plan.S, U=plan.U, EVEN=plan.even, STAGES=plan.stages, slope=slope, num_warps=plan.warps, **kind,
    )  # fmt: skip
    return grad_alpha, grad_h0
