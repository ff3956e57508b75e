"""Latch and BMRU scans on a GPU (Triton): the states.

Time is cut three times, so that nothing but the tensors themselves moves through memory:

- *Chunks* run in parallel programs. Usually there is one per sequence; a batch too small to fill the GPU gets more, and
  each chunk is told the state that enters it: the last write before it, found by looking back from its beginning.
- A program walks over its chunk in *tiles* of ``S * U`` steps and carries the state in registers.
- Usually S is 1 and a warp walks alone. In a small batch, S *strands* of U consecutive steps run side by side, one per
  warp: each thread walks over its U steps to find the last write, one scan over the S strands gives the state before
  each, and a second walk the rest.

All of it happens on bit patterns. A *word* of 32 bits holds one float32 or two neighbouring half-precision numbers
(*fields*), of 64 bits one float64; magnitudes order like their bits, the comparison is a subtraction whose borrow stays
in its field, and the select is one logic instruction. So half precision takes half the instructions, and every
result has the same bits as the loop's.

Shapes in comments: ``[S, BN]`` is one step of each strand, BN words wide. Prefixes: ``i_`` index of a program, ``o_``
offsets, ``m_`` masks, ``p_`` pointers. Masked lanes hold: they read cand 0 and beta infinite.
"""

from functools import cache
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from multistable.ops.triton.launch import flags, levels, make_plan, rows, states, two_per_word
from multistable.ops.triton.primitives import load, steps, store, stride, where, words

__all__ = ["bmru_forward", "latch_forward"]

_PACES = ((12, 4, 4), (6, 4, 6), (0, 16, 4))  # measured on one H200


# --- words ------------------------------------------------------------------------------------------------------------


@triton.jit
def _spread(signs, WIDTH: tl.constexpr):
    """From the sign bit of each field to all its bits."""
    return (signs >> (WIDTH - 1)) * ((1 << WIDTH) - 1)


@triton.jit
def _gate(x, y, level, BMRU: tl.constexpr, WIDTH: tl.constexpr, SIGN: tl.constexpr, NAN: tl.constexpr):
    """A mask of the fields that are written, and what is written.

    From cand and beta, or from a latch's value and its mask. ``NAN`` added to a magnitude reaches the sign bit where
    the number is NaN, and ``MAGNITUDE`` added to one where it is not zero.
    """
    MAGNITUDE: tl.constexpr = SIGN - (SIGN >> (WIDTH - 1))
    if BMRU:
        x_size, y_size = x & MAGNITUDE, y & MAGNITUDE
        nan = ((x_size + NAN) | (y_size + NAN)) & SIGN
        write = ((x | SIGN) - y_size) & SIGN
        value = level ^ (x & (x_size + MAGNITUDE) & SIGN)
        return _spread(write | nan, WIDTH), value | _spread(nan, WIDTH)
    else:
        return y, x


@triton.jit
def _pick(mask, x, other):
    """The bits of ``x`` under the mask, those of ``other`` elsewhere."""
    return other ^ ((x ^ other) & mask)


@triton.jit
def _later(seen, value, seen_2, value_2):
    """Two stretches of time as one: the later write wins. Associative."""
    return seen | seen_2, _pick(seen_2, value_2, value)


@triton.jit
def _append(before_seen, before_value, seen, value, before_seen_2, before_value_2, seen_2, value_2):
    """The same with a memory of all but the last stretch, so that a scan yields what comes *before* each strand."""
    bs, bv = _later(seen, value, before_seen_2, before_value_2)
    s, v = _later(seen, value, seen_2, value_2)
    return bs, bv, s, v


@triton.jit
def _last(x, R: tl.constexpr):
    """The last row [1, BN] of x [R, BN]."""
    return tl.sum(tl.where((tl.arange(0, R) == R - 1)[:, None], x, 0), 0, keep_dims=True).to(x.dtype)


@triton.jit
def _enter(seen, value, state, S: tl.constexpr):
    """Each strand's last write [S, BN], the state before the tile [1, BN] -> before each strand and after all."""
    nothing = tl.zeros_like(seen)
    before_seen, before_value, seen, value = tl.associative_scan((nothing, value, seen, value), 0, _append)
    return _pick(before_seen, before_value, state), _pick(_last(seen, S), _last(value, S), state)


@triton.jit
def _words(p, WIDTH: tl.constexpr, FIELDS: tl.constexpr):
    """A pointer to numbers as one to words: unsigned integers of one or two fields."""
    if FIELDS == 2 or WIDTH == 32:
        return p.to(tl.pointer_type(tl.uint32))
    elif WIDTH == 64:
        return p.to(tl.pointer_type(tl.uint64))
    else:
        return p.to(tl.pointer_type(tl.uint16))


