"""The linear recurrence on a GPU (Triton): the gradients.

The backward is the same recurrence with time reversed and the coefficients conjugated: ``G_t = g_t + q_{t+1}``, where
``q_t = conj(a_t) G_t`` is what leaves step t towards the past; ``grad_b_t = G_t`` and ``grad_a_t = G_t conj(h_{t-1})``.
Time is cut as in ``linear.py``, and everything runs from the last tile to the first.
"""

from functools import partial

import torch
import triton
import triton.language as tl
from torch import Tensor

from multistable.ops.numerics import wide
from multistable.ops.triton.launch import contiguous, contiguous_columns, launch_config, strided, strided_reset
from multistable.ops.triton.linear import (
    _advance,
    _decay,
    _load,
    _load_opens,
    _load_steps,
    _multiply,
    _prefixes,
    _repeat,
    _store,
    _store_step,
    _unpack_steps,
    accumulator,
    carry,
    numbers_per_word,
)
from multistable.ops.triton.primitives import program_indices, time_stride, unpack, word_pointer

__all__ = ["linear_backward"]

_TILINGS = ((12, 8, 2), (6, 8, 3), (0, 16, 3))  # measured on one H200


@triton.jit
def _ones_after_end(ars, ais, t, end, o_s, U: tl.constexpr):
    """Coefficients that are 1 after the end, so that what reaches the last state enters unchanged."""
    res, ims = (), ()
    for u in tl.static_range(U):
        inside = (t + o_s * U + u < end)[:, None]
        res += (tl.where(inside, ars[u], 1.0),)
        ims += (tl.where(inside, ais[u], 0.0),)
    return res, ims


@triton.jit
def _strand_ends(gs, gis, ars, ais, opens, U: tl.constexpr, PAIRS: tl.constexpr, RESETS: tl.constexpr):
    """What leaves each strand towards the past if nothing reaches it, and the product by which later gradients pass."""
    q, qi = tl.zeros_like(gs[0]), tl.zeros_like(gs[0])
    c, ci = q + 1.0, q
    for u in tl.static_range(U - 1, -1, -1):
        q, qi = _multiply(ars[u], -ais[u], q + gs[u], qi + gis[u], PAIRS)
        c, ci = _multiply(ars[u], -ais[u], c, ci, PAIRS)
        if RESETS:
            q, qi = tl.where(opens[u], q, 0.0), tl.where(opens[u], qi, 0.0)
            c, ci = tl.where(opens[u], c, 0.0), tl.where(opens[u], ci, 0.0)
    return c, ci, q, qi


@triton.jit
def _tile_gradients(
    gs, gis, ars, ais, opens, carry, carry_i,
    S: tl.constexpr, U: tl.constexpr, PAIRS: tl.constexpr, RESETS: tl.constexpr,
):  # fmt: skip
    """The gradients G of a tile, from tuples of U steps [S, BN] and what reaches it from the future [1, BN]; and what
    leaves it."""
    q, qi = carry, carry_i
    if S > 1:
        c, ci, end, end_i = _strand_ends(gs, gis, ars, ais, opens, U, PAIRS, RESETS)
        bc, bci, bq, bqi, c, ci, end, end_i = _prefixes(c, ci, end, end_i, S, PAIRS)
        q, qi = _advance(bc, bci, bq, bqi, carry, carry_i, PAIRS)
        carry, carry_i = _advance(c, ci, end, end_i, carry, carry_i, PAIRS)
    totals, totals_i = (), ()
    for u in tl.static_range(U - 1, -1, -1):
        total, total_i = q + gs[u], qi + gis[u]
        totals, totals_i = (total,) + totals, (total_i,) + totals_i
        q, qi = _multiply(ars[u], -ais[u], total, total_i, PAIRS)
        if RESETS:
            q, qi = tl.where(opens[u], q, 0.0), tl.where(opens[u], qi, 0.0)
    if S == 1:
        carry, carry_i = q, qi
    return totals, totals_i, carry, carry_i


