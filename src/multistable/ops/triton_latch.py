"""Latch and BMRU scans on a GPU (Triton).

Time is cut three times, so that nothing but the tensors themselves moves through memory:

- *Chunks* run in parallel programs. Usually there is one per sequence; a batch too small to fill the GPU gets more, and
  each chunk is told the state that enters it: the last write before it, found by looking back from its beginning.
- A program walks over its chunk in *tiles* of ``S * U`` steps and carries the state in registers.
- Within a tile, S *strands* of U consecutive steps run side by side in the lanes of a warp. Each thread walks over its
  U steps in registers, one scan over the S strands follows, and one select gives every step its state.

The latch only selects, so the forward has the same bits as the loop. The backward recomputes the states of a tile from
one row of ``h`` per tile instead of reading all of them.

Shapes in comments: ``[S, BN]`` is one step of each strand. Prefixes: ``i_`` index of a program, ``o_`` offsets, ``m_``
masks, ``p_`` pointers. Masked lanes read cand 0 and beta 1, which never write; for the plain latch, write 0.
"""

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from multistable.ops.precision import wide
from multistable.ops.triton_tiles import flags, make_plan, rows, states

__all__ = ["bmru_backward", "bmru_forward", "latch_backward", "latch_forward"]

_U_FORWARD, _U_BACKWARD = 8, 4  # steps per strand: what fits in the registers of a thread


# --- pieces -----------------------------------------------------------------------------------------------------------


@triton.jit
def _gate(x, y, level, BMRU: tl.constexpr):
    """Whether a step writes, and what: from cand and beta, or from the latch's own value and write flag."""
    if BMRU:
        write = ~(tl.abs(x) < tl.abs(y))
        value = tl.where(x < 0, -level, level)
        value = tl.where((x != x) | (y != y), x + y, value)
    else:
        write = y != 0
        value = x
    return write, value


@triton.jit
def _load(p_x, p_y, mask, BMRU: tl.constexpr, ACC: tl.constexpr):
    """One step of each strand: cand and beta, or value and write flag [S, BN]."""
    x = tl.load(p_x, mask=mask, other=0.0).to(ACC)
    if BMRU:
        y = tl.load(p_y, mask=mask, other=1.0).to(ACC)
    else:
        y = tl.load(p_y, mask=mask, other=0)
    return x, y


@triton.jit
def _later(seen, value, seen_2, value_2):
    """Two stretches of time as one: the later write wins. Associative."""
    return seen | seen_2, tl.where(seen_2 != 0, value_2, value)


@triton.jit
def _append(before_seen, before_value, seen, value, before_seen_2, before_value_2, seen_2, value_2):
    """The same with a memory of all but the last stretch, so that a scan yields what comes *before* each strand."""
    bs, bv = _later(seen, value, before_seen_2, before_value_2)
    s, v = _later(seen, value, seen_2, value_2)
    return bs, bv, s, v


@triton.jit
def _latest(index, value, index_2, value_2):
    """The value with the larger index. Commutative, as a reduction must be."""
    return tl.maximum(index, index_2), tl.where(index_2 > index, value_2, value)


@triton.jit
def _enter(seen, value, state, o_s, S: tl.constexpr):
    """Each strand's last write [S, BN] and the state before the tile [1, BN] -> states before each strand and after all."""
    if S == 1:
        before = state
        after = tl.where(seen != 0, value, state)
    else:
        nothing = tl.zeros_like(seen)
        before_seen, before_value, _, _ = tl.associative_scan((nothing, value, seen, value), 0, _append)
        before = tl.where(before_seen != 0, before_value, state)
        index, last = tl.reduce((tl.where(seen != 0, o_s[:, None], -1), value), 0, _latest, keep_dims=True)
        after = tl.where(index >= 0, last, state)
    return before, after


@triton.jit
def _sum_append(before_open, before_sum, open_, sum_, before_open_2, before_sum_2, open_2, sum_2):
    """As ``_append`` for gradients: a stretch passes on what reaches it (``open``) and adds ``sum``. Time runs back."""
    bo, bs = open_ & before_open_2, before_sum_2 + tl.where(before_open_2 != 0, sum_, 0.0)
    o, s = open_ & open_2, sum_2 + tl.where(open_2 != 0, sum_, 0.0)
    return bo, bs, o, s


