"""The linear recurrence ``h_t = a_t h_{t-1} + b_t`` on a GPU (Triton), real or complex, ``a`` constant or per step.

Time is cut as in ``latch.py``: chunks in parallel programs, tiles of S strands of U steps, the state in
registers. A strand that starts from zero ends in ``h``, and one that starts from ``s`` in ``h + A s`` with ``A`` the
product of its coefficients; two stretches ``(A1, h1)``, ``(A2, h2)`` compose to ``(A2 A1, A2 h1 + h2)``.

Complex numbers come as separate real and imaginary parts, ``[..., 2N]``. The real kernels never load or store imaginary
parts, and the compiler drops what is computed for them.
"""

from functools import partial

import torch
import triton
import triton.language as tl
from torch import Tensor

from multistable.ops.numerics import wide
from multistable.ops.triton.launch import (
    Tiling,
    Tilings,
    Words,
    align,
    can_pack,
    contiguous,
    launch_config,
    optional,
    strided,
    strided_reset,
    words,
)
from multistable.ops.triton.linear_steps import (
    _advance,
    _coefficients,
    _decay,
    _entering,
    _join_complex,
    _join_real,
    _load,
    _load_opens,
    _load_steps,
    _multiply,
    _prefixes,
    _repeat,
    _row_where,
    _step,
    _store,
    _store_step,
    _unpack_steps,
)
from multistable.ops.triton.primitives import (
    AnySize,
    program_indices,
    strand_pointer,
    strand_steps,
    stride_of,
    tile_pointer,
    word_pointer,
)

__all__ = ["linear_forward"]

_TILINGS: dict[Words, Tilings] = {
    "wide": ((6, Tiling(8, 3, warps=2, BN=64)), (2.5, Tiling(8, 6)), (0.75, Tiling(16, 3, warps=4))),
    "pairs": (
        (6, Tiling(8, 3, warps=2, BN=64)),
        (2.5, Tiling(8, 6)),
        (1.5, Tiling(16, 3, warps=4)),
        (0.75, Tiling(8, 6, BN=16)),
    ),
    "unaligned": ((2.5, Tiling(8, 3, warps=4, BN=128)),),
    "single": ((2.5, Tiling(16, 3)),),
}


# --- kernels ----------------------------------------------------------------------------------------------------------


@triton.jit
def _strand_ends(ars, ais, brs, bis, opens, U: tl.constexpr, PAIRS: tl.constexpr, RESETS: tl.constexpr):
    """The product of each strand's coefficients, and where it ends if it starts from zero."""
    s, si = tl.zeros_like(brs[0]), tl.zeros_like(brs[0])
    c, ci = s + 1.0, s
    for u in tl.static_range(U):
        if RESETS:  # selected, not multiplied: an overflow must not outlive a reset
            s, si = tl.where(opens[u], s, 0.0), tl.where(opens[u], si, 0.0)
            c, ci = tl.where(opens[u], c, 0.0), tl.where(opens[u], ci, 0.0)
        c, ci = _multiply(ars[u], ais[u], c, ci, PAIRS)
        s, si = _step(ars[u], ais[u], s, si, brs[u], bis[u], PAIRS)
    return c, ci, s, si


@triton.jit
def _states(
    ars, ais, brs, bis, opens, state, state_i,
    S: tl.constexpr, U: tl.constexpr, PAIRS: tl.constexpr, RESETS: tl.constexpr,
):  # fmt: skip
    """The states of a tile, from tuples of U steps [S, BN] and the state before it [1, BN]; and the state after it."""
    before, before_i = state, state_i
    if S > 1:
        c, ci, s, si = _strand_ends(ars, ais, brs, bis, opens, U, PAIRS, RESETS)
        bc, bci, bs, bsi, c, ci, s, si = _prefixes(c, ci, s, si, S, PAIRS)
        before, before_i = _advance(bc, bci, bs, bsi, state, state_i, PAIRS)
        state, state_i = _advance(c, ci, s, si, state, state_i, PAIRS)
    hs, his = (), ()
    h, hi = tl.broadcast_to(before, brs[0].shape), tl.broadcast_to(before_i, brs[0].shape)
    for u in tl.static_range(U):
        if RESETS:
            h, hi = tl.where(opens[u], h, 0.0), tl.where(opens[u], hi, 0.0)
        h, hi = _step(ars[u], ais[u], h, hi, brs[u], bis[u], PAIRS)
        hs += (h,)
        his += (hi,)
    if S == 1:
        state, state_i = h, hi
    return hs, his, state, state_i


