"""Latch and BMRU scans on a GPU (Triton): the gradient that reaches the end of each chunk from the chunks after it."""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from multistable.ops.numerics import wide
from multistable.ops.triton.launch import LaunchConfig, align, strided
from multistable.ops.triton.primitives import AnySize, keep_bits, program_indices, stride_of

__all__ = ["gradients_into", "join"]


@triton.jit
def join(open_, sum_, open_2, sum_2):
    """Join two stretches of time, the later first: its gradient passes through an open earlier one. Associative."""
    return open_ & open_2, sum_2 + keep_bits(open_2, sum_)


@AnySize
def _first_write_kernel(
    g, g_b, g_t, x, x_b, x_t, y, y_b, y_t, reset, r_b, r_t, passed, total, T, N, C, L, blocks,
    BN: tl.constexpr, R: tl.constexpr, ROW: tl.constexpr, BMRU: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """What each chunk adds to the gradient of the state that entered it: the sum of ``g`` before its first write.

    ``passed [B, C, N]``: nothing in the chunk wrote, so gradients of later chunks pass, too. Reads forwards,
    R rows at a time, until all units have written.
    """
    i_b, i_c, o_n = program_indices(blocks, C, N, BN, ROW)
    o_r = tl.arange(0, R)
    begin, end = i_c * L, tl.minimum((i_c + 1) * L, T)
    open_, sum_ = tl.full([1, BN], 1, tl.int32), tl.zeros([1, BN], ACC)
    g_t, x_t, y_t = stride_of(g_t, ROW), stride_of(x_t, ROW), stride_of(y_t, ROW)
    t = begin
    missing = 1
    while missing > 0:
        o_t = (t + o_r).to(tl.int64)[:, None]
        m_t = t + o_r < end
        mask = m_t[:, None]
        p_x = x + i_b * stride_of(x_b, ROW) + o_t * x_t + o_n
        p_y = y + i_b * stride_of(y_b, ROW) + o_t * y_t + o_n
        x_r = tl.load(p_x, mask=mask, other=0.0).to(ACC)
        y_r = tl.load(p_y, mask=mask, other=1.0 if BMRU else 0).to(ACC)  # masked lanes hold
        hold = tl.abs(x_r) < tl.abs(y_r) if BMRU else y_r == 0
        if reset is not None:
            mark = tl.load(reset + i_b * r_b + (t + o_r).to(tl.int64) * r_t, mask=m_t, other=0)[:, None] != 0
            hold = hold & ~mark
        at = tl.min(tl.where(hold, R, o_r[:, None]), 0, keep_dims=True)  # the first row that writes, [1, BN]
        if g is not None:
            grad = tl.load(g + i_b * stride_of(g_b, ROW) + o_t * g_t + o_n, mask=mask, other=0.0).to(ACC)
            sum_ += tl.sum(tl.where((o_r[:, None] < at) & (open_ != 0), grad, 0.0), 0, keep_dims=True)
        open_ = open_ & (at == R).to(tl.int32)
        t += R
        missing = tl.where(t < end, tl.sum(open_), 0)
    p = (i_b * C + i_c) * N + o_n
    tl.store(passed + p, open_.to(tl.int8))
    tl.store(total + p, sum_)


@AnySize
def _carry_kernel(passed, total, grad_last, into, N, C, BN: tl.constexpr, BC: tl.constexpr):
    """From what each chunk passes back to the gradient that reaches each chunk's last state, ``into [B, C, N]``."""
    i_b = tl.program_id(1).to(tl.int64)
    o_n = (tl.minimum(tl.program_id(0) * BN, N - BN) + tl.arange(0, BN))[None, :]
    o_j = tl.arange(0, BC)
    carry = tl.zeros([1, BN], into.dtype.element_ty)
    if grad_last is not None:
        carry = tl.load(grad_last + i_b * N + o_n).to(into.dtype.element_ty)
    tl.store(into + (i_b * C + C - 1) * N + o_n, carry)
    for j in range(0, C - 1, BC):
        p = (i_b * C + C - 1 - j - o_j)[:, None] * N + o_n
        mask = (j + o_j < C - 1)[:, None]
        open_ = -tl.load(passed + p, mask=mask, other=1).to(
            tl.int64 if into.dtype.element_ty == tl.float64 else tl.int32
        )
        sum_ = tl.load(total + p, mask=mask, other=0.0)
        open_, sum_ = tl.associative_scan((open_, sum_), 0, join)
        reached = sum_ + keep_bits(open_, carry)
        tl.store(into + p - N, reached, mask=mask)
        carry = tl.sum(tl.where((o_j == BC - 1)[:, None], reached, 0.0), 0, keep_dims=True)


def gradients_into(
    grad_h: Tensor | None, grad_last: Tensor | None, x: Tensor, y: Tensor, h: Tensor,
    resets: tuple[Tensor | None, int, int], config: LaunchConfig, reverse: bool, **constants: Any,
) -> Tensor:  # fmt: skip
    """The gradient that reaches the last state of each chunk, ``[B, C, N]``."""
    B, T, N = h.shape
    dtype, C = wide(h.dtype), config.C
    passed, total = h.new_empty(B, C, N, dtype=torch.int8), h.new_empty(B, C, N, dtype=dtype)
    ROW, (g_, x_, y_) = align(N, strided(grad_h, reverse), strided(x, reverse), strided(y, reverse))
    BN = max(config.BN, ROW)  # N = 4 in half precision: blocks were planned for two words, here are four numbers
    blocks = -(-N // BN)
    _first_write_kernel[(B * C * blocks,)](
        *g_, *x_, *y_, *resets, passed, total, T, N, C, config.L, blocks,
        BN=BN, R=32, ROW=ROW, num_warps=config.warps, **constants,
    )  # fmt: skip
    into = torch.empty_like(total)
    _carry_kernel[(blocks, B)](passed, total, grad_last, into, N, C, BN=BN, BC=32, num_warps=1)
    return into
