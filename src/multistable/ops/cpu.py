"""The scans on the CPU: compiled loops over time, shared among as many threads as torch uses.

The work is cut into *spans*. A span is a few sequences of the batch. If there are fewer sequences than threads, a
latch is cut into steps instead: a short look back finds the state a span starts from, because a unit forgets its past
when it is written. The linear recurrence is then cut into groups of units.

States do not depend on the cuts. Gradients do, in their rounding, where a latch is cut into steps: sums over time are
formed span by span, so they repeat bit for bit only with the same number of threads. Which thread takes which span
never matters.

Tensors are read in place whatever their strides of batch and time, so halves of a projection and time-major tensors
cost no copy. The BMRU's forward compares bit patterns, so bfloat16 and float16, which numba does not support, move half
the bytes; their backward and the linear recurrence go through float32.
"""

import math
from collections.abc import Callable
from functools import cache, partial
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from multistable.ops import cpu_kernels
from multistable.ops.numerics import wide
from multistable.ops.threads import for_each

__all__ = ["bmru_backward", "bmru_forward", "latch_backward", "latch_forward", "linear_backward", "linear_forward"]

kernels: Any = cpu_kernels  # untyped
Array = npt.NDArray[Any]
Rows = tuple[Array, int, int]  # flat array, stride of the batch, stride of time
Span = tuple[int, int, int, int]  # sequences from and to, steps or units from and to
LookBack = Callable[[int, int, int, Array], int]  # sequence, floor, lo, unknown [N] -> first step to read
_BITS = {2: torch.uint16, 4: torch.uint32, 8: torch.uint64}
_SPANS_PER_THREAD = 4  # with one each, all would wait for the thread that begins last
_SMALLEST_SPAN = 1 << 18  # elements: a forward over these takes 0.14 ms, handing out a span about 0.05 ms


def bmru_forward(
    cand: Tensor, beta: Tensor, alpha: Tensor, h0: Tensor | None, reset: Tensor | None, h: Tensor, *, reverse: bool
) -> None:
    """Fill ``h [B, T, N]`` with the states of a BMRU; ``h0 [B, N]`` has the dtype of ``cand``."""
    c, b, levels = (_rows(_bits(x), h) for x in (cand, beta, alpha.to(cand.dtype)))
    T, resets, inf = h.shape[1], _reset_rows(reset), _infinity(h.dtype)

    def scan(span: Span, start: Rows, out: Rows) -> None:
        kernels.bmru_forward(span, T, reverse, c, b, levels, start, resets, out, inf)

    _fill_states(scan, partial(_bmru_look_back, cand, beta, reset, reverse), h0, h)


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
    dtype = wide(h.dtype)
    out_cand, out_beta = _widened(grad_cand, dtype), _widened(grad_beta, dtype)
    slope = (np.float64 if dtype == torch.float64 else np.float32)(alpha_surr * math.pi)
    alpha = alpha.to(cand.dtype)
    g, c, b, levels, start, states = (_rows(x, h, dtype) for x in (grad_h, cand, beta, alpha, h0, h))
    T, resets = h.shape[1], _reset_rows(reset)

    def scan(span: Span, last: Rows, outputs: list[Rows], d_alpha: Rows, d_start: Rows) -> None:
        saved = c, b, levels, start, resets, states
        kernels.bmru_backward(span, T, reverse, slope, g, last, *saved, *outputs, d_alpha, d_start)

    look_back = partial(_bmru_look_back, cand, beta, reset, not reverse)
    grad_alpha, grad_h0 = _fill_gradients(scan, look_back, grad_last, h, [out_cand, out_beta])
    _copy_back(out_cand, grad_cand)
    _copy_back(out_beta, grad_beta)
    return grad_alpha.sum(dim=0), grad_h0