@triton.jit
def _level(alpha, o_n, mask, like, WORD: tl.constexpr, WIDTH: tl.constexpr, FIELDS: tl.constexpr):
    """``alpha`` as words, rounded to the dtype of the numbers that ``like`` points to."""
    level = tl.zeros(o_n.shape, WORD)
    for f in tl.static_range(FIELDS):
        number = tl.load(alpha + o_n * FIELDS + f, mask=mask, other=0).to(like.dtype.element_ty)
        if WIDTH == 64:
            level = number.to(tl.uint64, bitcast=True)
        elif WIDTH == 32:
            level = number.to(tl.uint32, bitcast=True)
        else:
            level |= number.to(tl.uint16, bitcast=True).to(WORD) << WIDTH * f
    return level


@triton.jit
def _flags_as_mask(y, WORD: tl.constexpr, WIDTH: tl.constexpr, SIGN: tl.constexpr):
    """A latch's flags, one byte per number, as a mask of its fields."""
    ONES: tl.constexpr = SIGN >> (WIDTH - 1)
    y = y.to(WORD)
    return ((y | (y << 8)) & ONES) * ((1 << WIDTH) - 1)


# --- kernels ----------------------------------------------------------------------------------------------------------


@triton.jit
def _forward_kernel(
    x, x_b, x_t, X_T: tl.constexpr, y, y_b, y_t, Y_T: tl.constexpr, alpha, start, reset, r_b, r_t,
    h, h_b, h_t, H_T: tl.constexpr, last, T, N, C, L, blocks,
    BN: tl.constexpr, S: tl.constexpr, U: tl.constexpr, EVEN: tl.constexpr, STAGES: tl.constexpr,
    BMRU: tl.constexpr, FIELDS: tl.constexpr, WORD: tl.constexpr, WIDTH: tl.constexpr, SIGN: tl.constexpr,
    NAN: tl.constexpr,
):  # fmt: skip
    """States of one chunk, and the ``last [B, N]`` of the last one; ``start [B, C, N]`` is the state that enters each
    chunk, or None for zeros. N counts words."""
    WHOLE: tl.constexpr = (SIGN >> (WIDTH - 1)) * ((1 << WIDTH) - 1)
    HELD: tl.constexpr = SIGN - (SIGN >> (WIDTH - 1)) - NAN if BMRU else 0  # beta = infinity where there is nothing
    x_t = stride(x_t, X_T)
    y_t = stride(y_t, Y_T)
    h_t = stride(h_t, H_T)
    i_b, i_c, o_n = where(blocks, C, BN)
    m_n = o_n < N
    o_s = tl.arange(0, S)
    end = tl.minimum((i_c + 1) * L, T)
    o_u = tl.arange(0, U)[None, :]
    first = (i_c * L + o_s * U).to(tl.int64)[:, None]  # step of each strand [S, 1]
    each = (first + o_u)[:, :, None]  # [S, U, 1]
    level, state = tl.zeros([1, BN], WORD), tl.zeros([1, BN], WORD)
    if BMRU:
        level = _level(alpha, o_n, m_n, h, WORD, WIDTH, FIELDS)
        y = _words(y, WIDTH, FIELDS)
    else:
        y = words(y, FIELDS)
    if start is not None:
        state = tl.load(_words(start, WIDTH, FIELDS) + (i_b * C + i_c) * N + o_n, mask=m_n, other=0).to(WORD)
    p_x = _words(x, WIDTH, FIELDS) + i_b * x_b + each * x_t + o_n
    p_y = y + i_b * y_b + each * y_t + o_n
    p_h = _words(h, WIDTH, FIELDS) + i_b * h_b + first * h_t + o_n

    for t in tl.range(i_c * L, end, S * U, num_stages=STAGES):
        mask = (t + o_s[:, None] * U + o_u < end)[:, :, None] & m_n
        x_w = steps(load(p_x, mask, 0, EVEN), U)
        y_w = steps(load(p_y, mask, HELD, EVEN), U)
        xs, ys, resets = (), (), ()
        for u in tl.static_range(U):
            xs += (x_w[u].to(WORD),)
            ys += (y_w[u].to(WORD) if BMRU else _flags_as_mask(y_w[u], WORD, WIDTH, SIGN),)
            if reset is not None:
                o_t = t + o_s * U + u
                p_r = reset + i_b * r_b + o_t.to(tl.int64) * r_t
                resets += (tl.load(p_r, mask=o_t < end, other=0)[:, None] != 0,)

        # Each strand's last write; from these, the state before each strand.
        state_u = state
        if S > 1:
            value, seen = tl.zeros([S, BN], WORD), tl.zeros([S, BN], WORD)
            for u in tl.static_range(U):
                write, new = _gate(xs[u], ys[u], level, BMRU, WIDTH, SIGN, NAN)
                if reset is not None:  # a reset that is not overwritten at once is a write of zero
                    value, seen = tl.where(resets[u], 0, value), tl.where(resets[u], WHOLE, seen)
                value, seen = _pick(write, new, value), seen | write
            state_u, state = _enter(seen, value, state, S)

        for u in tl.static_range(U):
            write, new = _gate(xs[u], ys[u], level, BMRU, WIDTH, SIGN, NAN)
            if reset is not None:
                state_u = tl.where(resets[u], 0, state_u)
            state_u = _pick(write, new, state_u)
            mask = (t + o_s * U + u < end)[:, None] & m_n
            store(p_h + u * h_t, state_u.to(p_h.dtype.element_ty), mask, EVEN)
        if S == 1:
            state = state_u
        p_x += S * U * x_t
        p_y += S * U * y_t
        p_h += S * U * h_t
    if i_c == C - 1:  # behind the end nothing was written
        p_last = _words(last, WIDTH, FIELDS) + i_b * N + o_n
        tl.store(p_last, state.to(p_last.dtype.element_ty), mask=m_n)