@triton.jit
def _reach(open_, sum_, carry, o_s, S: tl.constexpr):
    """Gradients that leave each strand towards the past [S, BN], and that from after the tile [1, BN] -> what reaches
    each strand from the future, and what leaves the tile."""
    if S == 1:
        into = carry
        out = sum_ + tl.where(open_ != 0, carry, 0.0)
    else:
        ones = tl.full(open_.shape, 1, tl.int32)
        before_open, before_sum, all_open, all_sum = tl.associative_scan(
            (ones, tl.zeros_like(sum_), open_, sum_), 0, _sum_append, reverse=True
        )
        into = before_sum + tl.where(before_open != 0, carry, 0.0)
        first = (o_s == 0)[:, None]
        out_sum = tl.sum(tl.where(first, all_sum, 0.0), 0, keep_dims=True)
        out_open = tl.max(tl.where(first, all_open, 0), 0, keep_dims=True)
        out = out_sum + tl.where(out_open != 0, carry, 0.0)
    return into, out


@triton.jit
def _where(blocks, C, BN: tl.constexpr):
    """Which sequence, chunk and units a program has."""
    i = tl.program_id(0)
    i_bc = i // blocks
    o_n = (i % blocks) * BN + tl.arange(0, BN)
    return (i_bc // C).to(tl.int64), i_bc % C, o_n


# --- forward ----------------------------------------------------------------------------------------------------------


@triton.jit
def _forward_kernel(
    x, x_b, x_t, y, y_b, y_t, alpha, start, reset, r_b, r_t, h, h_b, h_t, T, N, C, L, blocks,
    BN: tl.constexpr, S: tl.constexpr, U: tl.constexpr, BMRU: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """States of one chunk; ``start [B, C, N]`` is the state that enters each chunk, or None for zeros."""
    i_b, i_c, o_n = _where(blocks, C, BN)
    m_n = o_n < N
    o_s = tl.arange(0, S)
    end = tl.minimum((i_c + 1) * L, T)
    first = (i_c * L + o_s * U).to(tl.int64)[:, None]
    p_x = x + i_b * x_b + first * x_t + o_n[None, :]
    p_y = y + i_b * y_b + first * y_t + o_n[None, :]
    p_h = h + i_b * h_b + first * h_t + o_n[None, :]
    level = tl.zeros([1, BN], ACC)
    if BMRU:
        level = tl.load(alpha + o_n, mask=m_n, other=0.0).to(ACC)[None, :]
    state = tl.zeros([1, BN], ACC)
    if start is not None:
        state = tl.load(start + (i_b * C + i_c) * N + o_n, mask=m_n, other=0.0).to(ACC)[None, :]

    for t in range(i_c * L, end, S * U):
        xs, ys, resets, values, seens = (), (), (), (), ()
        for u in tl.static_range(U):
            mask = (t + o_s * U + u < end)[:, None] & m_n[None, :]
            x_u, y_u = _load(p_x + u * x_t, p_y + u * y_t, mask, BMRU, ACC)
            xs += (x_u,)
            ys += (y_u,)
            if reset is not None:
                o_t = t + o_s * U + u
                p_r = reset + i_b * r_b + o_t.to(tl.int64) * r_t
                resets += (tl.load(p_r, mask=o_t < end, other=0)[:, None] != 0,)
        value, seen = tl.zeros([S, BN], ACC), tl.zeros([S, BN], tl.int32)
        for u in tl.static_range(U):
            write, new = _gate(xs[u], ys[u], level, BMRU)
            if reset is not None:  # a reset that is not overwritten at once is a write of zero
                new = tl.where(write, new, 0.0)
                write = write | resets[u]
            value, seen = tl.where(write, new, value), seen | write.to(tl.int32)
            values += (value,)
            seens += (seen,)
        before, state = _enter(seen, value, state, o_s, S)
        for u in tl.static_range(U):
            mask = (t + o_s * U + u < end)[:, None] & m_n[None, :]
            state_u = tl.where(seens[u] != 0, values[u], before)
            tl.store(p_h + u * h_t, state_u.to(h.dtype.element_ty), mask=mask)
        p_x += S * U * x_t
        p_y += S * U * y_t
        p_h += S * U * h_t


@triton.jit
def _last_write_kernel(
    x, x_b, x_t, y, y_b, y_t, alpha, reset, r_b, r_t, found, value, T, N, C, L, blocks,
    BN: tl.constexpr, R: tl.constexpr, BMRU: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """Each chunk's last write, ``found`` and ``value [B, C, N]``: read backwards, R rows at a time, until all units have one."""
    i_b, i_c, o_n = _where(blocks, C, BN)
    m_n = o_n < N
    o_r = tl.arange(0, R)
    begin = i_c * L
    level = tl.zeros([1, BN], ACC)
    if BMRU:
        level = tl.load(alpha + o_n, mask=m_n, other=0.0).to(ACC)[None, :]
    seen, latest = (o_n >= N)[None, :].to(tl.int32), tl.zeros([1, BN], ACC)
    t = tl.minimum(begin + L, T) - R
    missing = 1
    while missing > 0:
        o_t = (t + o_r).to(tl.int64)
        m_t = t + o_r >= begin
        mask = m_t[:, None] & m_n[None, :]
        p_x = x + i_b * x_b + o_t[:, None] * x_t + o_n[None, :]
        p_y = y + i_b * y_b + o_t[:, None] * y_t + o_n[None, :]
        x_u, y_u = _load(p_x, p_y, mask, BMRU, ACC)
        write, new = _gate(x_u, y_u, level, BMRU)
        if reset is not None:
            new = tl.where(write, new, 0.0)
            write = write | (tl.load(reset + i_b * r_b + o_t * r_t, mask=m_t, other=0)[:, None] != 0)
        index, last = tl.reduce((tl.where(write, o_r[:, None], -1), new), 0, _latest, keep_dims=True)
        latest = tl.where((seen == 0) & (index >= 0), last, latest)
        seen = seen | (index >= 0).to(tl.int32)
        missing = tl.where(t > begin, tl.sum(1 - seen), 0)
        t -= R
    p = (i_b * C + i_c) * N + o_n[None, :]
    tl.store(found + p, seen.to(tl.int8), mask=m_n[None, :])
    tl.store(value + p, latest.to(value.dtype.element_ty), mask=m_n[None, :])


@triton.jit
def _carry_state_kernel(found, value, h0, start, N, C, BN: tl.constexpr, BC: tl.constexpr):
    """From each chunk's last write to the state that enters each chunk, ``start [B, C, N]``."""
    i_b = tl.program_id(1).to(tl.int64)
    o_n = (tl.program_id(0) * BN + tl.arange(0, BN))[None, :]
    m_n = o_n < N
    o_c = tl.arange(0, BC)
    state = tl.zeros([1, BN], start.dtype.element_ty)
    if h0 is not None:
        state = tl.load(h0 + i_b * N + o_n, mask=m_n, other=0.0)
    tl.store(start + i_b * C * N + o_n, state, mask=m_n)
    for c in range(0, C - 1, BC):
        p = (i_b * C + c + o_c)[:, None] * N + o_n
        mask = (c + o_c < C - 1)[:, None] & m_n
        seen = tl.load(found + p, mask=mask, other=0).to(tl.int32)
        last = tl.load(value + p, mask=mask, other=0.0)
        all_seen, all_last = tl.associative_scan((seen, last), 0, _later)
        tl.store(start + p + N, tl.where(all_seen != 0, all_last, state), mask=mask)
        index, latest = tl.reduce((tl.where(seen != 0, o_c[:, None], -1), last), 0, _latest, keep_dims=True)
        state = tl.where(index >= 0, latest, state)


# --- backward ---------------------------------------------------------------------------------------------------------


@triton.jit
def _backward_kernel(
    g, g_b, g_t, into, x, x_b, x_t, y, y_b, y_t, alpha, h0, reset, r_b, r_t, h, h_b, h_t, slope,
    grad_x, dx_b, dx_t, grad_y, dy_b, dy_t, grad_alpha, grad_h0, T, N, C, L, blocks,
    BN: tl.constexpr, S: tl.constexpr, U: tl.constexpr, BMRU: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """Gradients of one chunk, from its last tile to its first.

    ``into [B, C, N]`` is the gradient that reaches each chunk's last state from later ones, or None for zero. With ``G``
    the gradient that reaches a state from all later steps: the gate gets ``G (value - h_prev)``, the value ``G`` where
    it was written, the state before ``G`` where it was kept.
    """
    i_b, i_c, o_n = _where(blocks, C, BN)
    m_n = o_n < N
    o_s = tl.arange(0, S)
    begin, end = i_c * L, tl.minimum((i_c + 1) * L, T)
    tiles = tl.cdiv(end - begin, S * U)
    first = (begin + (tiles - 1) * S * U + o_s * U).to(tl.int64)[:, None]
    p_x = x + i_b * x_b + first * x_t + o_n[None, :]
    p_y = y + i_b * y_b + first * y_t + o_n[None, :]
    p_dx = grad_x + i_b * dx_b + first * dx_t + o_n[None, :]
    if g is not None:
        p_g = g + i_b * g_b + first * g_t + o_n[None, :]
    if grad_y is not None:
        p_dy = grad_y + i_b * dy_b + first * dy_t + o_n[None, :]
    level, carry = tl.zeros([1, BN], ACC), tl.zeros([1, BN], ACC)
    if BMRU:
        level = tl.load(alpha + o_n, mask=m_n, other=0.0).to(ACC)[None, :]
    if into is not None:
        carry = tl.load(into + (i_b * C + i_c) * N + o_n, mask=m_n, other=0.0).to(ACC)[None, :]
    sum_alpha = tl.zeros([S, BN], ACC)

    for i in range(tiles):
        t = begin + (tiles - 1 - i) * S * U
        # The state before the tile: one row of h, or h0.
        p_before = h + i_b * h_b + (t - 1).to(tl.int64) * h_t + o_n
        state = tl.load(p_before, mask=m_n & (t > 0), other=0.0).to(ACC)[None, :]
        if h0 is not None:
            state += tl.load(h0 + i_b * N + o_n, mask=m_n & (t == 0), other=0.0).to(ACC)[None, :]
        xs, ys, gs, resets, befores, seens = (), (), (), (), (), ()
        for u in tl.static_range(U):
            mask = (t + o_s * U + u < end)[:, None] & m_n[None, :]
            x_u, y_u = _load(p_x + u * x_t, p_y + u * y_t, mask, BMRU, ACC)
            xs += (x_u,)
            ys += (y_u,)
            if g is not None:
                gs += (tl.load(p_g + u * g_t, mask=mask, other=0.0).to(ACC),)
            else:
                gs += (tl.zeros([S, BN], ACC),)
            if reset is not None:
                o_t = t + o_s * U + u
                p_r = reset + i_b * r_b + o_t.to(tl.int64) * r_t
                resets += (tl.load(p_r, mask=o_t < end, other=0)[:, None] != 0,)

        # Forward over the strands: the state before each step, as far as the strand itself knows it.
        value, seen = tl.zeros([S, BN], ACC), tl.zeros([S, BN], tl.int32)
        for u in tl.static_range(U):
            befores += (value,)
            seens += (seen,)
            write, new = _gate(xs[u], ys[u], level, BMRU)
            if reset is not None:
                new = tl.where(write, new, 0.0)
                write = write | resets[u]
            value, seen = tl.where(write, new, value), seen | write.to(tl.int32)
        before, _ = _enter(seen, value, state, o_s, S)

        # Backward over the strands: the gradient that leaves each towards the past.
        total, open_ = tl.zeros([S, BN], ACC), tl.full([S, BN], 1, tl.int32)
        for k in tl.static_range(U):
            u: tl.constexpr = U - 1 - k
            write, _ = _gate(xs[u], ys[u], level, BMRU)
            if reset is not None:
                write = write | resets[u]
            total = tl.where(write, 0.0, total + gs[u])
            open_ = tl.where(write, 0, open_)
        reached, carry = _reach(open_, total, carry, o_s, S)

        for k in tl.static_range(U):
            u: tl.constexpr = U - 1 - k
            mask = (t + o_s * U + u < end)[:, None] & m_n[None, :]
            write, new = _gate(xs[u], ys[u], level, BMRU)
            h_prev = tl.where(seens[u] != 0, befores[u], before)
            if reset is not None:
                h_prev = tl.where(resets[u], 0.0, h_prev)
            total = reached + gs[u]
            by_value = tl.where(write, total, 0.0)
            by_gate = total * (new - h_prev)
            if BMRU:
                x_u, y_u = xs[u], ys[u]
                far, near = slope * (tl.abs(x_u) - tl.abs(y_u)), slope * x_u
                by_gate = by_gate / (1.0 + far * far)
                side = tl.where(x_u < 0, -1.0, 1.0)
                side = tl.where((x_u != x_u) | (y_u != y_u), x_u + y_u, side)
                sum_alpha += by_value * side
                signed = tl.where(x_u > 0, by_gate, tl.where(x_u < 0, -by_gate, by_gate * 0.0))
                by_x = signed + by_value * level * 2.0 / (1.0 + near * near)
                by_y = tl.where(y_u > 0, -by_gate, tl.where(y_u < 0, by_gate, by_gate * 0.0))
                tl.store(p_dx + u * dx_t, by_x.to(grad_x.dtype.element_ty), mask=mask)
                tl.store(p_dy + u * dy_t, by_y.to(grad_y.dtype.element_ty), mask=mask)
            else:
                tl.store(p_dx + u * dx_t, by_value.to(grad_x.dtype.element_ty), mask=mask)
                if grad_y is not None:
                    tl.store(p_dy + u * dy_t, by_gate.to(grad_y.dtype.element_ty), mask=mask)
            if reset is not None:
                write = write | resets[u]
            reached = tl.where(write, 0.0, total)
        p_x -= S * U * x_t
        p_y -= S * U * y_t
        p_dx -= S * U * dx_t
        if g is not None:
            p_g -= S * U * g_t
        if grad_y is not None:
            p_dy -= S * U * dy_t

    if BMRU:
        tl.store(grad_alpha + (i_b * C + i_c) * N + o_n, tl.sum(sum_alpha, 0), mask=m_n)
    if i_c == 0:
        tl.store(grad_h0 + i_b * N + o_n[None, :], carry, mask=m_n[None, :])


@triton.jit
def _first_write_kernel(
    g, g_b, g_t, x, x_b, x_t, y, y_b, y_t, reset, r_b, r_t, passed, total, T, N, C, L, blocks,
    BN: tl.constexpr, R: tl.constexpr, BMRU: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """What each chunk's gradient adds to the state that entered it: the sum of ``g`` before its first write.

    ``passed [B, C, N]`` says that nothing in the chunk wrote, so that later chunks' gradients pass too. Reads forwards, R
    rows at a time, until all units have written.
    """
    i_b, i_c, o_n = _where(blocks, C, BN)
    m_n = o_n < N
    o_r = tl.arange(0, R)
    begin, end = i_c * L, tl.minimum((i_c + 1) * L, T)
    open_, sum_ = m_n[None, :].to(tl.int32), tl.zeros([1, BN], ACC)
    t = begin
    missing = 1
    while missing > 0:
        o_t = (t + o_r).to(tl.int64)
        m_t = t + o_r < end
        mask = m_t[:, None] & m_n[None, :]
        p_x = x + i_b * x_b + o_t[:, None] * x_t + o_n[None, :]
        p_y = y + i_b * y_b + o_t[:, None] * y_t + o_n[None, :]
        x_u, y_u = _load(p_x, p_y, mask, BMRU, ACC)
        write, _ = _gate(x_u, y_u, 1.0, BMRU)
        if reset is not None:
            write = write | (tl.load(reset + i_b * r_b + o_t * r_t, mask=m_t, other=0)[:, None] != 0)
        at = tl.min(tl.where(write, o_r[:, None], R), 0, keep_dims=True)  # the first row that writes, [1, BN]
        if g is not None:
            grad = tl.load(g + i_b * g_b + o_t[:, None] * g_t + o_n[None, :], mask=mask, other=0.0).to(ACC)
            sum_ += tl.sum(tl.where((o_r[:, None] < at) & (open_ != 0), grad, 0.0), 0, keep_dims=True)
        open_ = open_ & (at == R).to(tl.int32)
        t += R
        missing = tl.where(t < end, tl.sum(open_), 0)
    p = (i_b * C + i_c) * N + o_n[None, :]
    tl.store(passed + p, open_.to(tl.int8), mask=m_n[None, :])
    tl.store(total + p, sum_, mask=m_n[None, :])


@triton.jit
def _join_sums(open_, sum_, open_2, sum_2):
    """Two stretches of time as one, the later one first: gradients of the later pass through an open earlier one."""
    return open_ & open_2, sum_2 + tl.where(open_2 != 0, sum_, 0.0)


@triton.jit
def _carry_gradient_kernel(passed, total, grad_last, into, N, C, BN: tl.constexpr, BC: tl.constexpr):
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
        open_, sum_ = tl.associative_scan((open_, sum_), 0, _join_sums)
        reached = sum_ + tl.where(open_ != 0, carry, 0.0)
        tl.store(into + p - N, reached, mask=mask)
        carry = tl.sum(tl.where((o_j == BC - 1)[:, None], reached, 0.0), 0, keep_dims=True)


# --- host -------------------------------------------------------------------------------------------------------------


def bmru_forward(
    cand: Tensor, beta: Tensor, alpha: Tensor, h0: Tensor | None, reset: Tensor | None, h: Tensor, *, reverse: bool
) -> None:
    """Fill ``h [B, T, N]`` with the states of a BMRU; ``alpha [N]`` and ``h0 [B, N]`` have the dtype of ``cand``."""
    _forward(cand, beta, alpha.contiguous(), h0, reset, h, reverse)


def latch_forward(
    write: Tensor, value: Tensor, h0: Tensor | None, reset: Tensor | None, h: Tensor, *, reverse: bool
) -> None:
    """Fill ``h [B, T, N]`` with the states of a latch; ``write`` is boolean."""
    _forward(value, write.view(torch.uint8), None, h0, reset, h, reverse)


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


def _forward(
    x: Tensor, y: Tensor, alpha: Tensor | None, h0: Tensor | None, reset: Tensor | None, h: Tensor, reverse: bool
) -> None:
    B, T, N = h.shape
    plan = make_plan(B, T, N, x.itemsize, _U_FORWARD, h.device)
    inputs = *rows(x, reverse), *rows(y, reverse), alpha
    marks = flags(reset, reverse)
    sizes = T, N, plan.C, plan.L, plan.blocks
    kind = {"BMRU": alpha is not None, "ACC": _accumulator(h.dtype), "num_warps": plan.warps}
    start = states(h0)
    if plan.C > 1:
        found, value = h.new_empty(B, plan.C, N, dtype=torch.int8), h.new_empty(B, plan.C, N)
        _last_write_kernel[(plan.programs,)](
            *inputs, *marks, found, value, *sizes, BN=plan.BN, R=plan.S, **kind
        )  # fmt: skip
        h0, start = start, torch.empty_like(value)
        _carry_state_kernel[(plan.blocks, B)](found, value, h0, start, N, plan.C, BN=plan.BN, BC=32, num_warps=1)
    _forward_kernel[(plan.programs,)](
        *inputs, start, *marks, *rows(h, reverse), *sizes, BN=plan.BN, S=plan.S, U=plan.U, **kind
    )


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
    plan = make_plan(B, T, N, x.itemsize, _U_BACKWARD, h.device)
    grad = (None, 0, 0) if grad_h is None else rows(grad_h, reverse)
    inputs = *rows(x, reverse), *rows(y, reverse)
    marks = flags(reset, reverse)
    sizes = T, N, plan.C, plan.L, plan.blocks
    kind = {"BMRU": alpha is not None, "ACC": _accumulator(h.dtype), "num_warps": plan.warps}
    into = states(grad_last)
    if plan.C > 1:
        passed, total = h.new_empty(B, plan.C, N, dtype=torch.int8), h.new_empty(B, plan.C, N, dtype=dtype)
        _first_write_kernel[(plan.programs,)](*grad, *inputs, *marks, passed, total, *sizes, BN=plan.BN, R=plan.S, **kind)
        last, into = into, torch.empty_like(total)
        _carry_gradient_kernel[(plan.blocks, B)](passed, total, last, into, N, plan.C, BN=plan.BN, BC=32, num_warps=1)
    grad_alpha = h.new_empty(B * plan.C if alpha is not None else 0, N, dtype=dtype)
    grad_h0 = h.new_empty(B, N, dtype=dtype)
    outputs = *rows(grad_x, reverse), *((None, 0, 0) if grad_y is None else rows(grad_y, reverse))
    _backward_kernel[(plan.programs,)](
        *grad, into, *inputs, alpha, states(h0), *marks, *rows(h, reverse), slope, *outputs, grad_alpha, grad_h0,
        *sizes, BN=plan.BN, S=plan.S, U=plan.U, **kind,
    )  # fmt: skip
    return grad_alpha, grad_h0


def _accumulator(dtype: torch.dtype) -> tl.dtype:
    return tl.float64 if dtype == torch.float64 else tl.float32