def latch_forward(
    write: Tensor, value: Tensor, h0: Tensor | None, reset: Tensor | None, h: Tensor, *, reverse: bool
) -> None:
    """Fill ``h [B, T, N]`` with the states of a latch; ``write`` is boolean."""
    (_, T, N), resets = h.shape, _reset_rows(reset)
    gates, values = _rows(write, h, torch.bool), _rows(_bits(value), h)

    def scan(span: Span, start: Rows, out: Rows) -> None:
        kernels.latch_forward(span, T, reverse, gates, values, start, resets, out, N)

    _fill_states(scan, partial(_latch_look_back, write, reset, reverse), h0, h)


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
    dtype = wide(h.dtype)
    out_value = _widened(grad_value, dtype)
    sink = h.new_empty(h.shape[2], dtype=dtype)  # one row that every step overwrites
    out_write = sink if grad_write is None else _widened(grad_write, dtype)
    g, values, start, states = (_rows(x, h, dtype) for x in (grad_h, value, h0, h))
    (_, T, N), gates, resets = h.shape, _rows(write, h, torch.bool), _reset_rows(reset)

    def scan(span: Span, last: Rows, outputs: list[Rows], _: Rows, d_start: Rows) -> None:
        kernels.latch_backward(span, T, reverse, g, last, gates, values, start, resets, states, *outputs, d_start, N)

    look_back = partial(_latch_look_back, write, reset, not reverse)
    _, grad_h0 = _fill_gradients(scan, look_back, grad_last, h, [out_write, out_value])
    _copy_back(out_value, grad_value)
    if grad_write is not None:
        _copy_back(out_write, grad_write)
    return grad_h0


def linear_forward(
    a: Tensor, b: Tensor, h0: Tensor | None, reset: Tensor | None, h: Tensor, *, pairs: bool, reverse: bool
) -> None:
    """Fill ``h`` with the states of a linear recurrence; ``pairs``: real parts, then imaginary on the last axis."""
    out = _widened(h, wide(h.dtype))
    rows = [row for x in (a, b, h0) for row in _real_rows(x, out, pairs)]
    arguments = h.shape[1], reverse, *rows, _reset_rows(reset), *_real_rows(out, out, pairs)
    kernel = kernels.pairs_forward if pairs else kernels.linear_forward
    _run(_spans_of_units(h.chunk(2, dim=-1)[0] if pairs else h), lambda _, span: kernel(span, *arguments))
    _copy_back(out, h)


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
    out = _widened(grad_b, wide(h.dtype))
    grad_h0 = out.new_empty(h.shape[0], h.shape[2])
    grad_a = out.new_zeros(h.shape if a.ndim == 3 else grad_h0.shape)
    rows = [row for x in (grad_h, grad_last, a, h0) for row in _real_rows(x, out, pairs)]
    outputs = [row for x in (h, grad_a, out, grad_h0) for row in _real_rows(x, out, pairs)]
    arguments = h.shape[1], reverse, *rows, _reset_rows(reset), *outputs
    kernel = kernels.pairs_backward if pairs else kernels.linear_backward
    _run(_spans_of_units(h.chunk(2, dim=-1)[0] if pairs else h), lambda _, span: kernel(span, *arguments))
    _copy_back(out, grad_b)
    return grad_a if a.ndim == 3 else grad_a.sum(dim=0), grad_h0


def _spans_of_sequences(h: Tensor, end: int) -> list[Span]:
    """Cut ``h [B, T, N]`` into spans of whole sequences, up to step or unit ``end``; none if these are too few."""
    B, count = h.shape[0], _count_spans(h)
    enough = min(count, torch.get_num_threads()) <= B
    return [(lo, hi, 0, end) for lo, hi in _cut(B, min(count, B))] if enough else []


