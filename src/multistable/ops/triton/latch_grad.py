"""Latch and BMRU scans on a GPU (Triton): the gradients.

Time is cut into chunks, tiles and strands as in ``latch.py``, and everything runs from the last tile to the
first. With ``G`` the gradient that reaches a state from its own step and all later ones, the gate of that step gets
``G (value - h_prev)``, the value ``G`` where it was written, and the state before ``G`` where it was held. The states
are recomputed from one row of ``h`` per strand.
"""

import math
from functools import partial

import torch
import triton
import triton.language as tl
from torch import Tensor

from multistable.ops.numerics import wide
from multistable.ops.triton import launch
from multistable.ops.triton.launch import contiguous, launch_config, strided, strided_reset
from multistable.ops.triton.primitives import (
    keep_bits,
    load,
    negative_mask,
    program_indices,
    reciprocal,
    select_bits,
    split_steps,
    store_numbers,
    time_stride,
    unpack,
    word_pointer,
    xor_sign,
)

__all__ = ["bmru_backward", "latch_backward"]

_TILINGS = ((12, 8, 2), (6, 8, 3), (0, 8, 5))  # measured on one H200


# --- device functions -------------------------------------------------------------------------------------------------


@triton.jit
def _side(x, y):
    """S(x), NaN where x or y is NaN."""
    side = tl.where(x < 0, -1.0, 1.0).to(x.dtype)
    return tl.where((x != x) | (y != y), float("nan"), side)


@triton.jit
def _join(open_, sum_, open_2, sum_2):
    """Join two stretches of time, the later first: its gradient passes through an open earlier one. Associative."""
    return open_ & open_2, sum_2 + keep_bits(open_2, sum_)


@triton.jit
def _append(before_open, before_sum, open_, sum_, before_open_2, before_sum_2, open_2, sum_2):
    """``_join`` that also keeps the result without the last stretch, so that a scan gives what *reaches* each."""
    bo, bs = _join(open_, sum_, before_open_2, before_sum_2)
    o, s = _join(open_, sum_, open_2, sum_2)
    return bo, bs, o, s


@triton.jit
def _gradients_after(open_, sum_, carry, S: tl.constexpr):
    """From the gradients that leave each strand towards the past [S, BN], the latest strand first, and the one that
    reaches the tile from the future [1, BN]: what reaches each strand, and what leaves the tile."""
    all_open, nothing = tl.full(open_.shape, -1, open_.dtype), tl.zeros_like(sum_)
    before_open, before_sum, open_, sum_ = tl.associative_scan((all_open, nothing, open_, sum_), 0, _append)
    out = sum_ + keep_bits(open_, carry)
    earliest = (tl.arange(0, S) == S - 1)[:, None]
    out = tl.sum(tl.where(earliest, out, 0.0), 0, keep_dims=True)
    return before_sum + keep_bits(before_open, carry), out


@triton.jit
def _surrogate(by_gate, by_side, side, x, y, margin, slope: tl.constexpr):
    """Gradients of cand x and beta y from those of the gate and of the side, through the surrogate derivatives."""
    far, near = slope * margin, slope * x
    by_gate = by_gate * reciprocal(1.0 + far * far)
    by_x = tl.where(x == 0, 0.0, by_gate) * side + by_side * reciprocal(1.0 + near * near)
    by_y = tl.where(y == 0, 0.0, -xor_sign(by_gate, y))
    return by_x, by_y