@triton.jit
def _last_write_kernel(
    x, x_b, x_t, X_T: tl.constexpr, y, y_b, y_t, Y_T: tl.constexpr, alpha, reset, r_b, r_t, found, value,
    T, N, C, L, blocks,
    BN: tl.constexpr, R: tl.constexpr,
    BMRU: tl.constexpr, FIELDS: tl.constexpr, WORD: tl.constexpr, WIDTH: tl.constexpr, SIGN: tl.constexpr,
    NAN: tl.constexpr,
):  # fmt: skip
    """Each chunk's last write, ``found`` and ``value [B, C, N]``: read backwards, R rows at a time, until found."""
    WHOLE: tl.constexpr = (SIGN >> (WIDTH - 1)) * ((1 << WIDTH) - 1)
    HELD: tl.constexpr = SIGN - (SIGN >> (WIDTH - 1)) - NAN if BMRU else 0  # beta = infinity where there is nothing
    i_b, i_c, o_n = where(blocks, C, BN)
    m_n = o_n < N
    o_r = tl.arange(0, R)
    begin = i_c * L
    x_t, y_t = stride(x_t, X_T), stride(y_t, Y_T)
    level = tl.zeros([1, BN], WORD)
    if BMRU:
        level = _level(alpha, o_n, m_n, x, WORD, WIDTH, FIELDS)
        y = _words(y, WIDTH, FIELDS)
    else:
        y = words(y, FIELDS)
    x, found, value = _words(x, WIDTH, FIELDS), _words(found, WIDTH, FIELDS), _words(value, WIDTH, FIELDS)
    ABSENT: tl.constexpr = WHOLE - ((1 << WIDTH) - 1) if WIDTH == 16 and FIELDS == 1 else 0  # no second field
    seen, latest = tl.where(m_n, ABSENT, WHOLE).to(WORD), tl.zeros([1, BN], WORD)
    t = tl.minimum(begin + L, T) - R
    missing = 1
    while missing > 0:
        o_t = (t + o_r).to(tl.int64)[:, None]
        m_t = t + o_r >= begin
        p_x = x + i_b * x_b + o_t * x_t + o_n
        p_y = y + i_b * y_b + o_t * y_t + o_n
        x_r = tl.load(p_x, mask=m_t[:, None] & m_n, other=0).to(WORD)
        y_r = tl.load(p_y, mask=m_t[:, None] & m_n, other=HELD)
        y_r = y_r.to(WORD) if BMRU else _flags_as_mask(y_r, WORD, WIDTH, SIGN)
        write, new = _gate(x_r, y_r, level, BMRU, WIDTH, SIGN, NAN)
        if reset is not None:
            mark = tl.load(reset + i_b * r_b + (t + o_r).to(tl.int64) * r_t, mask=m_t, other=0)[:, None] != 0
            new = new & write
            write = tl.where(mark, WHOLE, write)
        found_r, last = tl.associative_scan((write, new & write), 0, _later)
        latest = _pick(seen, latest, _last(last, R))
        seen = seen | _last(found_r, R)
        missing = tl.where(t > begin, tl.sum((seen != WHOLE).to(tl.int32)), 0)
        t -= R
    p = (i_b * C + i_c) * N + o_n
    tl.store(found + p, seen.to(found.dtype.element_ty), mask=m_n)
    tl.store(value + p, latest.to(value.dtype.element_ty), mask=m_n)


