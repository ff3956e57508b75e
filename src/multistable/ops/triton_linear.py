"""The linear recurrence ``h_t = a_t h_{t-1} + b_t`` on a GPU (Triton), real or complex, ``a`` constant or per step.

Time is cut as in ``triton_latch.py``: chunks in parallel programs, tiles of S strands of U steps, the state in
registers. A strand that starts from zero ends in ``h``, and one that starts from ``s`` in ``h + A s`` with ``A`` the
product of its coefficients; two stretches ``(A1, h1)``, ``(A2, h2)`` compose to ``(A2 A1, A2 h1 + h2)``.

Complex numbers come as real and imaginary parts apart, ``[..., 2N]``; in the real kernels the imaginary parts are never
loaded or stored, and the compiler drops what is computed for them.

The backward is the same recurrence with time reversed and the coefficients conjugated: ``G_t = g_t + q_{t+1}``, where
``q_t = conj(a_t) G_t`` is what leaves step t towards the past; ``grad_b_t = G_t`` and ``grad_a_t = G_t conj(h_{t-1})``.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from multistable.ops.precision import wide
from multistable.ops.triton_latch import _load as _load_one
from multistable.ops.triton_latch import _where
from multistable.ops.triton_tiles import Tile, flags, make_plan, rows, states

__all__ = ["linear_backward", "linear_forward"]

# Measured on one H200 at (64, 2048, 256) and (256, 784, 256).
_FORWARD_TILES = {
    "few": Tile(BN=32, U=8, warps=1, vector=4, stages=3),
    "many": Tile(BN=64, U=4, warps=2, vector=4, stages=2),
    "few half": Tile(BN=32, U=8, warps=1, vector=4, stages=3),
    "many half": Tile(BN=64, U=8, warps=1, vector=4, stages=2),
}

_BACKWARD_TILES = {
    "few": Tile(BN=32, U=8, warps=1, vector=4, stages=2),
    "many": Tile(BN=64, U=8, warps=1, vector=4, stages=2),
    "few half": Tile(BN=32, U=8, warps=2, vector=4, stages=2),
    "many half": Tile(BN=64, U=8, warps=1, vector=4, stages=2),
}


# --- pieces -----------------------------------------------------------------------------------------------------------


@triton.jit
def _mul(a_re, a_im, b_re, b_im, PAIRS: tl.constexpr):
    """The product of two numbers, complex if PAIRS."""
    if PAIRS:
        re, im = a_re * b_re - a_im * b_im, a_re * b_im + a_im * b_re
    else:
        re, im = a_re * b_re, a_im
    return re, im


@triton.jit
def _load(p, half, mask, PAIRS: tl.constexpr, ACC: tl.constexpr, EVEN: tl.constexpr = False):
    """Real and imaginary parts; ``half`` lies between the two. EVEN: nothing lies outside."""
    re = _load_one(p, mask, 0.0, EVEN).to(ACC)
    if PAIRS:
        return re, _load_one(p + half, mask, 0.0, EVEN).to(ACC)
    else:
        return re, re


@triton.jit
def _store(p, half, re, im, mask, PAIRS: tl.constexpr, EVEN: tl.constexpr = False):
    if EVEN:
        tl.store(p, re.to(p.dtype.element_ty))
        if PAIRS:
            tl.store(p + half, im.to(p.dtype.element_ty))
    else:
        tl.store(p, re.to(p.dtype.element_ty), mask=mask)
        if PAIRS:
            tl.store(p + half, im.to(p.dtype.element_ty), mask=mask)


@triton.jit
def _pass(c, ci, s, si, PAIRS: tl.constexpr):
    """What is left of a state ``s`` after a stretch with product ``c``. Of none passes nothing, not even an infinity:
    a reset, whose product is zero, ends an overflow."""
    re, im = _mul(c, ci, s, si, PAIRS)
    shut = (c == 0) & (ci == 0) if PAIRS else c == 0
    return tl.where(shut, 0.0, re), tl.where(shut, 0.0, im)


@triton.jit
def _join_real(c, s, c_2, s_2):
    """``(A, h)`` of two stretches as one: ``(A2 A1, A2 h1 + h2)``. Associative."""
    passed, _ = _pass(c_2, c_2, s, s, False)
    return c_2 * c, passed + s_2


@triton.jit
def _join_complex(c, ci, s, si, c_2, ci_2, s_2, si_2):
    """The same for complex numbers, each as real and imaginary part."""
    passed, passed_i = _pass(c_2, ci_2, s, si, True)
    product, product_i = _mul(c_2, ci_2, c, ci, True)
    return product, product_i, passed + s_2, passed_i + si_2


@triton.jit
def _append_real(bc, bs, c, s, bc_2, bs_2, c_2, s_2):
    """``_join`` with a memory of all but the last stretch, so that a scan yields what comes *before* each strand."""
    b0, b1 = _join_real(c, s, bc_2, bs_2)
    a0, a1 = _join_real(c, s, c_2, s_2)
    return b0, b1, a0, a1


@triton.jit
def _append_complex(bc, bci, bs, bsi, c, ci, s, si, bc_2, bci_2, bs_2, bsi_2, c_2, ci_2, s_2, si_2):
    b0, b1, b2, b3 = _join_complex(c, ci, s, si, bc_2, bci_2, bs_2, bsi_2)
    a0, a1, a2, a3 = _join_complex(c, ci, s, si, c_2, ci_2, s_2, si_2)
    return b0, b1, b2, b3, a0, a1, a2, a3


@triton.jit
def _pick(x, at):
    """One row [1, BN] of x [S, BN], where ``at [S, 1]`` is true."""
    return tl.sum(tl.where(at, x, 0.0), 0, keep_dims=True)


@triton.jit
def _enter(c, ci, s, si, state, state_i, S: tl.constexpr, PAIRS: tl.constexpr):
    """Products and ends of all strands [S, BN], in the order of the recurrence, and the state before the tile [1, BN]
    -> the state before each strand, and after all of them."""
    if S == 1:
        before, before_i = state, state_i
        after, after_i = _pass(c, ci, state, state_i, PAIRS)
        after, after_i = after + s, after_i + si
    else:
        one, zero = tl.full(s.shape, 1.0, s.dtype), tl.zeros_like(s)
        final = (tl.arange(0, S) == S - 1)[:, None]
        if PAIRS:
            bc, bci, bs, bsi, c, ci, s, si = tl.associative_scan(
                (one, zero, zero, zero, c, ci, s, si), 0, _append_complex
            )
        else:
            bc, bs, c, s = tl.associative_scan((one, zero, c, s), 0, _append_real)
            bci, bsi, ci, si = bc, zero, c, zero
        before, before_i = _pass(bc, bci, state, state_i, PAIRS)
        before, before_i = before + bs, before_i + bsi
        after, after_i = _pass(_pick(c, final), _pick(ci, final), state, state_i, PAIRS)
        after, after_i = after + _pick(s, final), after_i + _pick(si, final)
    return before, before_i, after, after_i


# --- forward ----------------------------------------------------------------------------------------------------------


@triton.jit
def _forward_kernel(
    a, a_b, a_t, A_T: tl.constexpr, b, b_b, b_t, B_T: tl.constexpr, start, reset, r_b, r_t,
    h, h_b, h_t, H_T: tl.constexpr, product, final, T, N, C, L, blocks,
    BN: tl.constexpr, S: tl.constexpr, U: tl.constexpr, PAIRS: tl.constexpr, CONSTANT: tl.constexpr,
    SUMMARY: tl.constexpr, ACC: tl.constexpr, EVEN: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """States of one chunk from ``start [B, C, W]``; with SUMMARY only the chunk's product and end, from zero."""
    a_t = a_t if A_T is None else A_T
    b_t = b_t if B_T is None else B_T
    h_t = h_t if H_T is None else H_T
    i_b, i_c, o_n = _where(blocks, C, BN)
    m_n = o_n < N
    W = N * (2 if PAIRS else 1)
    o_s = tl.arange(0, S)
    end = tl.minimum((i_c + 1) * L, T)
    first = (i_c * L + o_s * U).to(tl.int64)[:, None]
    p_b = b + i_b * b_b + first * b_t + o_n
    p_h = h + i_b * h_b + first * h_t + o_n
    p_a = a + i_b * a_b + first * a_t + o_n
    if CONSTANT:
        ar, ai = _load(a + o_n, N, m_n, PAIRS, ACC)
        ar, ai = tl.broadcast_to(ar, [S, BN]), tl.broadcast_to(ai, [S, BN])
    state, state_i = tl.zeros([1, BN], ACC), tl.zeros([1, BN], ACC)
    whole, whole_i = tl.full([1, BN], 1.0, ACC), tl.zeros([1, BN], ACC)
    if start is not None:
        state, state_i = _load(start + (i_b * C + i_c) * W + o_n, N, m_n, PAIRS, ACC)

    for t in tl.range(i_c * L, end, S * U, num_stages=STAGES):
        bs, bis, cs, cis, opens = (), (), (), (), ()
        as_, ais = (), ()
        for u in tl.static_range(U):
            o_t = t + o_s * U + u
            m_t = (o_t < end)[:, None]
            mask = m_t & m_n
            br, bi = _load(p_b + u * b_t, N, mask, PAIRS, ACC, EVEN)
            bs += (br,)
            bis += (bi,)
            if not CONSTANT:
                ar, ai = _load(p_a + u * a_t, N, mask, PAIRS, ACC, EVEN)
            if not EVEN:  # behind the end nothing changes
                ar_u, ai_u = tl.where(m_t, ar, 1.0), tl.where(m_t, ai, 0.0)
            else:
                ar_u, ai_u = ar, ai
            as_ += (ar_u,)
            ais += (ai_u,)
            if reset is not None:
                p_r = reset + i_b * r_b + o_t.to(tl.int64) * r_t
                opens += (tl.load(p_r, mask=o_t < end, other=0)[:, None] == 0,)
        # Each strand from zero: its states, and the products by which an entering state would reach them.
        s, si = tl.zeros([S, BN], ACC), tl.zeros([S, BN], ACC)
        c, ci = tl.full([S, BN], 1.0, ACC), tl.zeros([S, BN], ACC)
        ss, sis = (), ()
        for u in tl.static_range(U):
            if reset is not None:  # selected, not multiplied: an overflow must not outlive a reset
                s, si = tl.where(opens[u], s, 0.0), tl.where(opens[u], si, 0.0)
                c, ci = tl.where(opens[u], c, 0.0), tl.where(opens[u], ci, 0.0)
            c, ci = _mul(as_[u], ais[u], c, ci, PAIRS)
            s, si = _mul(as_[u], ais[u], s, si, PAIRS)
            s, si = s + bs[u], si + bis[u]
            ss += (s,)
            sis += (si,)
            cs += (c,)
            cis += (ci,)
        before, before_i, state, state_i = _enter(c, ci, s, si, state, state_i, S, PAIRS)
        if SUMMARY:
            _, _, whole, whole_i = _enter(c, ci, tl.zeros_like(s), tl.zeros_like(s), whole, whole_i, S, PAIRS)
        else:
            shut = tl.zeros([S, 1], tl.int1)
            for u in tl.static_range(U):
                mask = (t + o_s * U + u < end)[:, None] & m_n
                hr, hi = _mul(cs[u], cis[u], before, before_i, PAIRS)
                if reset is not None:
                    shut = shut | ~opens[u]
                    hr, hi = tl.where(shut, 0.0, hr), tl.where(shut, 0.0, hi)
                _store(p_h + u * h_t, N, hr + ss[u], hi + sis[u], mask, PAIRS, EVEN)
        p_b += S * U * b_t
        p_h += S * U * h_t
        p_a += S * U * a_t
    if SUMMARY:
        p = (i_b * C + i_c) * W + o_n
        _store(product + p, N, whole, whole_i, m_n, PAIRS)
        _store(final + p, N, state, state_i, m_n, PAIRS)


