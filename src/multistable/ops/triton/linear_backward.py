"""The linear recurrence on a GPU (Triton): the gradients.

The backward is the same recurrence with time reversed and the coefficients conjugated: ``G_t = g_t + q_{t+1}``, where
``q_t = conj(a_t) G_t`` is what leaves step t towards the past; ``grad_b_t = G_t`` and ``grad_a_t = G_t conj(h_{t-1})``.
Time is cut as in ``linear.py``, and everything runs from the last tile to the first.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from multistable.ops.numerics import wide
from multistable.ops.triton.launch import dense, flags, make_plan, rows, states
from multistable.ops.triton.linear import (
    _apply,
    _fields,
    _load,
    _load_opens,
    _load_steps,
    _mul,
    _pass,
    _prefix,
    _repeat,
    _store,
    _store_step,
    accumulator,
    carry,
    fields_of,
)
from multistable.ops.triton.primitives import field, stride, where, words

__all__ = ["linear_backward"]

_PACES = ((12, 8, 2), (6, 8, 3), (0, 16, 3))  # measured on one H200


@triton.jit
def _open_behind(ars, ais, t, end, o_s, U: tl.constexpr):
    """Coefficients that are 1 behind the end, so that what reaches the last state enters there unchanged."""
    res, ims = (), ()
    for u in tl.static_range(U):
        inside = (t + o_s * U + u < end)[:, None]
        res += (tl.where(inside, ars[u], 1.0),)
        ims += (tl.where(inside, ais[u], 0.0),)
    return res, ims


@triton.jit
def _leave(gs, gis, ars, ais, opens, U: tl.constexpr, PAIRS: tl.constexpr, RESETS: tl.constexpr):
    """What leaves each strand towards the past if nothing reaches it, and the product by which later gradients pass."""
    q, qi = tl.zeros_like(gs[0]), tl.zeros_like(gs[0])
    c, ci = q + 1.0, q
    for u in tl.static_range(U - 1, -1, -1):
        q, qi = _mul(ars[u], -ais[u], q + gs[u], qi + gis[u], PAIRS)
        c, ci = _mul(ars[u], -ais[u], c, ci, PAIRS)
        if RESETS:
            q, qi = tl.where(opens[u], q, 0.0), tl.where(opens[u], qi, 0.0)
            c, ci = tl.where(opens[u], c, 0.0), tl.where(opens[u], ci, 0.0)
    return c, ci, q, qi


@triton.jit
def _tile(
    gs, gis, ars, ais, opens, carry, carry_i,
    S: tl.constexpr, U: tl.constexpr, PAIRS: tl.constexpr, RESETS: tl.constexpr,
):  # fmt: skip
    """The gradients G of a tile: tuples of U steps [S, BN], and what reaches it from the future [1, BN]; then what
    leaves it."""
    q, qi = carry, carry_i
    if S > 1:
        c, ci, end, end_i = _leave(gs, gis, ars, ais, opens, U, PAIRS, RESETS)
        bc, bci, bq, bqi, c, ci, end, end_i = _prefix(c, ci, end, end_i, S, PAIRS)
        q, qi = _apply(bc, bci, bq, bqi, carry, carry_i, PAIRS)
        carry, carry_i = _apply(c, ci, end, end_i, carry, carry_i, PAIRS)
    totals, totals_i = (), ()
    for u in tl.static_range(U - 1, -1, -1):
        total, total_i = q + gs[u], qi + gis[u]
        totals, totals_i = (total,) + totals, (total_i,) + totals_i
        q, qi = _mul(ars[u], -ais[u], total, total_i, PAIRS)
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
    PAIRS: tl.constexpr, CONSTANT: tl.constexpr, SUMMARY: tl.constexpr, FIELDS: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """Gradients of one chunk; ``into [B, C, W]`` is what reaches its last state. With SUMMARY only the chunk's product
    and what leaves it towards the past.

    A constant coefficient's gradient comes per chunk, ``grad_a [B * C, W]``. N counts words; ``into``,
    ``grad_a``, ``grad_h0``, ``product``, ``final`` and a constant ``a`` hold wide numbers, W to a row.
    """
    HALF: tl.constexpr = h.dtype.element_ty if FIELDS == 2 else None
    g_t = stride(g_t, G_T)
    a_t = stride(a_t, A_T)
    h_t = stride(h_t, H_T)
    da_t = stride(da_t, DA_T)
    db_t = stride(db_t, DB_T)
    i_b, i_c, o_n = where(blocks, C, BN)
    m_n = o_n < N
    o_s = S - 1 - tl.arange(0, S)  # the latest strand first
    o_u = tl.arange(0, U)[None, :]
    begin, end = i_c * L, tl.minimum((i_c + 1) * L, T)
    tiles = tl.cdiv(end - begin, S * U)
    first = (begin + (tiles - 1) * S * U + o_s * U).to(tl.int64)[:, None]  # step of each strand [S, 1]
    each = (first + o_u)[:, :, None]  # [S, U, 1]
    p_g = words(g, FIELDS) + i_b * g_b + each * g_t + o_n
    p_h = words(h, FIELDS) + i_b * h_b + (each - 1) * h_t + o_n  # the state before each step
    p_db = words(grad_b, FIELDS) + i_b * db_b + first * db_t + o_n
    if not CONSTANT:
        p_a = words(a, FIELDS) + i_b * a_b + each * a_t + o_n
        p_da = grad_a + i_b * da_b + first * da_t + o_n * FIELDS
    half = N * FIELDS
    W = half * (2 if PAIRS else 1)
    p_w = (i_b * C + i_c) * W + o_n * FIELDS
    coefficients, carries, sums = (), (), ()
    for f in tl.static_range(FIELDS):
        zero = tl.zeros([1, BN], ACC)
        coefficients += (_load(a + o_n * FIELDS + f, half, m_n, PAIRS, ACC) if CONSTANT else (zero, zero),)
        carries += ((zero, zero) if into is None else _load(into + p_w + f, half, m_n, PAIRS, ACC),)
        sums += ((tl.zeros([S, BN], ACC), tl.zeros([S, BN], ACC)),)

    if reset is not None:
        reset += i_b * r_b
    wholes = ()
    for f in tl.static_range(FIELDS):
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
        for f in tl.static_range(FIELDS):
            if CONSTANT:
                ars, ais = _repeat(coefficients[f], U)
            else:
                ars, ais = _fields(a_w, f, U, HALF, ACC), _fields(ai_w, f, U, HALF, ACC)
            if not EVEN:
                ars, ais = _open_behind(ars, ais, t, end, o_s, U)
            gs, gis = _fields(g_w, f, U, HALF, ACC), _fields(gi_w, f, U, HALF, ACC)
            if SUMMARY:
                c, ci, q, qi = _leave(gs, gis, ars, ais, opens, U, PAIRS, reset is not None)
                _, _, _, _, c, ci, q, qi = _prefix(c, ci, q, qi, S, PAIRS)
                carries_2 += (_apply(c, ci, q, qi, *carries[f], PAIRS),)
                wholes_2 += (_pass(c, ci, *wholes[f], PAIRS),)
                sums_2 += (sums[f],)
            else:
                totals, totals_i, carry_2, carry_2i = _tile(
                    gs, gis, ars, ais, opens, *carries[f], S, U, PAIRS, reset is not None
                )
                re += (totals,)
                im += (totals_i,)
                carries_2 += ((carry_2, carry_2i),)
                wholes_2 += (wholes[f],)
                sum_a, sum_ai = sums[f]
                for u in tl.static_range(U):
                    hr, hi = field(h_w[u], f, HALF, ACC), field(hi_w[u], f, HALF, ACC)
                    if h0 is not None and u == 0:
                        at_start = (t + o_s * U + u == 0)[:, None]
                        h0r, h0i = _load(h0 + i_b * W + o_n * FIELDS + f, half, m_n, PAIRS, ACC)
                        hr, hi = tl.where(at_start, h0r, hr), tl.where(at_start, h0i, hi)
                    if reset is not None:
                        hr, hi = tl.where(opens[u], hr, 0.0), tl.where(opens[u], hi, 0.0)
                    dar, dai = _mul(totals[u], totals_i[u], hr, -hi, PAIRS)
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

    for f in tl.static_range(FIELDS):
        if SUMMARY:
            _store(product + p_w + f, half, *wholes[f], m_n, PAIRS)
            _store(final + p_w + f, half, *carries[f], m_n, PAIRS)
        else:
            if CONSTANT:
                sum_a, sum_ai = sums[f]
                sum_a, sum_ai = tl.sum(sum_a, 0, keep_dims=True), tl.sum(sum_ai, 0, keep_dims=True)
                _store(grad_a + p_w + f, half, sum_a, sum_ai, m_n, PAIRS)
            if i_c == 0:
                _store(grad_h0 + i_b * W + o_n * FIELDS + f, half, *carries[f], m_n, PAIRS)


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
    grad_h = torch.zeros_like(h) if grad_h is None else dense(grad_h)
    fields = fields_of(W // 2 if pairs else W, grad_h, h, grad_b, None if constant else a)
    N = W // (2 * fields if pairs else fields)
    loads = fields * h.itemsize * (2 if pairs else 1) * (2 if constant else 3)
    plan = make_plan(B, T, N, _PACES, loads, h.device)
    dtype = wide(h.dtype)
    grad_a = h.new_empty((B * plan.C, W) if constant else (B, T, W), dtype=dtype)
    grad_h0 = h.new_empty(B, W, dtype=h.dtype if h0 is None else dtype)
    coefficient = (a.contiguous(), 0, 0, 0) if constant else rows(a, reverse, fields)
    saved = states(h0), *flags(reset, reverse), *rows(h, reverse, fields)
    outputs = *((grad_a, 0, 0, 0) if constant else rows(grad_a, reverse)), *rows(grad_b, reverse, fields), grad_h0
    sizes = T, N, plan.C, plan.L, plan.blocks
    kind = {"PAIRS": pairs, "CONSTANT": constant, "FIELDS": fields, "ACC": accumulator(h.dtype)}
    grad = rows(grad_h, reverse, fields)
    into = states(grad_last)
    if plan.C > 1:
        product, final = (h.new_empty(B, plan.C, W, dtype=dtype) for _ in range(2))
        _backward_kernel[(plan.programs,)](
            *grad, None, *coefficient, *saved, *outputs, product, final, *sizes, SUMMARY=True, **plan.tile, **kind
        )
        into = carry(product, final, into, pairs=pairs, reverse=True)
    _backward_kernel[(plan.programs,)](
        *grad, into, *coefficient, *saved, *outputs, h, h, *sizes, SUMMARY=False, **plan.tile, **kind
    )
    return grad_a.sum(dim=0) if constant else grad_a, grad_h0