@triton.jit
def _tile_gradients(
    xs, ys, gs, resets, before, level, carry, sum_alpha,
    S: tl.constexpr, U: tl.constexpr, BMRU: tl.constexpr, RESETS: tl.constexpr, slope: tl.constexpr,
):  # fmt: skip
    """Gradients of a tile, from tuples of U steps [S, BN], the state before each strand and what reaches the tile."""
    # How much each gate changes the state before it.
    margins, holds, passes, sides, changes = (), (), (), (), ()
    for u in tl.static_range(U):
        if BMRU:
            margins += (tl.abs(xs[u]) - tl.abs(ys[u]),)
            holds += (negative_mask(margins[u]),)
            sides += (_side(xs[u], ys[u]),)
            new = sides[u] * level
        else:
            holds += (ys[u],)
            new = xs[u]
        if RESETS:
            before = tl.where(resets[u], 0.0, before)
            passes += (tl.where(resets[u], 0, holds[u]),)
        else:
            passes += (holds[u],)
        changes += (new - before,)
        before = select_bits(holds[u], before, new)

    # What leaves each strand towards the past gives what reaches each strand from the future.
    reached = carry
    if S > 1:
        total, open_ = tl.zeros_like(xs[0]), tl.full(xs[0].shape, -1, holds[0].dtype)
        for u in tl.static_range(U - 1, -1, -1):
            total, open_ = keep_bits(passes[u], total + gs[u]), open_ & passes[u]
        reached, carry = _gradients_after(open_, total, carry, S)

    by_xs, by_ys = (), ()
    for u in tl.static_range(U - 1, -1, -1):
        total = reached + gs[u]
        by_x = keep_bits(~holds[u], total)
        by_y = total * changes[u]
        if BMRU:
            sum_alpha += by_x * sides[u]
            by_x, by_y = _surrogate(by_y, by_x * (2.0 * level), sides[u], xs[u], ys[u], margins[u], slope)
        by_xs, by_ys = (by_x,) + by_xs, (by_y,) + by_ys
        reached = keep_bits(passes[u], total)
    if S == 1:
        carry = reached
    return by_xs, by_ys, carry, sum_alpha


# --- kernels ----------------------------------------------------------------------------------------------------------