@triton.jit
def _backward_kernel(
    g, g_b, g_t, G_T: tl.constexpr, into, a, a_b, a_t, A_T: tl.constexpr, h0, reset, r_b, r_t,
    h, h_b, h_t, H_T: tl.constexpr, grad_a, da_b, da_t, DA_T: tl.constexpr, grad_b, db_b, db_t, DB_T: tl.constexpr,
    grad_h0, product, final, T, N, C, L, blocks,
    BN: tl.constexpr, S: tl.constexpr, U: tl.constexpr, EVEN: tl.constexpr, STAGES: tl.constexpr,
    PAIRS: tl.constexpr, CONSTANT: tl.constexpr, SUMMARY: tl.constexpr, PER_WORD: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """Gradients of one chunk; ``into [B, C, W]`` is what reaches its last state. With SUMMARY only the chunk's product
    and what leaves it towards the past.

    A constant coefficient's gradient comes per chunk, ``grad_a [B * C, W]``. N counts words; ``into``,
    ``grad_a``, ``grad_h0``, ``product``, ``final`` and a constant ``a`` hold wide numbers, W to a row.
    """
    HALF: tl.constexpr = h.dtype.element_ty if PER_WORD == 2 else None
    g_t = time_stride(g_t, G_T)
    a_t = time_stride(a_t, A_T)
    h_t = time_stride(h_t, H_T)
    da_t = time_stride(da_t, DA_T)
    db_t = time_stride(db_t, DB_T)
    i_b, i_c, o_n = program_indices(blocks, C, BN)
    m_n = o_n < N
    o_s = S - 1 - tl.arange(0, S)  # the latest strand first
    o_u = tl.arange(0, U)[None, :]
    begin, end = i_c * L, tl.minimum((i_c + 1) * L, T)
    tiles = tl.cdiv(end - begin, S * U)
    first = (begin + (tiles - 1) * S * U + o_s * U).to(tl.int64)[:, None]  # step of each strand [S, 1]
    each = (first + o_u)[:, :, None]  # [S, U, 1]
    p_g = word_pointer(g, PER_WORD) + i_b * g_b + each * g_t + o_n
    p_h = word_pointer(h, PER_WORD) + i_b * h_b + (each - 1) * h_t + o_n  # the state before each step
    p_db = word_pointer(grad_b, PER_WORD) + i_b * db_b + first * db_t + o_n
    if not CONSTANT:
        p_a = word_pointer(a, PER_WORD) + i_b * a_b + each * a_t + o_n
        p_da = grad_a + i_b * da_b + first * da_t + o_n * PER_WORD
    half = N * PER_WORD
    W = half * (2 if PAIRS else 1)
    p_w = (i_b * C + i_c) * W + o_n * PER_WORD
    coefficients, carries, sums = (), (), ()
    for f in tl.static_range(PER_WORD):
        zero = tl.zeros([1, BN], ACC)
        coefficients += (_load(a + o_n * PER_WORD + f, half, m_n, PAIRS, ACC) if CONSTANT else (zero, zero),)
        carries += ((zero, zero) if into is None else _load(into + p_w + f, half, m_n, PAIRS, ACC),)
        sums += ((tl.zeros([S, BN], ACC), tl.zeros([S, BN], ACC)),)

    if reset is not None:
        reset += i_b * r_b
    wholes = ()
    for f in tl.static_range(PER_WORD):
        wholes += ((tl.full([1, BN], 1.0, ACC), tl.zeros([1, BN], ACC)),)

    for i in tl.range(tiles, num_stages=STAGES):
        t = begin + (tiles - 1 - i) * S * U
        o_t = (t + o_s[:, None] * U + o_u)[:, :, None]
        mask = (o_t < end) & m_n
        g_w, gi_w = _load_steps(p_g, N, mask, U, PAIRS, EVEN)
        if not CONSTANT:
            a_w, ai_w = _load_steps(p_a, N, mask, U, PAIRS, EVEN)
        opens = _load_opens(reset, r_t, t, end, o_s, U)
        if not SUMMARY:
            h_w, hi_w = _load_steps(p_h, N, mask & (o_t > 0), U, PAIRS, False)
        re, im, carries_2, sums_2, wholes_2 = (), (), (), (), ()
        for f in tl.static_range(PER_WORD):
            if CONSTANT:
                ars, ais = _repeat(coefficients[f], U)
            else:
                ars, ais = _unpack_steps(a_w, f, U, HALF, ACC), _unpack_steps(ai_w, f, U, HALF, ACC)
            if not EVEN:
                ars, ais = _ones_after_end(ars, ais, t, end, o_s, U)
            gs, gis = _unpack_steps(g_w, f, U, HALF, ACC), _unpack_steps(gi_w, f, U, HALF, ACC)
            if SUMMARY:
                c, ci, q, qi = _strand_ends(gs, gis, ars, ais, opens, U, PAIRS, reset is not None)
                _, _, _, _, c, ci, q, qi = _prefixes(c, ci, q, qi, S, PAIRS)
                carries_2 += (_advance(c, ci, q, qi, *carries[f], PAIRS),)
                wholes_2 += (_decay(c, ci, *wholes[f], PAIRS),)
                sums_2 += (sums[f],)
            else:
                totals, totals_i, carry_2, carry_2i = _tile_gradients(
                    gs, gis, ars, ais, opens, *carries[f], S, U, PAIRS, reset is not None
                )
                re += (totals,)
                im += (totals_i,)
                carries_2 += ((carry_2, carry_2i),)
                wholes_2 += (wholes[f],)
                sum_a, sum_ai = sums[f]
                for u in tl.static_range(U):
                    hr, hi = unpack(h_w[u], f, HALF, ACC), unpack(hi_w[u], f, HALF, ACC)
                    if h0 is not None and u == 0:
                        at_start = (t + o_s * U + u == 0)[:, None]
                        h0r, h0i = _load(h0 + i_b * W + o_n * PER_WORD + f, half, m_n, PAIRS, ACC)
                        hr, hi = tl.where(at_start, h0r, hr), tl.where(at_start, h0i, hi)
                    if reset is not None:
                        hr, hi = tl.where(opens[u], hr, 0.0), tl.where(opens[u], hi, 0.0)
                    dar, dai = _multiply(totals[u], totals_i[u], hr, -hi, PAIRS)
                    if CONSTANT:
                        sum_a, sum_ai = sum_a + dar, sum_ai + dai  # masked lanes have h = 0
                    else:
                        mask = (t + o_s * U + u < end)[:, None] & m_n
                        _store(p_da + u * da_t + f, half, dar, dai, mask, PAIRS)
                sums_2 += ((sum_a, sum_ai),)
        carries, sums, wholes = carries_2, sums_2, wholes_2
        if not SUMMARY:
            for u in tl.static_range(U):
                mask = (t + o_s * U + u < end)[:, None] & m_n
                _store_step(p_db + u * db_t, N, re, im, u, mask, HALF, PAIRS, EVEN)
        p_g -= S * U * g_t
        p_h -= S * U * h_t
        p_db -= S * U * db_t
        if not CONSTANT:
            p_a -= S * U * a_t
            p_da -= S * U * da_t

    for f in tl.static_range(PER_WORD):
        if SUMMARY:
            _store(product + p_w + f, half, *wholes[f], m_n, PAIRS)
            _store(final + p_w + f, half, *carries[f], m_n, PAIRS)
        else:
            if CONSTANT:
                sum_a, sum_ai = sums[f]
                sum_a, sum_ai = tl.sum(sum_a, 0, keep_dims=True), tl.sum(sum_ai, 0, keep_dims=True)
                _store(grad_a + p_w + f, half, sum_a, sum_ai, m_n, PAIRS)
            if i_c == 0:
                _store(grad_h0 + i_b * W + o_n * PER_WORD + f, half, *carries[f], m_n, PAIRS)


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
    B, T, W = h.shape
    constant = a.ndim == 1
    grad_h = torch.zeros_like(h) if grad_h is None else contiguous_columns(grad_h)
    per_word = numbers_per_word(W // 2 if pairs else W, grad_h, h, grad_b, None if constant else a)
    N = W // (2 * per_word if pairs else per_word)
    loads = per_word * h.itemsize * (2 if pairs else 1) * (2 if constant else 3)
    config = launch_config(B, T, N, _TILINGS, loads, h.device)
    dtype = wide(h.dtype)
    grad_a = h.new_empty((B * config.C, W) if constant else (B, T, W), dtype=dtype)
    grad_h0 = h.new_empty(B, W, dtype=h.dtype if h0 is None else dtype)
    steps = partial(strided, reverse=reverse, per_word=per_word)
    coefficient = (a.contiguous(), 0, 0, 0) if constant else steps(a)
    saved = contiguous(h0), *strided_reset(reset, reverse), *steps(h)
    outputs = *((grad_a, 0, 0, 0) if constant else strided(grad_a, reverse)), *steps(grad_b), grad_h0
    sizes = T, N, config.C, config.L, config.column_blocks
    constants = {"PAIRS": pairs, "CONSTANT": constant, "PER_WORD": per_word, "ACC": accumulator(h.dtype)}
    options = config.kernel_options | constants
    grad, into = steps(grad_h), contiguous(grad_last)
    if config.C > 1:
        product, final = (h.new_empty(B, config.C, W, dtype=dtype) for _ in range(2))
        _backward_kernel[(config.programs,)](
            *grad, None, *coefficient, *saved, *outputs, product, final, *sizes, SUMMARY=True, **options
        )
        into = carry(product, final, into, pairs=pairs, reverse=True)
    _backward_kernel[(config.programs,)](
        *grad, into, *coefficient, *saved, *outputs, h, h, *sizes, SUMMARY=False, **options
    )
    return grad_a.sum(dim=0) if constant else grad_a, grad_h0
