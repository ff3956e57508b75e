"""Latch and BMRU scans on a GPU (Triton): the states.

Time is cut three times, so that nothing but the tensors themselves moves through memory:

- *Chunks* run in parallel programs. Usually there is one per sequence. If the batch is too small to fill the GPU there
  are more, and each gets the state that enters it: the last write before it, found by looking back from its start.
- A program walks over its chunk in *tiles* of ``S * U`` steps and carries the state in registers.
- Usually S is 1 and a warp walks alone. In a small batch, S *strands* of U consecutive steps run side by side, one per
  warp: each thread walks over its U steps to find the last write, one scan over the S strands gives the state before
  each, and a second walk gives all states.

Everything works on bit patterns. A *word* of 32 bits holds one float32 or two neighbouring half-precision numbers, a
word of 64 bits one float64. Magnitudes order like their bits, the comparison is a subtraction whose borrow stays within
a number, and the select is one logic instruction. So half precision takes half the instructions, and every result has
the same bits as the loop's.

Shapes in comments: ``[S, BN]`` is one step of each strand, BN words wide. Prefixes: ``i_`` index of a program, ``o_``
offsets, ``m_`` masks, ``p_`` pointers. Masked lanes hold: they read cand 0 and beta infinite.
"""

from functools import cache, partial
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from multistable.ops.triton.launch import (
    Tiling,
    Tilings,
    Words,
    align,
    can_pack,
    contiguous,
    contiguous_alpha,
    launch_config,
    optional,
    strided,
    strided_reset,
    words,
)
from multistable.ops.triton.primitives import (
    AnySize,
    everywhere_if,
    last_row,
    load,
    program_indices,
    split_steps,
    store,
    strand_pointer,
    strand_steps,
    stride_of,
    tile_pointer,
    word_pointer,
)

__all__ = ["bmru_forward", "latch_forward"]

_TILINGS: dict[Words, Tilings] = {
    "wide": ((6, Tiling(4, 6, warps=2, BN=64)), (2, Tiling(8, 6))),
    "pairs": ((6, Tiling(4, 6, warps=2, BN=64)), (1.5, Tiling(16, 3, warps=4))),
    "unaligned": ((6, Tiling(4, 6, warps=4, BN=128)),),
    "single": ((24, Tiling(16, 3)),),
}


# --- words ------------------------------------------------------------------------------------------------------------


@triton.jit
def _spread_sign(signs, WIDTH: tl.constexpr):
    """Copy the sign bit of each number to all its bits."""
    return (signs >> (WIDTH - 1)) * ((1 << WIDTH) - 1)


@triton.jit
def _gate(x, y, level, BMRU: tl.constexpr, WIDTH: tl.constexpr, SIGN: tl.constexpr, NAN: tl.constexpr):
    """A mask of the numbers that are written, and what is written.

    From cand and beta, or from a latch's value and its mask. ``NAN`` added to a magnitude reaches the sign bit where
    the number is NaN, and ``MAGNITUDE`` added to one where it is not zero.
    """
    MAGNITUDE: tl.constexpr = SIGN - (SIGN >> (WIDTH - 1))
    if BMRU:
        x_size, y_size = x & MAGNITUDE, y & MAGNITUDE
        nan = ((x_size + NAN) | (y_size + NAN)) & SIGN
        write = ((x | SIGN) - y_size) & SIGN
        value = level ^ (x & (x_size + MAGNITUDE) & SIGN)
        return _spread_sign(write | nan, WIDTH), value | _spread_sign(nan, WIDTH)
    else:
        return y, x


@triton.jit
def _select(mask, x, other):
    """The bits of ``x`` under the mask, those of ``other`` elsewhere."""
    return other ^ ((x ^ other) & mask)


@triton.jit
def _join(seen, value, seen_2, value_2):
    """Join two stretches of time: the later write wins. Associative."""
    return seen | seen_2, _select(seen_2, value_2, value)