@triton.jit
def _backward_kernel(
    g, g_b, g_t, G_T: tl.constexpr, into, x, x_b, x_t, X_T: tl.constexpr, y, y_b, y_t, Y_T: tl.constexpr,
    alpha, h0, reset, r_b, r_t, h, h_b, h_t, H_T: tl.constexpr,
    grad_x, dx_b, dx_t, DX_T: tl.constexpr, grad_y, dy_b, dy_t, DY_T: tl.constexpr, grad_alpha, grad_h0,
    T, N, C, L, blocks,
    BN: tl.constexpr, S: tl.constexpr, U: tl.constexpr, EVEN: tl.constexpr, STAGES: tl.constexpr,
    BMRU: tl.constexpr, PER_WORD: tl.constexpr, ACC: tl.constexpr, slope: tl.constexpr,
):  # fmt: skip
    """Gradients of one chunk; ``into [B, C, N]`` is what reaches each chunk's last state from later ones, or None.

    N counts words. Where these are pairs, the rows of ``into``, ``grad_alpha`` and ``grad_h0``, which hold single
    numbers, are twice as wide.
    """
    DTYPE: tl.constexpr = h.dtype.element_ty
    HALF: tl.constexpr = DTYPE if PER_WORD == 2 else None
    MASK: tl.constexpr = tl.int64 if ACC == tl.float64 else tl.int32
    HELD: tl.constexpr = (0x40004000 if PER_WORD == 2 else 2.0) if BMRU else 0  # beta = 2 outside the tensor
    g_t = time_stride(g_t, G_T)
    x_t = time_stride(x_t, X_T)
    y_t = time_stride(y_t, Y_T)
    h_t = time_stride(h_t, H_T)
    dx_t = time_stride(dx_t, DX_T)
    dy_t = time_stride(dy_t, DY_T)
    i_b, i_c, o_n = program_indices(blocks, C, BN)
    m_n = o_n < N
    o_s = S - 1 - tl.arange(0, S)  # the latest strand first: a scan that Triton reverses costs five times the shuffles
    o_u = tl.arange(0, U)[None, :]
    begin, end = i_c * L, tl.minimum((i_c + 1) * L, T)
    tiles = tl.cdiv(end - begin, S * U)
    first = (begin + (tiles - 1) * S * U + o_s * U).to(tl.int64)[:, None]  # step of each strand [S, 1]
    each = (first + o_u)[:, :, None]  # [S, U, 1]
    p_x = word_pointer(x, PER_WORD) + i_b * x_b + each * x_t + o_n
    p_y = word_pointer(y, PER_WORD) + i_b * y_b + each * y_t + o_n
    p_h = word_pointer(h, PER_WORD) + i_b * h_b + (first - 1) * h_t + o_n
    p_dx = word_pointer(grad_x, PER_WORD) + i_b * dx_b + first * dx_t + o_n
    if g is not None:
        p_g = word_pointer(g, PER_WORD) + i_b * g_b + each * g_t + o_n
    if grad_y is not None:
        p_dy = word_pointer(grad_y, PER_WORD) + i_b * dy_b + first * dy_t + o_n
    p_wide = (i_b * C + i_c) * N * PER_WORD + o_n * PER_WORD
    levels, carries, sums = (), (), ()
    for f in tl.static_range(PER_WORD):
        level, carry = tl.zeros([1, BN], ACC), tl.zeros([1, BN], ACC)
        if BMRU:
            level = tl.load(alpha + o_n * PER_WORD + f, mask=m_n, other=0).to(DTYPE).to(ACC)
        if into is not None:
            carry = tl.load(into + p_wide + f, mask=m_n, other=0.0).to(ACC)
        levels += (level,)
        carries += (carry,)
        sums += (tl.zeros([S, BN], ACC),)

    for i in tl.range(tiles, num_stages=STAGES):
        t = begin + (tiles - 1 - i) * S * U
        mask = (t + o_s[:, None] * U + o_u < end)[:, :, None] & m_n
        x_w = split_steps(load(p_x, mask, 0, EVEN), U)
        y_w = split_steps(load(p_y, mask, HELD, EVEN), U)
        if g is not None:
            g_w = split_steps(load(p_g, mask, 0, EVEN), U)
        o_first = (t + o_s * U)[:, None]
        h_w = tl.load(p_h, mask=(o_first > 0) & (o_first <= end) & m_n, other=0)
        if h0 is not None:
            h_w = tl.where(o_first == 0, tl.load(word_pointer(h0, PER_WORD) + i_b * N + o_n, mask=m_n, other=0), h_w)
        resets = ()
        for u in tl.static_range(U):
            if reset is not None:
                o_t = t + o_s * U + u
                p_r = reset + i_b * r_b + o_t.to(tl.int64) * r_t
                resets += (tl.load(p_r, mask=o_t < end, other=0)[:, None] != 0,)

        by_x, by_y, carries_2, sums_2 = (), (), (), ()
        for f in tl.static_range(PER_WORD):
            xs, ys, gs = (), (), ()
            for u in tl.static_range(U):
                xs += (unpack(x_w[u], f, HALF, ACC),)
                if BMRU:
                    ys += (unpack(y_w[u], f, HALF, ACC),)
                else:
                    ys += (((y_w[u] >> 8 * f) & 1).to(MASK) - 1,)
                if g is not None:
                    gs += (unpack(g_w[u], f, HALF, ACC),)
                else:
                    gs += (tl.zeros([S, BN], ACC),)
            before = unpack(h_w, f, HALF, ACC)
            by_xs, by_ys, carry, sum_alpha = _tile_gradients(
                xs, ys, gs, resets, before, levels[f], carries[f], sums[f], S, U, BMRU, reset is not None, slope
            )
            by_x += (by_xs,)
            by_y += (by_ys,)
            carries_2 += (carry,)
            sums_2 += (sum_alpha,)
        carries, sums = carries_2, sums_2

        for u in tl.static_range(U):
            mask = (t + o_s * U + u < end)[:, None] & m_n
            store_numbers(p_dx + u * dx_t, by_x, u, mask, HALF, EVEN)
            if grad_y is not None:
                store_numbers(p_dy + u * dy_t, by_y, u, mask, HALF, EVEN)
        p_x -= S * U * x_t
        p_y -= S * U * y_t
        p_h -= S * U * h_t
        p_dx -= S * U * dx_t
        if g is not None:
            p_g -= S * U * g_t
        if grad_y is not None:
            p_dy -= S * U * dy_t

    for f in tl.static_range(PER_WORD):
        if BMRU:
            tl.store(grad_alpha + p_wide + f, tl.sum(sums[f], 0, keep_dims=True), mask=m_n)
        if i_c == 0:
            tl.store(grad_h0 + (i_b * N + o_n) * PER_WORD + f, carries[f], mask=m_n)


