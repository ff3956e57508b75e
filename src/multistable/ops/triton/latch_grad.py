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
from multistable.ops.triton.latch_grad_chunks import gradients_into, join
from multistable.ops.triton.launch import (
    Tiling,
    Tilings,
    Words,
    align,
    can_pack,
    contiguous,
    contiguous_alpha,
    contiguous_columns,
    launch_config,
    optional,
    strided,
    strided_reset,
    words,
)
from multistable.ops.triton.primitives import (
    AnySize,
    everywhere_if,
    keep_bits,
    load,
    negative_mask,
    program_indices,
    reciprocal,
    select_bits,
    split_steps,
    store_numbers,
    strand_pointer,
    strand_steps,
    stride_of,
    tile_pointer,
    unpack,
    word_pointer,
    xor_sign,
)

__all__ = ["bmru_backward", "latch_backward"]

_TILINGS: dict[Words, Tilings] = {
    "wide": ((6, Tiling(8, 3, warps=2, BN=64)), (2, Tiling(8, 6))),
    "pairs": ((6, Tiling(8, 3, warps=2, BN=64)), (1.5, Tiling(8, 6, warps=2))),
    "unaligned": ((6, Tiling(8, 3, warps=4, BN=128)),),
    "single": ((24, Tiling(8, 3)),),
}


# --- device functions -------------------------------------------------------------------------------------------------


@triton.jit
def _side(x, y):
    """S(x), NaN where x or y is NaN."""
    side = tl.where(x < 0, -1.0, 1.0).to(x.dtype)
    return tl.where((x != x) | (y != y), float("nan"), side)


@triton.jit
def _append(before_open, before_sum, open_, sum_, before_open_2, before_sum_2, open_2, sum_2):
    """``join`` that also keeps the result without the last stretch, so that a scan gives what *reaches* each."""
    bo, bs = join(open_, sum_, before_open_2, before_sum_2)
    o, s = join(open_, sum_, open_2, sum_2)
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
    if slope == 0:  # at infinity the products would be NaN
        by_gate = tl.where(margin == margin, by_gate, margin)
    else:
        far, near = slope * margin, slope * x
        by_gate = by_gate * reciprocal(1.0 + far * far)
        by_side = by_side * reciprocal(1.0 + near * near)
    by_x = tl.where(x == 0, 0.0, by_gate) * side + by_side
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
def _walk(
    p_g, p_x, p_y, p_h, p_dx, dx_t, p_dy, dy_t, reset, r_t, start, levels, carries, sums, t, end,
    S: tl.constexpr, U: tl.constexpr, MASKED: tl.constexpr, BMRU: tl.constexpr, HALF: tl.constexpr,
    ACC: tl.constexpr, slope: tl.constexpr,
):  # fmt: skip
    """Walk back over the tile of ``S * U`` steps from step t: store its gradients, and return what leaves it towards
    the past, and the sums for alpha.

    ``p_g``, ``p_x`` and ``p_y`` point to its steps [S, U, BN], ``p_dx`` and ``p_dy`` to the first one of each strand
    [S, BN], ``p_h`` to the state before it; ``start`` is the state before step 0. MASKED: the tile may reach past the
    end.
    """
    PER_WORD: tl.constexpr = 1 if HALF is None else 2
    MASK: tl.constexpr = tl.int64 if ACC == tl.float64 else tl.int32
    HELD: tl.constexpr = (0x40004000 if PER_WORD == 2 else 2.0) if BMRU else 0  # beta = 2 outside the tensor
    o_s = strand_steps(t, S, U, True)
    inside = (o_s + tl.arange(0, U)[None, :] < end)[:, :, None]
    x_w = split_steps(load(p_x, inside, 0, MASKED), U)
    y_w = split_steps(load(p_y, inside, HELD, MASKED), U)
    if p_g is not None:
        g_w = split_steps(load(p_g, inside, 0, MASKED), U)
    h_w = tl.load(p_h, mask=(o_s > 0) & (o_s <= end), other=0)
    if start is not None:
        h_w = tl.where(o_s == 0, start, h_w)
    resets = ()
    if reset is not None:
        for u in tl.static_range(U):
            resets += (load(reset + (o_s + u).to(tl.int64) * r_t, o_s + u < end, 0, MASKED) != 0,)

    by_x, by_y, carries_2, sums_2 = (), (), (), ()
    for f in tl.static_range(PER_WORD):
        xs, ys, gs = (), (), ()
        for u in tl.static_range(U):
            xs += (unpack(x_w[u], f, HALF, ACC),)
            if BMRU:
                ys += (unpack(y_w[u], f, HALF, ACC),)
            else:
                ys += (((y_w[u] >> 8 * f) & 1).to(MASK) - 1,)
            if p_g is not None:
                gs += (unpack(g_w[u], f, HALF, ACC),)
            else:
                gs += (tl.zeros(xs[0].shape, ACC),)
        before = unpack(h_w, f, HALF, ACC)
        by_xs, by_ys, carry, sum_alpha = _tile_gradients(
            xs, ys, gs, resets, before, levels[f], carries[f], sums[f], S, U, BMRU, reset is not None, slope
        )
        by_x += (by_xs,)
        by_y += (by_ys,)
        carries_2 += (carry,)
        sums_2 += (sum_alpha,)
    for u in tl.static_range(U):
        store_numbers(p_dx + u * dx_t, by_x, u, o_s + u < end, HALF, MASKED)
        if p_dy is not None:
            store_numbers(p_dy + u * dy_t, by_y, u, o_s + u < end, HALF, MASKED)
    return carries_2, sums_2