@triton.jit
def _append(before_seen, before_value, seen, value, before_seen_2, before_value_2, seen_2, value_2):
    """``_join`` that also keeps the result without the last stretch, so that a scan gives what comes *before* each."""
    bs, bv = _join(seen, value, before_seen_2, before_value_2)
    s, v = _join(seen, value, seen_2, value_2)
    return bs, bv, s, v


@triton.jit
def _states_before(seen, value, state, S: tl.constexpr):
    """From each strand's last write [S, BN] and the state before the tile [1, BN]: the states before each strand and
    after all."""
    nothing = tl.zeros_like(seen)
    before_seen, before_value, seen, value = tl.associative_scan((nothing, value, seen, value), 0, _append)
    return _select(before_seen, before_value, state), _select(last_row(seen, S), last_row(value, S), state)


@triton.jit
def _bit_pointer(p, WIDTH: tl.constexpr, PER_WORD: tl.constexpr):
    """Cast a pointer to numbers to one to words: unsigned integers with the bits of one or two numbers."""
    if PER_WORD == 2 or WIDTH == 32:
        return p.to(tl.pointer_type(tl.uint32))
    elif WIDTH == 64:
        return p.to(tl.pointer_type(tl.uint64))
    else:
        return p.to(tl.pointer_type(tl.uint16))


@triton.jit
def _load_level(alpha, o_n, like, WORD: tl.constexpr, WIDTH: tl.constexpr, PER_WORD: tl.constexpr):
    """Load ``alpha`` as words, rounded to the dtype that ``like`` points to."""
    level = tl.zeros(o_n.shape, WORD)
    for f in tl.static_range(PER_WORD):
        number = tl.load(alpha + o_n * PER_WORD + f).to(like.dtype.element_ty)
        if WIDTH == 64:
            level = number.to(tl.uint64, bitcast=True)
        elif WIDTH == 32:
            level = number.to(tl.uint32, bitcast=True)
        else:
            level |= number.to(tl.uint16, bitcast=True).to(WORD) << WIDTH * f
    return level


@triton.jit
def _gates_as_mask(y, WORD: tl.constexpr, WIDTH: tl.constexpr, SIGN: tl.constexpr):
    """A latch's gates, one byte per number, as a mask of the word's bits."""
    ONES: tl.constexpr = SIGN >> (WIDTH - 1)
    y = y.to(WORD)
    return ((y | (y << 8)) & ONES) * ((1 << WIDTH) - 1)


# --- kernels ----------------------------------------------------------------------------------------------------------


@triton.jit
def _walk(
    p_x, p_y, p_h, h_t, reset, r_t, level, state, t, end,
    BN: tl.constexpr, S: tl.constexpr, U: tl.constexpr, MASKED: tl.constexpr,
    BMRU: tl.constexpr, WORD: tl.constexpr, WIDTH: tl.constexpr, SIGN: tl.constexpr, NAN: tl.constexpr,
):  # fmt: skip
    """Walk over the tile of ``S * U`` steps from step t: store its states and return the one after it.

    ``p_x`` and ``p_y`` point to its steps [S, U, BN], ``p_h`` to the first one of each strand [S, BN]. MASKED: the tile
    may reach past the end.
    """
    WHOLE: tl.constexpr = (SIGN >> (WIDTH - 1)) * ((1 << WIDTH) - 1)
    HELD: tl.constexpr = SIGN - (SIGN >> (WIDTH - 1)) - NAN if BMRU else 0  # beta = infinity outside the tensor
    o_s = strand_steps(t, S, U)
    inside = (o_s + tl.arange(0, U)[None, :] < end)[:, :, None]
    x_w = split_steps(load(p_x, inside, 0, MASKED), U)
    y_w = split_steps(load(p_y, inside, HELD, MASKED), U)
    xs, ys, resets = (), (), ()
    for u in tl.static_range(U):
        xs += (x_w[u].to(WORD),)
        ys += (y_w[u].to(WORD) if BMRU else _gates_as_mask(y_w[u], WORD, WIDTH, SIGN),)
        if reset is not None:
            resets += (load(reset + (o_s + u).to(tl.int64) * r_t, o_s + u < end, 0, MASKED) != 0,)

    # Each strand's last write; from these, the state before each strand.
    state_u = state
    if S > 1:
        value, seen = tl.zeros([S, BN], WORD), tl.zeros([S, BN], WORD)
        for u in tl.static_range(U):
            write, new = _gate(xs[u], ys[u], level, BMRU, WIDTH, SIGN, NAN)
            if reset is not None:  # a reset that is not overwritten at once is a write of zero
                value, seen = tl.where(resets[u], 0, value), tl.where(resets[u], WHOLE, seen)
            value, seen = _select(write, new, value), seen | write
        state_u, state = _states_before(seen, value, state, S)

    for u in tl.static_range(U):
        write, new = _gate(xs[u], ys[u], level, BMRU, WIDTH, SIGN, NAN)
        if reset is not None:
            state_u = tl.where(resets[u], 0, state_u)
        state_u = _select(write, new, state_u)
        store(p_h + u * h_t, state_u.to(p_h.dtype.element_ty), o_s + u < end, MASKED)
    return state_u if S == 1 else state


