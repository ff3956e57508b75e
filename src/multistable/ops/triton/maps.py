"""Machines on a GPU (Triton): states from packed maps, the packing, and the adjoint over all states.

Time is cut into chunks, tiles and strands as in ``latch.py``. What stands for a stretch of time is the map that it
composes to, one word in one register: strands and chunks compose their steps' maps, then each walks from the state that
enters it, one look-up per step. ``map_words.py`` has the words.

Shapes and prefixes in comments are those of ``latch.py``. Steps past the end hold: they read the identity.
"""

from functools import partial
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from multistable.ops.maps import padding, state_bits
from multistable.ops.numerics import wide
from multistable.ops.triton.launch import (
    Tiling,
    Tilings,
    align,
    can_pack,
    contiguous,
    launch_config,
    optional,
    strided,
    strided_reset,
)
from multistable.ops.triton.map_words import _compose, _constant, _look_up, _prefixes, _word_pointer
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
)

__all__ = ["map_adjoint", "map_forward", "map_pack"]

_MANY: Tilings = (
    (6, Tiling(16, 3, warps=8, BN=64)),
    (3, Tiling(8, 6, warps=2)),
    (1.5, Tiling(8, 6, warps=4)),
)
_TILINGS: dict[int, Tilings] = {
    1: (*_MANY, (0.5, Tiling(16, 4, warps=8))),
    2: (*_MANY, (0.5, Tiling(16, 4, warps=4, BN=16))),  # six stages had 0.59 of copy, four 0.64
    3: ((6, Tiling(4, 6, warps=2, BN=64)), (2, Tiling(8, 6))),  # those of the latch
}
"""By bits of a state. Maps of bytes are few words, and composing them is cheap: strands share the columns."""


# --- kernels ----------------------------------------------------------------------------------------------------------


@triton.jit
def _walk(
    p_x, p_s, s_t, reset, r_t, state, total, t, end,
    BN: tl.constexpr, S: tl.constexpr, U: tl.constexpr, MASKED: tl.constexpr, WHOLE: tl.constexpr,
    BITS: tl.constexpr, WORD: tl.constexpr, ONES: tl.constexpr, PLACES: tl.constexpr, IDENTITY: tl.constexpr,
):  # fmt: skip
    """Walk over the tile of ``S * U`` steps from step t: the state after it, whose states are stored, or, if WHOLE, the
    map composed of ``total`` and the tile's maps.

    ``p_x`` points to its steps [S, U, BN], ``p_s`` to the first one of each strand [S, BN]. MASKED: the tile may reach
    past the end.
    """
    o_s = strand_steps(t, S, U)
    inside = (o_s + tl.arange(0, U)[None, :] < end)[:, :, None]
    words = split_steps(load(p_x, inside, IDENTITY, MASKED).to(WORD), U)
    maps = ()
    for u in tl.static_range(U):
        word = words[u]
        if reset is not None:
            mark = load(reset + (o_s + u).to(tl.int64) * r_t, o_s + u < end, 0, MASKED) != 0
            word = tl.where(mark, _constant(word, BITS, ONES, PLACES), word)
        maps += (word,)

    if S > 1 or WHOLE:  # each step's map becomes that of its strand up to it
        strand = maps[0]
        composed = (strand,)
        for u in tl.static_range(1, U):
            strand = _compose(strand, maps[u], BITS, ONES)
            composed += (strand,)
        maps = composed
    if WHOLE:
        if S > 1:
            strand = last_row(_prefixes(strand, BITS, ONES, IDENTITY)[1], S)
        total = _compose(total, strand, BITS, ONES)
    else:
        entering = state
        if S > 1:
            before, strand = _prefixes(strand, BITS, ONES, IDENTITY)
            entering = _look_up(before, state, BITS, ONES)
            state = _look_up(last_row(strand, S), state, BITS, ONES)
        for u in tl.static_range(U):
            state_u = _look_up(maps[u], entering, BITS, ONES)
            store(p_s + u * s_t, state_u.to(p_s.dtype.element_ty), o_s + u < end, MASKED)
            if S == 1:
                entering = state_u
        if S == 1:
            state = entering
    return state, total