@triton.jit
def _walk_tiles(
    g, g_t, x, x_t, y, y_t, h, h_t, dx, dx_t, dy, dy_t, reset, r_t, start, levels, carries, sums, begin, tiles, end,
    S: tl.constexpr, U: tl.constexpr, STAGES: tl.constexpr, MASKED: tl.constexpr, BMRU: tl.constexpr,
    HALF: tl.constexpr, ACC: tl.constexpr, slope: tl.constexpr,
):  # fmt: skip
    """Walk over so many tiles from step ``begin``, the last one first. Tensors point to the columns of step 0."""
    strands = strand_steps(begin + tiles * (S * U), S, U, True)
    p_x, p_y = tile_pointer(x, x_t, strands, U), tile_pointer(y, y_t, strands, U)
    p_h, p_dx = strand_pointer(h, h_t, strands - 1), strand_pointer(dx, dx_t, strands)
    p_g, p_dy = None, None
    if g is not None:
        p_g = tile_pointer(g, g_t, strands, U)
    if dy is not None:
        p_dy = strand_pointer(dy, dy_t, strands)
    for i in tl.range(tiles, num_stages=STAGES):
        p_x -= S * U * x_t
        p_y -= S * U * y_t
        p_h -= S * U * h_t
        p_dx -= S * U * dx_t
        if g is not None:
            p_g -= S * U * g_t
        if dy is not None:
            p_dy -= S * U * dy_t
        carries, sums = _walk(
            p_g, p_x, p_y, p_h, p_dx, dx_t, p_dy, dy_t, reset, r_t, start, levels, carries, sums,
            begin + (tiles - 1 - i) * (S * U), end, S, U, MASKED, BMRU, HALF, ACC, slope,
        )  # fmt: skip
    return carries, sums