@AnySize
def _forward_kernel(
    x, x_b, x_t, y, y_b, y_t, alpha, start, entered, reset, r_b, r_t, h, h_b, h_t, last, T, N, C, L, blocks,
    BN: tl.constexpr, S: tl.constexpr, U: tl.constexpr, STAGES: tl.constexpr, ROW: tl.constexpr,
    BMRU: tl.constexpr, PER_WORD: tl.constexpr, WORD: tl.constexpr, WIDTH: tl.constexpr, SIGN: tl.constexpr,
    NAN: tl.constexpr,
):  # fmt: skip
    """States of one chunk, and the ``last [B, N]`` of the last one; ``start [B, C, N]`` is the state that enters each
    chunk, zeros unless ``entered``. N counts words."""
    i_b, i_c, o_n = program_indices(blocks, C, N, BN, ROW)
    level = tl.zeros([1, BN], WORD)
    if BMRU:
        level = _load_level(alpha, o_n, h, WORD, WIDTH, PER_WORD)
        y = _bit_pointer(y, WIDTH, PER_WORD)
    else:
        y = word_pointer(y, PER_WORD)
    p_start = _bit_pointer(start, WIDTH, PER_WORD) + (i_b * C + i_c) * N + o_n
    state = tl.load(p_start, mask=everywhere_if(entered, p_start), other=0).to(WORD)
    if reset is not None:
        reset += i_b * r_b
    x = _bit_pointer(x, WIDTH, PER_WORD) + i_b * stride_of(x_b, ROW) + o_n
    y = y + i_b * stride_of(y_b, ROW) + o_n
    h = _bit_pointer(h, WIDTH, PER_WORD) + i_b * stride_of(h_b, ROW) + o_n
    x_t, y_t, h_t = stride_of(x_t, ROW), stride_of(y_t, ROW), stride_of(h_t, ROW)

    begin, end = i_c * L, tl.minimum((i_c + 1) * L, T)
    rest = begin + (end - begin) // (S * U) * (S * U)
    strands = strand_steps(begin, S, U)
    p_x, p_y, p_h = tile_pointer(x, x_t, strands, U), tile_pointer(y, y_t, strands, U), strand_pointer(h, h_t, strands)
    for t in tl.range(begin, rest, S * U, num_stages=STAGES):
        state = _walk(
            p_x, p_y, p_h, h_t, reset, r_t, level, state, t, end, BN, S, U, False, BMRU, WORD, WIDTH, SIGN, NAN
        )
        p_x += S * U * x_t
        p_y += S * U * y_t
        p_h += S * U * h_t
    strands = strand_steps(rest, S, 1)  # less than a tile is left: one step of each strand at a time
    p_x, p_y, p_h = tile_pointer(x, x_t, strands, 1), tile_pointer(y, y_t, strands, 1), strand_pointer(h, h_t, strands)
    for t in tl.range(rest, end, S, num_stages=2):
        state = _walk(
            p_x, p_y, p_h, h_t, reset, r_t, level, state, t, end, BN, S, 1, True, BMRU, WORD, WIDTH, SIGN, NAN
        )
        p_x += S * x_t
        p_y += S * y_t
        p_h += S * h_t
    if i_c == C - 1:  # nothing is written after the end
        p_last = _bit_pointer(last, WIDTH, PER_WORD) + i_b * N + o_n
        tl.store(p_last, state.to(p_last.dtype.element_ty))