@triton.jit
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
        state, state_i = _load(initial + i_b * W + o_n, N, m_n, PAIRS, ACC)
    _store(start + (i_b * C + (C - 1 if REVERSE else 0)) * W + o_n, N, state, state_i, m_n, PAIRS)
    for j in range(0, C - 1, BC):
        order = C - 1 - j - o_c if REVERSE else j + o_c
        p = (i_b * C + order)[:, None] * W + o_n
        m_c = (j + o_c < C - 1)[:, None]
        c, ci = _load(product + p, N, m_c & m_n, PAIRS, ACC)
        s, si = _load(final + p, N, m_c & m_n, PAIRS, ACC)
        c, ci = tl.where(m_c, c, 1.0), tl.where(m_c, ci, 0.0)
        if PAIRS:
            c, ci, s, si = tl.associative_scan((c, ci, s, si), 0, _join_complex)
        else:
            c, s = tl.associative_scan((c, s), 0, _join_real)
        h, hi = _pass(c, ci, state, state_i, PAIRS)
        h, hi = h + s, hi + si
        _store(start + p + (-W if REVERSE else W), N, h, hi, m_c & m_n, PAIRS)
        last = (o_c == BC - 1)[:, None]
        state, state_i = _pick(h, last), _pick(hi, last)


# --- backward ---------------------------------------------------------------------------------------------------------