@triton.jit
def _walk(
    p_a, p_b, p_h, h_t, N, reset, r_t, coefficients, states, wholes, t, end,
    S: tl.constexpr, U: tl.constexpr, MASKED: tl.constexpr,
    PAIRS: tl.constexpr, SUMMARY: tl.constexpr, HALF: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """Walk over the tile of ``S * U`` steps from step t: store its states, and return the one after it; with SUMMARY
    nothing is stored, and ``wholes`` are multiplied by its coefficients.

    ``p_a`` (None if constant) and ``p_b`` point to its steps [S, U, BN], ``p_h`` to the first one of each strand.
    MASKED: the tile may reach past the end.
    """
    o_s = strand_steps(t, S, U)
    inside = (o_s + tl.arange(0, U)[None, :] < end)[:, :, None]
    b_w, bi_w = _load_steps(p_b, N, inside, U, PAIRS, MASKED)
    if p_a is not None:
        a_w, ai_w = _load_steps(p_a, N, inside, U, PAIRS, MASKED)
    opens = _load_opens(reset, r_t, o_s, end, U, MASKED)
    re, im, states_2, wholes_2 = (), (), (), ()
    for f in tl.static_range(1 if HALF is None else 2):
        if p_a is None:
            ars, ais = _repeat(coefficients[f], U)
        else:
            ars, ais = _unpack_steps(a_w, f, U, HALF, ACC), _unpack_steps(ai_w, f, U, HALF, ACC)
        brs, bis = _unpack_steps(b_w, f, U, HALF, ACC), _unpack_steps(bi_w, f, U, HALF, ACC)
        if SUMMARY:
            c, ci, s, si = _strand_ends(ars, ais, brs, bis, opens, U, PAIRS, reset is not None)
            _, _, _, _, c, ci, s, si = _prefixes(c, ci, s, si, S, PAIRS)
            states_2 += (_advance(c, ci, s, si, *states[f], PAIRS),)
            wholes_2 += (_decay(c, ci, *wholes[f], PAIRS),)
        else:
            hs, his, state, state_i = _states(ars, ais, brs, bis, opens, *states[f], S, U, PAIRS, reset is not None)
            re += (hs,)
            im += (his,)
            states_2 += ((state, state_i),)
            wholes_2 += (wholes[f],)
    if not SUMMARY:
        for u in tl.static_range(U):
            _store_step(p_h + u * h_t, N, re, im, u, o_s + u < end, HALF, PAIRS, MASKED)
    return states_2, wholes_2


@triton.jit
def _walk_tiles(
    a, a_t, b, b_t, h, h_t, N, reset, r_t, coefficients, states, wholes, begin, stop, end,
    S: tl.constexpr, U: tl.constexpr, STAGES: tl.constexpr, MASKED: tl.constexpr,
    PAIRS: tl.constexpr, SUMMARY: tl.constexpr, HALF: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """Walk over tiles from step ``begin`` to ``stop``. Tensors point to the columns of step 0."""
    strands = strand_steps(begin, S, U)
    p_b, p_h, p_a = tile_pointer(b, b_t, strands, U), strand_pointer(h, h_t, strands), None
    if a is not None:
        p_a = tile_pointer(a, a_t, strands, U)
    for t in tl.range(begin, stop, S * U, num_stages=STAGES):
        states, wholes = _walk(
            p_a, p_b, p_h, h_t, N, reset, r_t, coefficients, states, wholes, t, end,
            S, U, MASKED, PAIRS, SUMMARY, HALF, ACC,
        )  # fmt: skip
        p_b += S * U * b_t
        p_h += S * U * h_t
        if a is not None:
            p_a += S * U * a_t
    return states, wholes


@AnySize
def _forward_kernel(
    a, a_b, a_t, b, b_b, b_t, start, entered, reset, r_b, r_t, h, h_b, h_t, product, final, T, N, C, L, blocks,
    BN: tl.constexpr, S: tl.constexpr, U: tl.constexpr, STAGES: tl.constexpr, ROW: tl.constexpr,
    PAIRS: tl.constexpr, CONSTANT: tl.constexpr, SUMMARY: tl.constexpr, PER_WORD: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """States of one chunk from ``start [B, C, W]``, zeros unless ``entered``; with SUMMARY only the chunk's product and
    end, from zero.

    N counts words; ``start``, ``product``, ``final`` and a constant ``a`` have rows of W numbers.
    """
    HALF: tl.constexpr = h.dtype.element_ty if PER_WORD == 2 else None
    i_b, i_c, o_n = program_indices(blocks, C, N, BN, ROW)
    N = N // ROW * ROW  # the compiler knows that imaginary parts are aligned, too
    p_w = (i_b * C + i_c) * (N * PER_WORD * (2 if PAIRS else 1)) + o_n * PER_WORD
    coefficients = _coefficients(a + o_n * PER_WORD, N, PER_WORD, CONSTANT, PAIRS, ACC)
    states = _entering(start + p_w, entered, N, PER_WORD, PAIRS, ACC)
    wholes = ()
    for f in tl.static_range(PER_WORD):
        wholes += ((tl.full([1, BN], 1.0, ACC), tl.zeros([1, BN], ACC)),)
    b = word_pointer(b, PER_WORD) + i_b * stride_of(b_b, ROW) + o_n
    h = word_pointer(h, PER_WORD) + i_b * stride_of(h_b, ROW) + o_n
    a = None if CONSTANT else word_pointer(a, PER_WORD) + i_b * stride_of(a_b, ROW) + o_n
    if reset is not None:
        reset += i_b * r_b
    a_t, b_t, h_t = stride_of(a_t, ROW), stride_of(b_t, ROW), stride_of(h_t, ROW)

    begin, end = i_c * L, tl.minimum((i_c + 1) * L, T)
    rest = begin + (end - begin) // (S * U) * (S * U)
    states, wholes = _walk_tiles(
        a, a_t, b, b_t, h, h_t, N, reset, r_t, coefficients, states, wholes, begin, rest, end,
        S, U, STAGES, False, PAIRS, SUMMARY, HALF, ACC,
    )  # fmt: skip
    states, wholes = _walk_tiles(  # less than a tile is left: one step of each strand at a time
        a, a_t, b, b_t, h, h_t, N, reset, r_t, coefficients, states, wholes, rest, end, end,
        S, 1, 2, True, PAIRS, SUMMARY, HALF, ACC,
    )  # fmt: skip
    if SUMMARY:
        for f in tl.static_range(PER_WORD):
            _store(product + p_w + f, N * PER_WORD, *wholes[f], PAIRS)
            _store(final + p_w + f, N * PER_WORD, *states[f], PAIRS)


@AnySize
def _carry_kernel(
    product, final, initial, start, N, C,
    BN: tl.constexpr, BC: tl.constexpr, PAIRS: tl.constexpr, REVERSE: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """From each chunk's product and end to the state that enters each, ``start [B, C, W]``; REVERSE: from the last."""
    i_b = tl.program_id(1).to(tl.int64)
    o_n = (tl.program_id(0) * BN + tl.arange(0, BN))[None, :]
    m_n = o_n < N
    W = N * (2 if PAIRS else 1)
    o_c = tl.arange(0, BC)
    state, state_i = tl.zeros([1, BN], ACC), tl.zeros([1, BN], ACC)
    if initial is not None:
        state, state_i = _load(initial + i_b * W + o_n, N, PAIRS, ACC, m_n)
    _store(start + (i_b * C + (C - 1 if REVERSE else 0)) * W + o_n, N, state, state_i, PAIRS, m_n)
    for j in range(0, C - 1, BC):
        order = C - 1 - j - o_c if REVERSE else j + o_c
        p = (i_b * C + order)[:, None] * W + o_n
        m_c = (j + o_c < C - 1)[:, None]
        c, ci = _load(product + p, N, PAIRS, ACC, m_c & m_n)
        s, si = _load(final + p, N, PAIRS, ACC, m_c & m_n)
        c, ci = tl.where(m_c, c, 1.0), tl.where(m_c, ci, 0.0)
        if PAIRS:
            c, ci, s, si = tl.associative_scan((c, ci, s, si), 0, _join_complex)
        else:
            c, s = tl.associative_scan((c, s), 0, _join_real)
        h, hi = _decay(c, ci, state, state_i, PAIRS)
        h, hi = h + s, hi + si
        _store(start + p + (-W if REVERSE else W), N, h, hi, PAIRS, m_c & m_n)
        last = (o_c == BC - 1)[:, None]
        state, state_i = _row_where(h, last), _row_where(hi, last)


# --- host -------------------------------------------------------------------------------------------------------------


def linear_forward(
    a: Tensor, b: Tensor, h0: Tensor | None, reset: Tensor | None, h: Tensor, *, pairs: bool, reverse: bool
) -> None:
    """Fill ``h`` with the states of a linear recurrence; ``pairs``: real parts, then imaginary on the last axis."""
    B, T, W = h.shape
    constant = a.ndim == 1
    per_word = numbers_per_word(W // 2 if pairs else W, b, h, None if constant else a)
    N = W // (2 * per_word if pairs else per_word)
    loads = per_word * b.itemsize * (2 if pairs else 1) * (1 if constant else 2)
    constants = {"PAIRS": pairs, "CONSTANT": constant, "PER_WORD": per_word, "ACC": accumulator(h.dtype)}
    steps = partial(strided, reverse=reverse, per_word=per_word)
    ROW, (a_, b_, out) = align(N, (a.contiguous(), 0, 0) if constant else steps(a), steps(b), steps(h))
    config = launch_config(B, T, N, _TILINGS[words(per_word, N, h)], loads, h.device)
    options = config.kernel_options | constants | {"ROW": ROW}
    inputs, resets, start = (*a_, *b_), strided_reset(reset, reverse), contiguous(h0)
    sizes = T, N, config.C, config.L, config.column_blocks
    if config.C > 1:
        product, final = (h.new_empty(B, config.C, W, dtype=wide(h.dtype)) for _ in range(2))
        _forward_kernel[(config.programs,)](
            *inputs, *optional(None, h, wide(h.dtype)), *resets, *out, product, final, *sizes, SUMMARY=True, **options
        )
        start = carry(product, final, start, pairs=pairs, reverse=False)
    _forward_kernel[(config.programs,)](
        *inputs, *optional(start, h, wide(h.dtype)), *resets, *out, h, h, *sizes, SUMMARY=False, **options
    )


def carry(product: Tensor, final: Tensor, initial: Tensor | None, *, pairs: bool, reverse: bool) -> Tensor:
    """From each chunk's product and end ``[B, C, W]`` to the state that enters each, in the same shape."""
    B, C, W = final.shape
    N = W // 2 if pairs else W
    entering = torch.empty_like(final)
    _carry_kernel[(-(-N // 32), B)](
        product, final, initial, entering, N, C,
        BN=32, BC=32, PAIRS=pairs, REVERSE=reverse, ACC=accumulator(final.dtype), num_warps=1,
    )  # fmt: skip
    return entering


def numbers_per_word(N: int, *tensors: Tensor | None) -> int:
    """How many numbers a word holds, if a row has ``N`` real parts."""
    same = len({x.dtype for x in tensors if x is not None}) == 1
    return 2 if N % 2 == 0 and same and can_pack(*tensors) else 1


def accumulator(dtype: torch.dtype) -> tl.dtype:
    return tl.float64 if dtype == torch.float64 else tl.float32