@triton.jit
def _carry_kernel(
    found, value, h0, start, N, C, BN: tl.constexpr, BC: tl.constexpr, WIDTH: tl.constexpr, FIELDS: tl.constexpr
):  # fmt: skip
    """From each chunk's last write to the state that enters each chunk, ``start [B, C, N]``."""
    found, value, start = _words(found, WIDTH, FIELDS), _words(value, WIDTH, FIELDS), _words(start, WIDTH, FIELDS)
    i_b = tl.program_id(1).to(tl.int64)
    o_n = (tl.program_id(0) * BN + tl.arange(0, BN))[None, :]
    m_n = o_n < N
    o_c = tl.arange(0, BC)
    state = tl.zeros([1, BN], start.dtype.element_ty)
    if h0 is not None:
        state = tl.load(_words(h0, WIDTH, FIELDS) + i_b * N + o_n, mask=m_n, other=0)
    tl.store(start + i_b * C * N + o_n, state, mask=m_n)
    for c in range(0, C - 1, BC):
        p = (i_b * C + c + o_c)[:, None] * N + o_n
        mask = (c + o_c < C - 1)[:, None] & m_n
        seen = tl.load(found + p, mask=mask, other=0)
        last = tl.load(value + p, mask=mask, other=0)
        seen, last = tl.associative_scan((seen, last), 0, _later)
        entering = _pick(seen, last, state)
        tl.store(start + p + N, entering, mask=mask)
        state = _last(entering, BC)


# --- host -------------------------------------------------------------------------------------------------------------


def bmru_forward(
    cand: Tensor, beta: Tensor, alpha: Tensor, h0: Tensor | None, reset: Tensor | None, h: Tensor, *, reverse: bool
) -> Tensor:
    """Fill ``h [B, T, N]`` with the states of a BMRU and return the last; ``h0 [B, N]`` has the dtype of ``cand``."""
    return _forward(cand, beta, alpha, h0, reset, h, reverse)


def latch_forward(
    write: Tensor, value: Tensor, h0: Tensor | None, reset: Tensor | None, h: Tensor, *, reverse: bool
) -> Tensor:
    """Fill ``h [B, T, N]`` with the states of a latch and return the last; ``write`` is boolean."""
    return _forward(value, write.view(torch.uint8), None, h0, reset, h, reverse)


def _forward(
    x: Tensor, y: Tensor, alpha: Tensor | None, h0: Tensor | None, reset: Tensor | None, h: Tensor, reverse: bool
) -> Tensor:
    B, T, N = h.shape
    alpha, h0 = levels(alpha, h), states(h0)
    fields = 2 if two_per_word(x, y, h, h0) else 1
    W = N // fields
    kind = _constants(h.dtype) | {"BMRU": alpha is not None, "FIELDS": fields}
    plan = make_plan(B, T, W, _PACES, fields * (x.itemsize + y.itemsize), h.device)
    inputs = *rows(x, reverse, fields), *rows(y, reverse, fields), alpha
    marks = flags(reset, reverse)
    sizes = T, W, plan.C, plan.L, plan.blocks
    last, start = h.new_empty(B, N), h0
    if plan.C > 1:
        found, value, start = (h.new_empty(B, plan.C, N) for _ in range(3))
        _last_write_kernel[(plan.programs,)](
            *inputs, *marks, found, value, *sizes, BN=plan.BN, R=32, num_warps=plan.warps, **kind
        )
        _carry_kernel[(plan.blocks, B)](
            found, value, h0, start, W, plan.C, BN=plan.BN, BC=32, WIDTH=kind["WIDTH"], FIELDS=fields, num_warps=1
        )
    _forward_kernel[(plan.programs,)](
        *inputs, start, *marks, *rows(h, reverse, fields), last, *sizes, **plan.tile, **kind
    )
    return last


@cache
def _constants(dtype: torch.dtype) -> dict[str, Any]:
    """The constants of a dtype's words: the type, the width of a field, its sign bits, and what lifts NaNs to them."""
    bits = 8 * dtype.itemsize
    integer = {16: torch.int16, 32: torch.int32, 64: torch.int64}[bits]
    inf = int(torch.tensor(float("inf"), dtype=dtype, device="cpu").view(integer))
    ones = 0x10001 if bits == 16 else 1
    word = tl.uint64 if bits == 64 else tl.uint32
    return {"WORD": word, "WIDTH": bits, "SIGN": ones << (bits - 1), "NAN": ones * ((1 << (bits - 1)) - 1 - inf)}