@triton.jit
def _first_write_kernel(
    g, g_b, g_t, G_T: tl.constexpr, x, x_b, x_t, X_T: tl.constexpr, y, y_b, y_t, Y_T: tl.constexpr, reset, r_b, r_t,
    passed, total, T, N, C, L, blocks, BN: tl.constexpr, R: tl.constexpr, BMRU: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """What each chunk adds to the gradient of the state that entered it: the sum of ``g`` before its first write.

    ``passed [B, C, N]``: nothing in the chunk wrote, so gradients of later chunks pass, too. Reads forwards,
    R rows at a time, until all units have written.
    """
    i_b, i_c, o_n = program_indices(blocks, C, BN)
    m_n = o_n < N
    o_r = tl.arange(0, R)
    begin, end = i_c * L, tl.minimum((i_c + 1) * L, T)
    open_, sum_ = m_n.to(tl.int32), tl.zeros([1, BN], ACC)
    g_t, x_t, y_t = time_stride(g_t, G_T), time_stride(x_t, X_T), time_stride(y_t, Y_T)
    t = begin
    missing = 1
    while missing > 0:
        o_t = (t + o_r).to(tl.int64)[:, None]
        m_t = t + o_r < end
        mask = m_t[:, None] & m_n
        p_x = x + i_b * x_b + o_t * x_t + o_n
        p_y = y + i_b * y_b + o_t * y_t + o_n
        x_r = tl.load(p_x, mask=mask, other=0.0).to(ACC)
        y_r = tl.load(p_y, mask=mask, other=1.0 if BMRU else 0).to(ACC)  # masked lanes hold
        hold = tl.abs(x_r) < tl.abs(y_r) if BMRU else y_r == 0
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
        open_ = -tl.load(passed + p, mask=mask, other=1).to(
            tl.int64 if into.dtype.element_ty == tl.float64 else tl.int32
        )
        sum_ = tl.load(total + p, mask=mask, other=0.0)
        open_, sum_ = tl.associative_scan((open_, sum_), 0, _join)
        reached = sum_ + keep_bits(open_, carry)
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
    """Fill ``grad_cand, grad_beta [B, T, N]``; return the gradients of ``alpha [N]`` and ``h0 [B, N]``, wide (unless
    h0 is None)."""
    slope = alpha_surr * math.pi
    grad_alpha, grad_h0 = _backward(
        grad_h, grad_last, cand, beta, alpha, h0, reset, h, grad_cand, grad_beta, slope, reverse
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
    grad_h: Tensor | None, grad_last: Tensor | None, x: Tensor, y: Tensor, alpha: Tensor | None, h0: Tensor | None,
    reset: Tensor | None, h: Tensor, grad_x: Tensor, grad_y: Tensor | None, slope: float, reverse: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The gradients of alpha per chunk ``[B * C, N]`` and of h0 ``[B, N]``."""
    B, T, N = h.shape
    dtype = wide(h.dtype)
    grad_h = None if grad_h is None else launch.contiguous_columns(grad_h)
    alpha, h0, into = launch.contiguous_alpha(alpha, h), contiguous(h0), contiguous(grad_last)
    per_word = 2 if launch.can_pack(x, y, h, grad_h, grad_x, grad_y, h0) else 1
    W = N // per_word
    config = launch_config(B, T, W, _TILINGS, per_word * (x.itemsize + y.itemsize + h.itemsize), h.device)
    constants = {"BMRU": alpha is not None, "ACC": tl.float64 if dtype == torch.float64 else tl.float32}
    resets = strided_reset(reset, reverse)
    if config.C > 1:
        passed, total = h.new_empty(B, config.C, N, dtype=torch.int8), h.new_empty(B, config.C, N, dtype=dtype)
        blocks = -(-N // config.BN)
        _first_write_kernel[(B * config.C * blocks,)](
            *strided(grad_h, reverse), *strided(x, reverse), *strided(y, reverse), *resets, passed, total,
            T, N, config.C, config.L, blocks, BN=config.BN, R=32, num_warps=config.warps, **constants,
        )  # fmt: skip
        last, into = into, torch.empty_like(total)
        _carry_kernel[(blocks, B)](passed, total, last, into, N, config.C, BN=config.BN, BC=32, num_warps=1)
    grad_alpha = h.new_empty(B * config.C if alpha is not None else 0, N, dtype=dtype)
    grad_h0 = h.new_empty(B, N, dtype=h.dtype if h0 is None else dtype)
    steps = partial(strided, reverse=reverse, per_word=per_word)
    inputs = *steps(x), *steps(y), alpha, h0, *resets, *steps(h)
    outputs = *steps(grad_x), *steps(grad_y), grad_alpha, grad_h0
    _backward_kernel[(config.programs,)](
        *steps(grad_h), into, *inputs, *outputs, T, W, config.C, config.L, config.column_blocks,
        PER_WORD=per_word, slope=slope, **config.kernel_options, **constants,
    )  # fmt: skip
    return grad_alpha, grad_h0