@triton.jit
def _backward_kernel(
    g, g_b, g_t, G_T: tl.constexpr, into, a, a_b, a_t, A_T: tl.constexpr, h0, reset, r_b, r_t,
    h, h_b, h_t, H_T: tl.constexpr, grad_a, da_b, da_t, DA_T: tl.constexpr, grad_b, db_b, db_t, DB_T: tl.constexpr,
    grad_h0, product, final, T, N, C, L, blocks,
    BN: tl.constexpr, S: tl.constexpr, U: tl.constexpr, PAIRS: tl.constexpr, CONSTANT: tl.constexpr,
    SUMMARY: tl.constexpr, ACC: tl.constexpr, EVEN: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Gradients of one chunk, from its last tile to its first; ``into [B, C, W]`` is what reaches its last state.

    A constant coefficient's gradient comes per chunk, ``grad_a [B * C, W]``. With SUMMARY only the chunk's product and
    what leaves it towards the past.
    """
    g_t = g_t if G_T is None else G_T
    a_t = a_t if A_T is None else A_T
    h_t = h_t if H_T is None else H_T
    da_t = da_t if DA_T is None else DA_T
    db_t = db_t if DB_T is None else DB_T
    i_b, i_c, o_n = _where(blocks, C, BN)
    m_n = o_n < N
    W = N * (2 if PAIRS else 1)
    o_s = S - 1 - tl.arange(0, S)  # the latest strand first
    begin, end = i_c * L, tl.minimum((i_c + 1) * L, T)
    tiles = tl.cdiv(end - begin, S * U)
    first = (begin + (tiles - 1) * S * U + o_s * U).to(tl.int64)[:, None]
    p_g = g + i_b * g_b + first * g_t + o_n
    p_h = h + i_b * h_b + (first - 1) * h_t + o_n  # the state before each step
    p_a = a + i_b * a_b + first * a_t + o_n
    p_da = grad_a + i_b * da_b + first * da_t + o_n
    p_db = grad_b + i_b * db_b + first * db_t + o_n
    if CONSTANT:
        ar, ai = _load(a + o_n, N, m_n, PAIRS, ACC)
        ar, ai = tl.broadcast_to(ar, [S, BN]), tl.broadcast_to(-ai, [S, BN])
    carry, carry_i = tl.zeros([1, BN], ACC), tl.zeros([1, BN], ACC)
    whole, whole_i = tl.full([1, BN], 1.0, ACC), tl.zeros([1, BN], ACC)
    if into is not None:
        carry, carry_i = _load(into + (i_b * C + i_c) * W + o_n, N, m_n, PAIRS, ACC)
    sum_a, sum_ai = tl.zeros([S, BN], ACC), tl.zeros([S, BN], ACC)

    for i in tl.range(tiles, num_stages=STAGES):
        t = begin + (tiles - 1 - i) * S * U
        gs, gis, as_, ais, hs, his, opens = (), (), (), (), (), (), ()
        for u in tl.static_range(U):
            o_t = t + o_s * U + u
            m_t = (o_t < end)[:, None]
            mask = m_t & m_n
            gr, gi = _load(p_g + u * g_t, N, mask, PAIRS, ACC, EVEN)
            gs += (gr,)
            gis += (gi,)
            if not CONSTANT:
                ar, ai = _load(p_a + u * a_t, N, mask, PAIRS, ACC, EVEN)
                ai = -ai
            if not EVEN:
                ar_u, ai_u = tl.where(m_t, ar, 1.0), tl.where(m_t, ai, 0.0)
            else:
                ar_u, ai_u = ar, ai
            as_ += (ar_u,)
            ais += (ai_u,)
            if not SUMMARY:
                hr, hi = _load(p_h + u * h_t, N, mask & (o_t > 0)[:, None], PAIRS, ACC)
                hs += (hr,)
                his += (hi,)
            if reset is not None:
                p_r = reset + i_b * r_b + o_t.to(tl.int64) * r_t
                opens += (tl.load(p_r, mask=o_t < end, other=0)[:, None] == 0,)
        # Each strand from zero: what leaves it towards the past, and the product by which later gradients pass.
        q, qi = tl.zeros([S, BN], ACC), tl.zeros([S, BN], ACC)
        c, ci = tl.full([S, BN], 1.0, ACC), tl.zeros([S, BN], ACC)
        for u in tl.static_range(U - 1, -1, -1):
            q, qi = _mul(as_[u], ais[u], q + gs[u], qi + gis[u], PAIRS)
            c, ci = _mul(as_[u], ais[u], c, ci, PAIRS)
            if reset is not None:
                q, qi = tl.where(opens[u], q, 0.0), tl.where(opens[u], qi, 0.0)
                c, ci = tl.where(opens[u], c, 0.0), tl.where(opens[u], ci, 0.0)
        q_in, q_in_i, carry, carry_i = _enter(c, ci, q, qi, carry, carry_i, S, PAIRS)
        if SUMMARY:
            _, _, whole, whole_i = _enter(c, ci, tl.zeros_like(q), tl.zeros_like(q), whole, whole_i, S, PAIRS)
        else:
            for u in tl.static_range(U - 1, -1, -1):
                o_t = t + o_s * U + u
                mask = (o_t < end)[:, None] & m_n
                total, total_i = q_in + gs[u], q_in_i + gis[u]
                _store(p_db + u * db_t, N, total, total_i, mask, PAIRS, EVEN)
                hr, hi = hs[u], his[u]
                if h0 is not None:
                    at_start = (o_t == 0)[:, None]
                    h0r, h0i = _load(h0 + i_b * W + o_n, N, at_start & m_n, PAIRS, ACC)
                    hr, hi = tl.where(at_start, h0r, hr), tl.where(at_start, h0i, hi)
                if reset is not None:
                    hr, hi = tl.where(opens[u], hr, 0.0), tl.where(opens[u], hi, 0.0)
                dar, dai = _mul(total, total_i, hr, -hi, PAIRS)
                if CONSTANT:
                    sum_a, sum_ai = sum_a + dar, sum_ai + dai  # masked lanes have h = 0
                else:
                    _store(p_da + u * da_t, N, dar, dai, mask, PAIRS, EVEN)
                q_in, q_in_i = _mul(as_[u], ais[u], total, total_i, PAIRS)
                if reset is not None:
                    q_in, q_in_i = tl.where(opens[u], q_in, 0.0), tl.where(opens[u], q_in_i, 0.0)
        p_g -= S * U * g_t
        p_h -= S * U * h_t
        p_a -= S * U * a_t
        p_da -= S * U * da_t
        p_db -= S * U * db_t

    p = (i_b * C + i_c) * W + o_n
    if SUMMARY:
        _store(product + p, N, whole, whole_i, m_n, PAIRS)
        _store(final + p, N, carry, carry_i, m_n, PAIRS)
    else:
        if CONSTANT:
            _store(grad_a + p, N, tl.sum(sum_a, 0, keep_dims=True), tl.sum(sum_ai, 0, keep_dims=True), m_n, PAIRS)
        if i_c == 0:
            _store(grad_h0 + i_b * W + o_n, N, carry, carry_i, m_n, PAIRS)


# --- host -------------------------------------------------------------------------------------------------------------


def linear_forward(
    a: Tensor, b: Tensor, h0: Tensor | None, reset: Tensor | None, h: Tensor, *, pairs: bool, reverse: bool
) -> None:
    """Fill ``h`` with the states of a linear recurrence; ``pairs``: real parts, then imaginary on the last axis."""
    B, T, W = h.shape
    N = W // 2 if pairs else W
    plan = make_plan(B, T, N, _FORWARD_TILES, h.itemsize == 2, h.device)
    constant = a.ndim == 1
    coefficient = (a.contiguous(), 0, 0, 0) if constant else rows(a, reverse)
    marks, out = flags(reset, reverse), rows(h, reverse)
    sizes = T, N, plan.C, plan.L, plan.blocks
    kind = {"PAIRS": pairs, "CONSTANT": constant, "ACC": _accumulator(h.dtype), "num_warps": plan.warps}
    tile = {"BN": plan.BN, "S": plan.S, "U": plan.U, "EVEN": plan.even, "STAGES": plan.stages}
    inputs = *coefficient, *rows(b, reverse)
    start = states(h0)
    if plan.C > 1:
        product, final, entering = (h.new_empty(B, plan.C, W, dtype=wide(h.dtype)) for _ in range(3))
        _forward_kernel[(plan.programs,)](
            *inputs, None, *marks, *out, product, final, *sizes, **tile, SUMMARY=True, **kind
        )  # fmt: skip
        _carry_kernel[(plan.blocks, B)](
            product, final, start, entering, N, plan.C,
            BN=plan.BN, BC=32, PAIRS=pairs, REVERSE=False, ACC=kind["ACC"], num_warps=1,
        )  # fmt: skip
        start = entering
    _forward_kernel[(plan.programs,)](*inputs, start, *marks, *out, h, h, *sizes, **tile, SUMMARY=False, **kind)


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
    N = W // 2 if pairs else W
    plan = make_plan(B, T, N, _BACKWARD_TILES, h.itemsize == 2, h.device)
    constant = a.ndim == 1
    coefficient = (a.contiguous(), 0, 0, 0) if constant else rows(a, reverse)
    grad_h = torch.zeros_like(h) if grad_h is None else grad_h
    dtype = wide(h.dtype)
    grad_a = h.new_empty((B * plan.C, W) if constant else (B, T, W), dtype=dtype)
    grad_h0 = h.new_empty(B, W, dtype=dtype)
    saved = states(h0), *flags(reset, reverse), *rows(h, reverse)
    outputs = *((grad_a, 0, 0, 0) if constant else rows(grad_a, reverse)), *rows(grad_b, reverse), grad_h0
    sizes = T, N, plan.C, plan.L, plan.blocks
    kind = {"PAIRS": pairs, "CONSTANT": constant, "ACC": _accumulator(h.dtype), "num_warps": plan.warps}
    tile = {"BN": plan.BN, "S": plan.S, "U": plan.U, "EVEN": plan.even, "STAGES": plan.stages}
    grad = rows(grad_h, reverse)
    into = states(grad_last)
    if plan.C > 1:
        product, final, reaching = (h.new_empty(B, plan.C, W, dtype=dtype) for _ in range(3))
        _backward_kernel[(plan.programs,)](
            *grad, None, *coefficient, *saved, *outputs, product, final, *sizes, **tile, SUMMARY=True, **kind
        )
        _carry_kernel[(plan.blocks, B)](
            product, final, into, reaching, N, plan.C,
            BN=plan.BN, BC=32, PAIRS=pairs, REVERSE=True, ACC=kind["ACC"], num_warps=1,
        )  # fmt: skip
        into = reaching
    _backward_kernel[(plan.programs,)](
        *grad, into, *coefficient, *saved, *outputs, h, h, *sizes, **tile, SUMMARY=False, **kind
    )
    return grad_a.sum(dim=0) if constant else grad_a, grad_h0


def _accumulator(dtype: torch.dtype) -> tl.dtype:
    return tl.float64 if dtype == torch.float64 else tl.float32