@AnySize
def _last_write_kernel(
    x, x_b, x_t, y, y_b, y_t, alpha, reset, r_b, r_t, found, value, T, N, C, L, blocks,
    BN: tl.constexpr, R: tl.constexpr, ROW: tl.constexpr,
    BMRU: tl.constexpr, PER_WORD: tl.constexpr, WORD: tl.constexpr, WIDTH: tl.constexpr, SIGN: tl.constexpr,
    NAN: tl.constexpr,
):  # fmt: skip
    """Each chunk's last write, ``found`` and ``value [B, C, N]``: read backwards, R rows at a time, until found."""
    WHOLE: tl.constexpr = (SIGN >> (WIDTH - 1)) * ((1 << WIDTH) - 1)
    HELD: tl.constexpr = SIGN - (SIGN >> (WIDTH - 1)) - NAN if BMRU else 0  # beta = infinity outside the tensor
    i_b, i_c, o_n = program_indices(blocks, C, N, BN, ROW)
    o_r = tl.arange(0, R)
    begin = i_c * L
    x_t, y_t = stride_of(x_t, ROW), stride_of(y_t, ROW)
    level = tl.zeros([1, BN], WORD)
    if BMRU:
        level = _load_level(alpha, o_n, x, WORD, WIDTH, PER_WORD)
        y = _bit_pointer(y, WIDTH, PER_WORD)
    else:
        y = word_pointer(y, PER_WORD)
    x, found, value = (
        _bit_pointer(x, WIDTH, PER_WORD),
        _bit_pointer(found, WIDTH, PER_WORD),
        _bit_pointer(value, WIDTH, PER_WORD),
    )
    ABSENT: tl.constexpr = WHOLE - ((1 << WIDTH) - 1) if WIDTH == 16 and PER_WORD == 1 else 0  # no second number
    seen, latest = tl.full([1, BN], ABSENT, WORD), tl.zeros([1, BN], WORD)
    t = tl.minimum(begin + L, T) - R
    missing = 1
    while missing > 0:
        o_t = (t + o_r).to(tl.int64)[:, None]
        m_t = t + o_r >= begin
        p_x = x + i_b * stride_of(x_b, ROW) + o_t * x_t + o_n
        p_y = y + i_b * stride_of(y_b, ROW) + o_t * y_t + o_n
        x_r = tl.load(p_x, mask=m_t[:, None], other=0).to(WORD)
        y_r = tl.load(p_y, mask=m_t[:, None], other=HELD)
        y_r = y_r.to(WORD) if BMRU else _gates_as_mask(y_r, WORD, WIDTH, SIGN)
        write, new = _gate(x_r, y_r, level, BMRU, WIDTH, SIGN, NAN)
        if reset is not None:
            mark = tl.load(reset + i_b * r_b + (t + o_r).to(tl.int64) * r_t, mask=m_t, other=0)[:, None] != 0
            new = new & write
            write = tl.where(mark, WHOLE, write)
        found_r, last = tl.associative_scan((write, new & write), 0, _join)
        latest = _select(seen, latest, last_row(last, R))
        seen = seen | last_row(found_r, R)
        missing = tl.where(t > begin, tl.sum((seen != WHOLE).to(tl.int32)), 0)
        t -= R
    p = (i_b * C + i_c) * N + o_n
    tl.store(found + p, seen.to(found.dtype.element_ty))
    tl.store(value + p, latest.to(value.dtype.element_ty))


