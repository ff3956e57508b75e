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
from multistable.ops.triton.launch import (
    Tiling,
    Tilings,
    Words,
    align,
    contiguous,
    contiguous_columns,
    launch_config,
    optional,
    strided,
    strided_reset,
    words,
)
from multistable.ops.triton.linear import accumulator, carry, numbers_per_word
from multistable.ops.triton.linear_steps import (
    _advance,
    _coefficients,
    _decay,
    _entering,
    _load_opens,
    _load_steps,
    _multiply,
    _prefixes,
    _repeat,
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
    unpack,
    word_pointer,
)

__all__ = ["linear_backward"]

_TILINGS: dict[Words, Tilings] = {
    "wide": ((6, Tiling(8, 3, warps=2, BN=64)), (1.8, Tiling(8, 6)), (0.75, Tiling(16, 3, warps=4))),
    "pairs": ((6, Tiling(8, 3, warps=2, BN=64)), (1.8, Tiling(8, 6)), (0.75, Tiling(16, 3, warps=4))),
    "unaligned": ((2.5, Tiling(8, 3, warps=4, BN=128)),),
    "single": ((2.5, Tiling(8, 3)),),
}


@triton.jit
def _ones_after_end(ars, ais, strands, end, U: tl.constexpr):
    """Coefficients that are 1 after the end, so that what reaches the last state enters unchanged."""
    res, ims = (), ()
    for u in tl.static_range(U):
        res += (tl.where(strands + u < end, ars[u], 1.0),)
        ims += (tl.where(strands + u < end, ais[u], 0.0),)
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
def _walk(
    p_g, p_a, p_h, p_da, da_t, p_db, db_t, start, N, reset, r_t, coefficients, carries, sums, wholes, t, end,
    S: tl.constexpr, U: tl.constexpr, MASKED: tl.constexpr,
    PAIRS: tl.constexpr, SUMMARY: tl.constexpr, HALF: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """Walk back over the tile of ``S * U`` steps from step t: store its gradients, and return what leaves it towards
    the past and the sums for a constant coefficient; with SUMMARY nothing is stored, and ``wholes`` are multiplied by
    its coefficients.

    ``p_g``, ``p_a`` (None if constant) and ``p_h``, the states before them, point to its steps [S, U, BN], ``p_da`` and
    ``p_db`` to the first one of each strand; ``start`` are the states before step 0. MASKED: the tile may reach past
    the end.
    """
    PER_WORD: tl.constexpr = 1 if HALF is None else 2
    o_s = strand_steps(t, S, U, True)
    o_u = (o_s + tl.arange(0, U)[None, :])[:, :, None]
    g_w, gi_w = _load_steps(p_g, N, o_u < end, U, PAIRS, MASKED)
    if p_a is not None:
        a_w, ai_w = _load_steps(p_a, N, o_u < end, U, PAIRS, MASKED)
    opens = _load_opens(reset, r_t, o_s, end, U, MASKED)
    if not SUMMARY:
        h_w, hi_w = _load_steps(p_h, N, (o_u < end) & (o_u > 0), U, PAIRS, True)
    re, im, carries_2, sums_2, wholes_2 = (), (), (), (), ()
    for f in tl.static_range(PER_WORD):
        if p_a is None:
            ars, ais = _repeat(coefficients[f], U)
        else:
            ars, ais = _unpack_steps(a_w, f, U, HALF, ACC), _unpack_steps(ai_w, f, U, HALF, ACC)
        if MASKED:
            ars, ais = _ones_after_end(ars, ais, o_s, end, U)
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
                if start is not None and u == 0:
                    hr, hi = tl.where(o_s == 0, start[f][0], hr), tl.where(o_s == 0, start[f][1], hi)
                if reset is not None:
                    hr, hi = tl.where(opens[u], hr, 0.0), tl.where(opens[u], hi, 0.0)
                dar, dai = _multiply(totals[u], totals_i[u], hr, -hi, PAIRS)
                if p_a is None:
                    sum_a, sum_ai = sum_a + dar, sum_ai + dai  # masked lanes have h = 0
                else:
                    _store(p_da + u * da_t + f, N * PER_WORD, dar, dai, PAIRS, o_s + u < end)
            sums_2 += ((sum_a, sum_ai),)
    if not SUMMARY:
        for u in tl.static_range(U):
            _store_step(p_db + u * db_t, N, re, im, u, o_s + u < end, HALF, PAIRS, MASKED)
    return carries_2, sums_2, wholes_2


@triton.jit
def _walk_tiles(
    g, g_t, a, a_t, h, h_t, da, da_t, db, db_t, start, N, reset, r_t, coefficients, carries, sums, wholes,
    begin, tiles, end,
    S: tl.constexpr, U: tl.constexpr, STAGES: tl.constexpr, MASKED: tl.constexpr,
    PAIRS: tl.constexpr, SUMMARY: tl.constexpr, HALF: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """Walk over so many tiles from step ``begin``, the last one first. Tensors point to the columns of step 0."""
    strands = strand_steps(begin + tiles * (S * U), S, U, True)
    p_g, p_h = tile_pointer(g, g_t, strands, U), tile_pointer(h, h_t, strands - 1, U)
    p_db, p_a, p_da = strand_pointer(db, db_t, strands), None, None
    if a is not None:
        p_a, p_da = tile_pointer(a, a_t, strands, U), strand_pointer(da, da_t, strands)
    for i in tl.range(tiles, num_stages=STAGES):
        p_g -= S * U * g_t
        p_h -= S * U * h_t
        p_db -= S * U * db_t
        if a is not None:
            p_a -= S * U * a_t
            p_da -= S * U * da_t
        carries, sums, wholes = _walk(
            p_g, p_a, p_h, p_da, da_t, p_db, db_t, start, N, reset, r_t, coefficients, carries, sums, wholes,
            begin + (tiles - 1 - i) * (S * U), end, S, U, MASKED, PAIRS, SUMMARY, HALF, ACC,
        )  # fmt: skip
    return carries, sums, wholes


@AnySize
def _backward_kernel(
    g, g_b, g_t, into, entered, a, a_b, a_t, h0, reset, r_b, r_t, h, h_b, h_t, grad_a, da_b, da_t, grad_b, db_b, db_t,
    grad_h0, product, final, T, N, C, L, blocks,
    BN: tl.constexpr, S: tl.constexpr, U: tl.constexpr, STAGES: tl.constexpr, ROW: tl.constexpr,
    PAIRS: tl.constexpr, CONSTANT: tl.constexpr, SUMMARY: tl.constexpr, PER_WORD: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """Gradients of one chunk; ``into [B, C, W]`` is what reaches its last state, nothing unless ``entered``. With
    SUMMARY only the chunk's product and what leaves it towards the past.

    A constant coefficient's gradient comes per chunk, ``grad_a [B * C, W]``. N counts words; ``into``,
    ``grad_a``, ``grad_h0``, ``product``, ``final`` and a constant ``a`` hold wide numbers, W to a row.
    """
    HALF: tl.constexpr = h.dtype.element_ty if PER_WORD == 2 else None
    i_b, i_c, o_n = program_indices(blocks, C, N, BN, ROW)
    N = N // ROW * ROW  # the compiler knows that imaginary parts are aligned, too
    half = N * PER_WORD
    W = half * (2 if PAIRS else 1)
    p_w = (i_b * C + i_c) * W + o_n * PER_WORD
    p_0 = i_b * W + o_n * PER_WORD
    coefficients = _coefficients(a + o_n * PER_WORD, N, PER_WORD, CONSTANT, PAIRS, ACC)
    carries = _entering(into + p_w, entered, N, PER_WORD, PAIRS, ACC)
    start = None
    if h0 is not None:
        start = _entering(h0 + p_0, 1, N, PER_WORD, PAIRS, ACC)
    sums, wholes = (), ()
    for f in tl.static_range(PER_WORD):
        sums += ((tl.zeros([S, BN], ACC), tl.zeros([S, BN], ACC)),)
        wholes += ((tl.full([1, BN], 1.0, ACC), tl.zeros([1, BN], ACC)),)
    g = word_pointer(g, PER_WORD) + i_b * stride_of(g_b, ROW) + o_n
    h = word_pointer(h, PER_WORD) + i_b * stride_of(h_b, ROW) + o_n
    db = word_pointer(grad_b, PER_WORD) + i_b * stride_of(db_b, ROW) + o_n
    da = grad_a
    if CONSTANT:
        a = None
    else:
        a = word_pointer(a, PER_WORD) + i_b * stride_of(a_b, ROW) + o_n
        da = grad_a + i_b * stride_of(da_b, ROW) + o_n * PER_WORD
    if reset is not None:
        reset += i_b * r_b
    g_t, a_t, h_t = stride_of(g_t, ROW), stride_of(a_t, ROW), stride_of(h_t, ROW)
    da_t, db_t = stride_of(da_t, ROW), stride_of(db_t, ROW)

    begin, end = i_c * L, tl.minimum((i_c + 1) * L, T)
    tiles = (end - begin) // (S * U)
    rest = begin + tiles * (S * U)  # the steps after the whole tiles come first, one of each strand at a time
    carries, sums, wholes = _walk_tiles(
        g, g_t, a, a_t, h, h_t, da, da_t, db, db_t, start, N, reset, r_t, coefficients, carries, sums, wholes,
        rest, tl.cdiv(end - rest, S), end, S, 1, 2, True, PAIRS, SUMMARY, HALF, ACC,
    )  # fmt: skip
    carries, sums, wholes = _walk_tiles(
        g, g_t, a, a_t, h, h_t, da, da_t, db, db_t, start, N, reset, r_t, coefficients, carries, sums, wholes,
        begin, tiles, end, S, U, STAGES, False, PAIRS, SUMMARY, HALF, ACC,
    )  # fmt: skip
    for f in tl.static_range(PER_WORD):
        if SUMMARY:
            _store(product + p_w + f, half, *wholes[f], PAIRS)
            _store(final + p_w + f, half, *carries[f], PAIRS)
        else:
            if CONSTANT:
                sum_a, sum_ai = sums[f]
                sum_a, sum_ai = tl.sum(sum_a, 0, keep_dims=True), tl.sum(sum_ai, 0, keep_dims=True)
                _store(grad_a + p_w + f, half, sum_a, sum_ai, PAIRS)
            if i_c == 0:
                _store(grad_h0 + p_0 + f, half, *carries[f], PAIRS)


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
    dtype = wide(h.dtype)
    grad_a = None if constant else h.new_empty(B, T, W, dtype=dtype)
    grad_h0 = h.new_empty(B, W, dtype=h.dtype if h0 is None else dtype)
    steps = partial(strided, reverse=reverse, per_word=per_word)
    ROW, (grad, saved, db, coefficient, da) = align(
        N, steps(grad_h), steps(h), steps(grad_b), steps(None if constant else a), strided(grad_a, reverse)
    )
    config = launch_config(B, T, N, _TILINGS[words(per_word, N, h)], loads, h.device)
    if grad_a is None:
        grad_a = h.new_empty(B * config.C, W, dtype=dtype)
        coefficient, da = (a.contiguous(), 0, 0), (grad_a, 0, 0)
    saved = contiguous(h0), *strided_reset(reset, reverse), *saved
    outputs = *da, *db, grad_h0
    sizes = T, N, config.C, config.L, config.column_blocks
    constants = {"PAIRS": pairs, "CONSTANT": constant, "PER_WORD": per_word, "ACC": accumulator(h.dtype)}
    options = config.kernel_options | constants | {"ROW": ROW}
    into = contiguous(grad_last)
    if config.C > 1:
        product, final = (h.new_empty(B, config.C, W, dtype=dtype) for _ in range(2))
        _backward_kernel[(config.programs,)](
            *grad,
            *optional(None, h, dtype),
            *coefficient,
            *saved,
            *outputs,
            product,
            final,
            *sizes,
            SUMMARY=True,
            **options,
        )
        into = carry(product, final, into, pairs=pairs, reverse=True)
    _backward_kernel[(config.programs,)](
        *grad, *optional(into, h, dtype), *coefficient, *saved, *outputs, h, h, *sizes, SUMMARY=False, **options
    )
    return grad_a.sum(dim=0) if constant else grad_a, grad_h0