@AnySize
def _backward_kernel(
    g, g_b, g_t, into, entered, x, x_b, x_t, y, y_b, y_t, alpha, h0, reset, r_b, r_t, h, h_b, h_t,
    grad_x, dx_b, dx_t, grad_y, dy_b, dy_t, grad_alpha, grad_h0, T, N, C, L, blocks,
    BN: tl.constexpr, S: tl.constexpr, U: tl.constexpr, STAGES: tl.constexpr, ROW: tl.constexpr,
    BMRU: tl.constexpr, PER_WORD: tl.constexpr, ACC: tl.constexpr, slope: tl.constexpr,
):  # fmt: skip
    """Gradients of one chunk; ``into [B, C, N]`` is what reaches each chunk's last state from later ones,
    nothing unless ``entered``.

    N counts words. Where these are pairs, the rows of ``into``, ``grad_alpha`` and ``grad_h0``, which hold single
    numbers, are twice as wide.
    """
    DTYPE: tl.constexpr = h.dtype.element_ty
    HALF: tl.constexpr = DTYPE if PER_WORD == 2 else None
    i_b, i_c, o_n = program_indices(blocks, C, N, BN, ROW)
    x = word_pointer(x, PER_WORD) + i_b * stride_of(x_b, ROW) + o_n
    y = word_pointer(y, PER_WORD) + i_b * stride_of(y_b, ROW) + o_n
    h = word_pointer(h, PER_WORD) + i_b * stride_of(h_b, ROW) + o_n
    dx = word_pointer(grad_x, PER_WORD) + i_b * stride_of(dx_b, ROW) + o_n
    dy, start = None, None
    if g is not None:
        g = word_pointer(g, PER_WORD) + i_b * stride_of(g_b, ROW) + o_n
    if grad_y is not None:
        dy = word_pointer(grad_y, PER_WORD) + i_b * stride_of(dy_b, ROW) + o_n
    if h0 is not None:
        start = tl.load(word_pointer(h0, PER_WORD) + i_b * N + o_n)
    if reset is not None:
        reset += i_b * r_b
    g_t, x_t, y_t, h_t = stride_of(g_t, ROW), stride_of(x_t, ROW), stride_of(y_t, ROW), stride_of(h_t, ROW)
    dx_t, dy_t = stride_of(dx_t, ROW), stride_of(dy_t, ROW)
    p_wide = (i_b * C + i_c) * N * PER_WORD + o_n * PER_WORD
    levels, carries, sums = (), (), ()
    for f in tl.static_range(PER_WORD):
        level = tl.zeros([1, BN], ACC)
        if BMRU:
            level = tl.load(alpha + o_n * PER_WORD + f).to(DTYPE).to(ACC)
        p_into = into + p_wide + f
        carry = tl.load(p_into, mask=everywhere_if(entered, p_into), other=0.0).to(ACC)
        levels += (level,)
        carries += (carry,)
        sums += (tl.zeros([S, BN], ACC),)

    begin, end = i_c * L, tl.minimum((i_c + 1) * L, T)
    tiles = (end - begin) // (S * U)
    rest = begin + tiles * (S * U)  # the steps after the whole tiles come first, one of each strand at a time
    carries, sums = _walk_tiles(
        g, g_t, x, x_t, y, y_t, h, h_t, dx, dx_t, dy, dy_t, reset, r_t, start, levels, carries, sums,
        rest, tl.cdiv(end - rest, S), end, S, 1, 2, True, BMRU, HALF, ACC, slope,
    )  # fmt: skip
    carries, sums = _walk_tiles(
        g, g_t, x, x_t, y, y_t, h, h_t, dx, dx_t, dy, dy_t, reset, r_t, start, levels, carries, sums,
        begin, tiles, end, S, U, STAGES, False, BMRU, HALF, ACC, slope,
    )  # fmt: skip
    for f in tl.static_range(PER_WORD):
        if BMRU:
            tl.store(grad_alpha + p_wide + f, tl.sum(sums[f], 0, keep_dims=True))
        if i_c == 0:
            tl.store(grad_h0 + (i_b * N + o_n) * PER_WORD + f, carries[f])


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
    grad_h = None if grad_h is None else contiguous_columns(grad_h)
    alpha, h0, into = contiguous_alpha(alpha, h), contiguous(h0), contiguous(grad_last)
    per_word = 2 if can_pack(x, y, h, grad_h, grad_x, grad_y, h0) else 1
    W = N // per_word
    steps = partial(strided, reverse=reverse, per_word=per_word)
    ROW, (g_, x_, y_, h_, dx, dy) = align(W, *map(steps, (grad_h, x, y, h, grad_x, grad_y)))
    loads = per_word * (x.itemsize + y.itemsize + h.itemsize)
    config = launch_config(B, T, W, _TILINGS[words(per_word, W, h)], loads, h.device)
    constants = {"BMRU": alpha is not None, "ACC": tl.float64 if dtype == torch.float64 else tl.float32}
    resets = strided_reset(reset, reverse)
    if config.C > 1:
        into = gradients_into(grad_h, into, x, y, h, resets, config, reverse, **constants)
    grad_alpha = h.new_empty(B * config.C if alpha is not None else 0, N, dtype=dtype)
    grad_h0 = h.new_empty(B, N, dtype=h.dtype if h0 is None else dtype)
    _backward_kernel[(config.programs,)](
        *g_, *optional(into, h, dtype), *x_, *y_, alpha, h0, *resets, *h_, *dx, *dy, grad_alpha, grad_h0,
        T, W, config.C, config.L, config.column_blocks,
        ROW=ROW, PER_WORD=per_word, slope=slope, **config.kernel_options, **constants,
    )  # fmt: skip
    return grad_alpha, grad_h0