@AnySize
def _forward_kernel(
    x, x_b, x_t, start, entered, reset, r_b, r_t, s, s_b, s_t, whole, T, N, C, L, blocks,
    BN: tl.constexpr, S: tl.constexpr, U: tl.constexpr, STAGES: tl.constexpr, ROW: tl.constexpr,
    BITS: tl.constexpr, PER_WORD: tl.constexpr, WORD: tl.constexpr, ONES: tl.constexpr, PLACES: tl.constexpr,
    IDENTITY: tl.constexpr,
):  # fmt: skip
    """States of one chunk from ``start [B, C, N]``, the one that enters each (0 unless ``entered``), or, if
    ``whole [B, C, N]`` is given, the map of the whole chunk and no states. N counts words."""
    WHOLE: tl.constexpr = whole is not None
    i_b, i_c, o_n = program_indices(blocks, C, N, BN, ROW)
    p_start = _word_pointer(start, PER_WORD) + (i_b * C + i_c) * N + o_n
    state = tl.load(p_start, mask=everywhere_if(entered, p_start), other=0).to(WORD)
    total = tl.full([1, BN], IDENTITY, WORD)
    if reset is not None:
        reset += i_b * r_b
    x = _word_pointer(x, PER_WORD) + i_b * stride_of(x_b, ROW) + o_n
    s = _word_pointer(s, PER_WORD) + i_b * stride_of(s_b, ROW) + o_n
    x_t, s_t = stride_of(x_t, ROW), stride_of(s_t, ROW)

    begin, end = i_c * L, tl.minimum((i_c + 1) * L, T)
    rest = begin + (end - begin) // (S * U) * (S * U)
    strands = strand_steps(begin, S, U)
    p_x, p_s = tile_pointer(x, x_t, strands, U), strand_pointer(s, s_t, strands)
    for t in tl.range(begin, rest, S * U, num_stages=STAGES):
        state, total = _walk(
            p_x, p_s, s_t, reset, r_t, state, total, t, end, BN, S, U, False, WHOLE, BITS, WORD, ONES, PLACES, IDENTITY
        )
        p_x += S * U * x_t
        p_s += S * U * s_t
    strands = strand_steps(rest, S, 1)  # less than a tile is left: one step of each strand at a time
    p_x, p_s = tile_pointer(x, x_t, strands, 1), strand_pointer(s, s_t, strands)
    for t in tl.range(rest, end, S, num_stages=2):
        state, total = _walk(
            p_x, p_s, s_t, reset, r_t, state, total, t, end, BN, S, 1, True, WHOLE, BITS, WORD, ONES, PLACES, IDENTITY
        )
        p_x += S * x_t
        p_s += S * s_t
    if WHOLE:
        p_whole = _word_pointer(whole, PER_WORD) + (i_b * C + i_c) * N + o_n
        tl.store(p_whole, total.to(p_whole.dtype.element_ty))


@AnySize
def _carry_kernel(
    whole, s0, start, N, C, BN: tl.constexpr, BITS: tl.constexpr, PER_WORD: tl.constexpr, WORD: tl.constexpr,
    ONES: tl.constexpr,
):  # fmt: skip
    """From each chunk's map to the state that enters each chunk, ``start [B, C, N]``."""
    whole, start = _word_pointer(whole, PER_WORD), _word_pointer(start, PER_WORD)
    i_b = tl.program_id(1).to(tl.int64)
    o_n = tl.minimum(tl.program_id(0) * BN, N - BN) + tl.arange(0, BN)
    state = tl.zeros([BN], WORD)
    if s0 is not None:
        state = tl.load(_word_pointer(s0, PER_WORD) + i_b * N + o_n).to(WORD)
    for c in range(C):
        p = (i_b * C + c) * N + o_n
        tl.store(start + p, state.to(start.dtype.element_ty))
        state = _look_up(tl.load(whole + p).to(WORD), state, BITS, ONES)


@triton.jit
def _pack_kernel(maps, words, M, K, PADDING: tl.constexpr, KP: tl.constexpr, BITS: tl.constexpr, BM: tl.constexpr):
    """Words ``[M]`` of maps ``[M, K]``; KP is the next power of two."""
    o_m = tl.program_id(0).to(tl.int64) * BM + tl.arange(0, BM)
    o_k = tl.arange(0, KP)[None, :]
    p = maps + o_m[:, None] * K + o_k
    word = tl.load(p, mask=(o_m < M)[:, None] & (o_k < K), other=0).to(tl.int64) << (BITS * o_k).to(tl.int64)
    tl.store(words + o_m, (tl.sum(word, 1) + PADDING).to(words.dtype.element_ty), mask=o_m < M)