@AnySize
def _carry_kernel(
    found, value, h0, start, N, C, BN: tl.constexpr, BC: tl.constexpr, WIDTH: tl.constexpr, PER_WORD: tl.constexpr
):  # fmt: skip
    """From each chunk's last write to the state that enters each chunk, ``start [B, C, N]``."""
    found, value, start = (
        _bit_pointer(found, WIDTH, PER_WORD),
        _bit_pointer(value, WIDTH, PER_WORD),
        _bit_pointer(start, WIDTH, PER_WORD),
    )
    i_b = tl.program_id(1).to(tl.int64)
    o_n = (tl.minimum(tl.program_id(0) * BN, N - BN) + tl.arange(0, BN))[None, :]
    o_c = tl.arange(0, BC)
    state = tl.zeros([1, BN], start.dtype.element_ty)
    if h0 is not None:
        state = tl.load(_bit_pointer(h0, WIDTH, PER_WORD) + i_b * N + o_n)
    tl.store(start + i_b * C * N + o_n, state)
    for c in range(0, C - 1, BC):
        p = (i_b * C + c + o_c)[:, None] * N + o_n
        mask = (c + o_c < C - 1)[:, None]
        seen = tl.load(found + p, mask=mask, other=0)
        last = tl.load(value + p, mask=mask, other=0)
        seen, last = tl.associative_scan((seen, last), 0, _join)
        entering = _select(seen, last, state)
        tl.store(start + p + N, entering, mask=mask)
        state = last_row(entering, BC)


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
    alpha, h0 = contiguous_alpha(alpha, h), contiguous(h0)
    per_word = 2 if can_pack(x, y, h, h0) else 1
    W = N // per_word
    constants = _constants(h.dtype) | {"BMRU": alpha is not None, "PER_WORD": per_word}
    steps = partial(strided, reverse=reverse, per_word=per_word)
    ROW, (x_, y_, h_) = align(W, steps(x), steps(y), steps(h))
    config = launch_config(B, T, W, _TILINGS[words(per_word, W, h)], per_word * (x.itemsize + y.itemsize), h.device)
    inputs, resets = (*x_, *y_, alpha), strided_reset(reset, reverse)
    sizes = T, W, config.C, config.L, config.column_blocks
    last, start = h.new_empty(B, N), h0
    if config.C > 1:
        found, value, start = (h.new_empty(B, config.C, N) for _ in range(3))
        _last_write_kernel[(config.programs,)](
            *inputs, *resets, found, value, *sizes, BN=config.BN, R=32, ROW=ROW, num_warps=config.warps, **constants
        )
        _carry_kernel[(config.column_blocks, B)](
            found, value, h0, start, W, config.C,
            BN=config.BN, BC=32, WIDTH=constants["WIDTH"], PER_WORD=per_word, num_warps=1,
        )  # fmt: skip
    _forward_kernel[(config.programs,)](
        *inputs, *optional(start, h, h.dtype), *resets, *h_, last, *sizes, ROW=ROW, **config.kernel_options, **constants
    )
    return last


@cache
def _constants(dtype: torch.dtype) -> dict[str, Any]:
    """A dtype's words: their type, a number's width, the sign bits, and what lifts the magnitude of NaNs to these."""
    bits = 8 * dtype.itemsize
    integer = {16: torch.int16, 32: torch.int32, 64: torch.int64}[bits]
    inf = int(torch.tensor(float("inf"), dtype=dtype, device="cpu").view(integer))
    ones = 0x10001 if bits == 16 else 1
    word = tl.uint64 if bits == 64 else tl.uint32
    return {"WORD": word, "WIDTH": bits, "SIGN": ones << (bits - 1), "NAN": ones * ((1 << (bits - 1)) - 1 - inf)}