def _spans_of_steps(h: Tensor) -> list[Span]:
    """Cut ``h [B, T, N]`` into spans of sequences, or, if these are fewer than threads, of some steps of one each."""
    B, T, _ = h.shape
    count = min(-(-_count_spans(h) // B), T)
    return _spans_of_sequences(h, T) or [(b, b + 1, lo, hi) for b in range(B) for lo, hi in _cut(T, count)]


def _spans_of_units(h: Tensor) -> list[Span]:
    """Cut ``h [B, T, N]`` into spans of sequences, or, if these are fewer than threads, of some units of all."""
    B, _, N = h.shape
    width = max(16, -(-N // min(_count_spans(h), torch.get_num_threads())))  # whole cache lines
    return _spans_of_sequences(h, N) or [(0, B, lo, min(lo + width, N)) for lo in range(0, N, width)]


def _bmru_look_back(cand: Tensor, beta: Tensor, reset: Tensor | None, flip: bool) -> LookBack:
    rows = _rows(_bits(cand), cand), _rows(_bits(beta), cand), _reset_rows(reset), _infinity(cand.dtype)
    return lambda b, floor, lo, unknown: kernels.bmru_look_back(b, floor, lo, cand.shape[1], flip, *rows, unknown)


def _latch_look_back(write: Tensor, reset: Tensor | None, flip: bool) -> LookBack:
    rows = _rows(write, write), _reset_rows(reset)
    return lambda b, floor, lo, unknown: kernels.latch_look_back(b, floor, lo, write.shape[1], flip, *rows, unknown)


def _fill_states(
    scan: Callable[[Span, Rows, Rows], None], look_back: Callable[[], LookBack], h0: Tensor | None, h: Tensor
) -> None:
    """Fill ``h [B, T, N]`` by ``scan(span, start, out)``, span by span; ``look_back()`` is called if steps are cut."""
    (B, T, N), spans, out = h.shape, _spans_of_steps(h), _rows(_bits(h), h)
    if spans[0][3] == T:
        start = _rows(_bits(h0), h)
        _run(spans, lambda p, span: scan(span, start, out))
        return
    zeros = _rows(None, h)
    enter = _entering(
        spans, h.new_zeros(B, N) if h0 is None else h0, look_back(),
        prelude=lambda span, state: scan(span, zeros, _rows(_bits(state), h)),
        join=lambda state, unknown, earlier: torch.where(unknown, earlier, state),
    )  # fmt: skip
    _run(spans, lambda p, span: scan(span, _rows(_bits(enter[p]), h), out))


def _fill_gradients(
    scan: Callable[[Span, Rows, list[Rows], Rows, Rows], None],
    look_back: Callable[[], LookBack],
    grad_last: Tensor | None,
    h: Tensor,
    outputs: list[Tensor],
) -> tuple[Tensor, Tensor]:
    """Fill ``outputs`` by ``scan(span, last, outputs, sums, d_start)``, span by span.

    ``sums`` and ``d_start`` have one row per sequence or per span. Returns the sums ``[.., N]`` and the gradient of h0.
    """
    (B, T, N), spans, dtype = h.shape, _spans_of_steps(h), outputs[0].dtype
    rows = [_rows(x, h, dtype) for x in outputs]
    if spans[0][3] == T:
        last, sums, grad_h0 = _rows(grad_last, h, dtype), *(h.new_empty(B, N, dtype=dtype) for _ in range(2))
        _run(spans, lambda p, span: scan(span, last, rows, _rows(sums, h), _rows(grad_h0, h)))
        return sums, grad_h0
    zeros = _rows(None, h, dtype)

    def prelude(span: Span, total: Tensor) -> None:
        *sinks, sum_sink = (_rows(sink, h) for sink in h.new_empty(len(rows) + 1, N, dtype=dtype))
        scan(span, zeros, sinks, sum_sink, _rows(total, h))  # every step overwrites the rows of the one before

    enter = _entering(
        spans, h.new_zeros(B, N, dtype=dtype) if grad_last is None else grad_last.to(dtype), look_back(), prelude,
        join=lambda total, unknown, earlier: total + torch.where(unknown, earlier, 0.0),
    )  # fmt: skip
    sums, leaving = (h.new_empty(len(spans), N, dtype=dtype) for _ in range(2))
    _run(spans, lambda p, span: scan(span, _rows(enter[p], h), rows, _rows(sums[p], h), _rows(leaving[p], h)))
    return sums, leaving[[p for p, span in enumerate(spans) if span[3] == T]]


def _entering(
    spans: list[Span],
    first: Tensor,
    look_back: LookBack,
    prelude: Callable[[Span, Tensor], None],
    join: Callable[[Tensor, Tensor, Tensor], Tensor],
) -> Tensor:
    """The state (or gradient) that enters each span of steps, ``[spans, N]``: ``first [B, N]`` at a sequence's start.

    Elsewhere ``prelude`` runs over the steps before the span, from so far back that every unit is written, but at most
    over one span. For units that are still ``unknown``, ``join`` adds what entered that span. So a unit that never
    writes costs at most one more pass.
    """
    enter = first.new_zeros(len(spans), first.shape[1])
    unknown = torch.ones_like(enter, dtype=torch.bool)

    def look(p: int, span: Span) -> None:
        b, _, lo, _ = span
        if lo > 0:
            start = look_back(b, spans[p - 1][2], lo, unknown[p].numpy())
            prelude((b, b + 1, start, lo), enter[p])

    _run(spans, look)
    for p, (b, _, lo, _) in enumerate(spans):
        enter[p] = first[b] if lo == 0 else join(enter[p], unknown[p], enter[p - 1])
    return enter


def _count_spans(h: Tensor) -> int:
    """How many spans keep all threads busy without being too small; a single thread takes all at once."""
    threads = torch.get_num_threads()
    return 1 if threads == 1 else max(1, min(_SPANS_PER_THREAD * threads, h.numel() // _SMALLEST_SPAN))


def _cut(size: int, count: int) -> list[tuple[int, int]]:
    return list(pairwise(size * i // count for i in range(count + 1)))


def _run(spans: list[Span], work: Callable[[int, Span], None]) -> None:
    """Call ``work(number, span)`` for every span.

    ``work`` must not make rows of a tensor that may require a gradient: the operator that calls this disables autograd
    in the calling thread only.
    """
    for_each(spans, work, torch.get_num_threads())


def _rows(x: Tensor | None, like: Tensor, dtype: torch.dtype | None = None) -> Rows:
    """``x`` of shape [B, T, N], [B, N] or [N] as rows, cast to ``dtype`` if given; None is a row of zeros."""
    if x is None:
        x = like.new_zeros(like.shape[-1], dtype=dtype or _BITS[like.itemsize])
    x = x if dtype is None else x.to(dtype)
    if x.stride(-1) != 1 and x.shape[-1] > 1:
        x = x.contiguous()
    batch, time = (*x.stride()[:-1], 0, 0)[:2]
    extent = 1 + sum((size - 1) * stride for size, stride in zip(x.shape[:-1], x.stride()[:-1], strict=True))
    flat = x.as_strided((extent + x.shape[-1] - 1,), (1,))
    return flat.numpy(), batch, time


def _real_rows(x: Tensor | None, like: Tensor, pairs: bool) -> list[Rows]:
    """The rows of ``x`` in the dtype of ``like``; with ``pairs``, those of its real and of its imaginary half."""
    halves = [x] if not pairs else [None, None] if x is None else x.to(like.dtype).chunk(2, dim=-1)
    return [_rows(half, like, like.dtype) for half in halves]


def _reset_rows(reset: Tensor | None) -> Rows:
    """``reset [B, T]`` as rows of one flag per step; None is a single False."""
    if reset is None:
        return np.zeros(1, dtype=np.bool_), 0, 0
    return reset.contiguous().flatten().numpy(), reset.shape[1], 1


def _bits(x: Tensor | None) -> Tensor | None:
    """The bit patterns of floats as unsigned integers."""
    return None if x is None else x.view(_BITS[x.itemsize])


def _widened(x: Tensor, dtype: torch.dtype) -> Tensor:
    """An output for the kernel: ``x`` itself, or, for half precision, a wide tensor that is copied to it afterwards."""
    return x if x.dtype == dtype else x.new_empty(x.shape, dtype=dtype)


def _copy_back(source: Tensor, target: Tensor) -> None:
    if source is not target:
        target.copy_(source)


@cache
def _infinity(dtype: torch.dtype) -> Array:
    """The bit pattern of infinity, ``[1]``."""
    return torch.tensor([math.inf], dtype=dtype, device="cpu").view(_BITS[dtype.itemsize]).numpy()