@AnySize
def _adjoint_kernel(
    x, x_b, x_t, grad, g_b, g_t, reset, r_b, r_t, lam, l_b, l_t, start, T, N, K, blocks,
    BN: tl.constexpr, KP: tl.constexpr, BITS: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """Walk against the order of the scan, which the strides have turned, with the K sums of each unit [BN, KP]."""
    i_b = (tl.program_id(0) // blocks).to(tl.int64)
    o_n = ((tl.program_id(0) % blocks) * BN + tl.arange(0, BN))[:, None]
    o_k = tl.arange(0, KP)[None, :]
    m_n = o_n < N
    mask = m_n & (o_k < K)
    x_t, g_t, l_t = x_t.to(tl.int64), g_t.to(tl.int64), l_t.to(tl.int64)
    p_x = _word_pointer(x, 1) + i_b * x_b + o_n
    p_g, p_l = grad + i_b * g_b + o_n * K + o_k, lam + i_b * l_b + o_n * K + o_k
    p_r = reset
    if reset is not None:
        p_r += i_b * r_b
    carry = tl.zeros([BN, KP], ACC)
    for _ in range(T):
        total = tl.load(p_g, mask=mask, other=0).to(ACC) + carry
        tl.store(p_l, total.to(lam.dtype.element_ty), mask=mask)
        word = tl.load(p_x, mask=m_n, other=0)
        to = ((word >> (BITS * o_k).to(word.dtype)) & ((1 << BITS) - 1)).to(tl.int32)
        carry = tl.gather(total, to, 1)
        if reset is not None:
            carry = tl.where(tl.load(p_r) != 0, 0.0, carry)
            p_r += r_t
        p_x += x_t
        p_g += g_t
        p_l += l_t
    tl.store(start + (i_b * N + o_n) * K + o_k, carry, mask=mask)


# --- host -------------------------------------------------------------------------------------------------------------


def map_pack(states: Tensor, words: Tensor) -> None:
    """Fill ``words [B, T, N]`` from maps ``[B, T, N, K]`` of states below K."""
    K, BM = states.shape[3], 256
    sizes = {"PADDING": padding(K), "KP": triton.next_power_of_2(K), "BITS": state_bits(K), "BM": BM}
    _pack_kernel[(triton.cdiv(words.numel(), BM),)](states.contiguous(), words, words.numel(), K, **sizes)


def map_forward(
    words: Tensor, s0: Tensor | None, reset: Tensor | None, states: Tensor, *, K: int, reverse: bool
) -> None:
    """Fill ``states [B, T, N]`` of machines with K states from the words of their maps; all states are uint8."""
    B, T, N = states.shape
    s0 = contiguous(s0)
    per_word = 4 if can_pack(words, states, s0, count=4) else 1
    W, constants = N // per_word, _constants(state_bits(K), per_word)
    steps = partial(strided, reverse=reverse, per_word=per_word)
    ROW, (inputs, outputs) = align(W, steps(words), steps(states))
    config = launch_config(B, T, W, _TILINGS[min(state_bits(K), 3)], per_word * words.itemsize, states.device)
    resets = strided_reset(reset, reverse)
    sizes, start = (T, W, config.C, config.L, config.column_blocks), s0
    launch = partial(_forward_kernel[(config.programs,)], ROW=ROW)
    if config.C > 1:
        whole, start = words.new_empty(B, config.C, N), states.new_empty(B, config.C, N)
        launch(
            *inputs,
            *optional(None, states, states.dtype),
            *resets,
            *outputs,
            whole,
            *sizes,
            **config.kernel_options,
            **constants,
        )
        columns: dict[str, Any] = {key: constants[key] for key in ("BITS", "PER_WORD", "WORD", "ONES")}
        _carry_kernel[(config.column_blocks, B)](whole, s0, start, W, config.C, BN=config.BN, num_warps=1, **columns)
    launch(
        *inputs,
        *optional(start, states, states.dtype),
        *resets,
        *outputs,
        None,
        *sizes,
        **config.kernel_options,
        **constants,
    )


def map_adjoint(words: Tensor, grad: Tensor, reset: Tensor | None, lam: Tensor, *, reverse: bool) -> Tensor:
    """Fill ``lam [B, T, N, K]`` with the adjoint of ``grad``; return that before the first step, wide."""
    B, T, N, K = grad.shape
    KP, dtype = triton.next_power_of_2(K), wide(grad.dtype)
    BN = min(128 // max(KP, 4), triton.next_power_of_2(N))  # a warp has four numbers per thread
    blocks, start = triton.cdiv(N, BN), lam.new_empty(B, N, K, dtype=dtype)
    steps = partial(strided, reverse=not reverse)
    rows = *steps(words), *steps(grad.flatten(2)), *strided_reset(reset, not reverse)
    acc = tl.float64 if dtype == torch.float64 else tl.float32
    sizes = {"BN": BN, "KP": KP, "BITS": state_bits(K), "ACC": acc, "num_warps": 1}
    _adjoint_kernel[(B * blocks,)](*rows, *steps(lam.flatten(2)), start, T, N, K, blocks, **sizes)
    return start


def _constants(bits: int, per_word: int) -> dict[str, Any]:
    """The words of maps with ``bits`` bits per state, ``per_word`` of them in each."""
    ones = 0x01010101 if per_word == 4 else 1
    identity, places = sum(k << bits * k for k in range(1 << bits)), sum(1 << bits * k for k in range(1 << bits))
    word = tl.uint64 if bits == 4 else tl.uint32
    sizes = {"BITS": bits, "PER_WORD": per_word, "WORD": word}
    return sizes | {"ONES": ones, "PLACES": places, "IDENTITY": identity * ones}
