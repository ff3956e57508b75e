"""The scans on the CPU: compiled loops over time, shared among as many threads as torch uses.

Each thread takes some sequences of the batch, or, if there are fewer sequences than threads, some units. Results do not
depend on the number of threads.

Tensors are read in place whatever their strides of batch and time, so halves of a projection and time-major tensors
cost no copy. The BMRU's forward compares bit patterns, so bfloat16 and float16, which numba does not support, move half
the bytes; their backward and the linear recurrence go through float32.
"""

import math
from collections.abc import Callable
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from multistable.ops import cpu_kernels
from multistable.ops.maps import padding, state_bits
from multistable.ops.numerics import wide
from multistable.ops.threads import for_each

__all__ = [
    "bmru_backward",
    "bmru_forward",
    "latch_backward",
    "latch_forward",
    "linear_backward",
    "linear_forward",
    "map_adjoint",
    "map_forward",
    "map_pack",
]

kernels: Any = cpu_kernels  # untyped
Array = npt.NDArray[Any]
Rows = tuple[Array, int, int]  # flat array, stride of the batch, stride of time
Span = tuple[int, int, int, int]  # sequences from and to, units from and to
_BITS = {1: torch.uint8, 2: torch.uint16, 4: torch.uint32, 8: torch.uint64}
_SPANS_PER_THREAD = 4  # with one each, all would wait for the thread that begins last
_SMALLEST_SPAN = 1 << 18  # elements: a forward over these takes 0.14 ms, handing out a span about 0.05 ms


def bmru_forward(
    cand: Tensor, beta: Tensor, alpha: Tensor, h0: Tensor | None, reset: Tensor | None, h: Tensor, *, reverse: bool
) -> None:
    """Fill ``h [B, T, N]`` with the states of a BMRU; ``h0 [B, N]`` has the dtype of ``cand``."""
    c, b, levels, start, out = (_rows(_bits(x), h) for x in (cand, beta, _copy(alpha, cand.dtype), h0, h))
    _run(kernels.bmru_forward, h, reverse, c, b, levels, start, _reset_rows(reset), out, _infinity(h.dtype))


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
    grad_alpha, grad_h0 = (h.new_empty(h.shape[0], h.shape[2], dtype=dtype) for _ in range(2))
    inputs = [_rows(x, h, dtype) for x in (grad_h, grad_last, cand, beta, _copy(alpha, cand.dtype), h0)]
    outputs = [_rows(x, h, dtype) for x in (h, out_cand, out_beta, grad_alpha, grad_h0)]
    _run(kernels.bmru_backward, h, reverse, slope, *inputs, _reset_rows(reset), *outputs)
    _copy_back(out_cand, grad_cand)
    _copy_back(out_beta, grad_beta)
    return grad_alpha.sum(dim=0), grad_h0


def latch_forward(
    write: Tensor, value: Tensor, h0: Tensor | None, reset: Tensor | None, h: Tensor, *, reverse: bool
) -> None:
    """Fill ``h [B, T, N]`` with the states of a latch; ``write`` is boolean."""
    values, start, out = (_rows(_bits(x), h) for x in (value, h0, h))
    _run(kernels.latch_forward, h, reverse, _rows(write, h, torch.bool), values, start, _reset_rows(reset), out)


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
    grad_h0 = h.new_empty(h.shape[0], h.shape[2], dtype=dtype)
    gradients = _rows(grad_h, h, dtype), _rows(grad_last, h, dtype)
    inputs = _rows(write, h, torch.bool), _rows(value, h, dtype), _rows(h0, h, dtype)
    outputs = [_rows(x, h, dtype) for x in (h, out_write, out_value, grad_h0)]
    _run(kernels.latch_backward, h, reverse, *gradients, *inputs, _reset_rows(reset), *outputs)
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
    kernel = kernels.pairs_forward if pairs else kernels.linear_forward
    units = h.chunk(2, dim=-1)[0] if pairs else h
    _run(kernel, units, reverse, *rows, _reset_rows(reset), *_real_rows(out, out, pairs))
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
    kernel = kernels.pairs_backward if pairs else kernels.linear_backward
    _run(kernel, h.chunk(2, dim=-1)[0] if pairs else h, reverse, *rows, _reset_rows(reset), *outputs)
    _copy_back(out, grad_b)
    return grad_a if a.ndim == 3 else grad_a.sum(dim=0), grad_h0


def map_pack(states: Tensor, words: Tensor) -> None:
    """Fill ``words [B, T, N]`` from maps ``[B, T, N, K]`` of states below K."""
    K = states.shape[3]
    if K % 8 == 0 and states.is_contiguous() and states.data_ptr() % 8 == 0:
        eights = states.flatten(2).view(torch.uint64)
        _run(kernels.map_pack_eights, words, False, _rows(eights, eights), _rows(_bits(words), words), K, state_bits(K))
        return
    rows = _rows(states.flatten(2), states), _rows(_bits(words), words)
    rest = np.array([padding(K)], dtype=np.int64).astype(rows[1][0].dtype)
    _run(kernels.map_pack, words, False, *rows, rest, K, state_bits(K))


def map_forward(
    words: Tensor, s0: Tensor | None, reset: Tensor | None, states: Tensor, *, K: int, reverse: bool
) -> None:
    """Fill ``states [B, T, N]`` of machines with K states from the words of their maps; all states are uint8."""
    steps, start, out = _rows(_bits(words), states), _rows(s0, states, torch.uint8), _rows(states, states)
    _run(kernels.map_forward, states, reverse, steps, start, _reset_rows(reset), out, state_bits(K))


def map_direct(maps: Tensor, s0: Tensor | None, reset: Tensor | None, states: Tensor, *, reverse: bool) -> bool:
    """Fill ``states [B, T, N]`` from maps ``[B, T, N, K]`` themselves, without words; False, and nothing useful in
    ``states``, if some state in them is K or more.

    Packing takes longer than the scan: at (16, 512, 256) this takes 0.15, 0.43, 0.51 and 1.4 ms for K = 2, 4, 8 and 16,
    packing and scanning 1.0, 1.8, 1.6 and 3.6.
    """
    K = maps.shape[3]
    start, out, resets = _rows(s0, states, torch.uint8), _rows(states, states), _reset_rows(reset)
    whole = K in (2, 4, 8, 16) and maps.is_contiguous() and maps.data_ptr() % min(K, 8) == 0
    if not whole:
        inside = int(maps.amax()) < K
        if inside:
            _run(kernels.map_gather, states, reverse, _rows(maps.flatten(2), maps), start, resets, out, K)
        return inside
    words = maps.flatten(2).view(_BITS[min(K, 8)])
    seen = np.zeros((states.shape[0], states.shape[2]), dtype=f"uint{8 * min(K, 8)}")
    rows = _rows(words, words), start, resets, out, (seen.reshape(-1), states.shape[2], 0)
    _run(kernels.map_direct, states, reverse, *rows, K)
    return int(seen.view(np.uint8).max()) < K  # K is a power of two: no higher bit is set in any of them


def map_adjoint(words: Tensor, grad: Tensor, reset: Tensor | None, lam: Tensor, *, reverse: bool) -> Tensor:
    """Fill ``lam [B, T, N, K]`` with the adjoint of ``grad``; return that before the first step, wide."""
    (B, _, N, K), dtype = grad.shape, wide(grad.dtype)
    out, start = _widened(lam, dtype), lam.new_empty(B, N, K, dtype=dtype)
    rows = [_rows(x.flatten(2 if x.ndim == 4 else 1), words, dtype) for x in (grad, out, start)]
    _run(kernels.map_adjoint, words, reverse, _rows(_bits(words), words), *rows, _reset_rows(reset), K, state_bits(K))
    _copy_back(out, lam)
    return start


def _run(kernel: Callable[..., None], h: Tensor, reverse: bool, *args: Any) -> None:
    """Run ``kernel`` over all of ``h [B, T, N]``, span by span."""
    for_each(_spans(h), lambda span: kernel(span, h.shape[1], reverse, *args), torch.get_num_threads())


def _spans(h: Tensor) -> list[Span]:
    """Cut ``h [B, T, N]`` into sequences, or, if these are fewer than threads, into units: enough to keep all threads
    busy without being too small."""
    (B, _, N), threads = h.shape, torch.get_num_threads()
    count = 1 if threads == 1 else max(1, min(_SPANS_PER_THREAD * threads, h.numel() // _SMALLEST_SPAN))
    if min(count, threads) <= B:
        count = min(count, B)
        return [(lo, hi, 0, N) for lo, hi in pairwise(B * i // count for i in range(count + 1))]
    width = max(16, -(-N // min(count, threads)))  # whole cache lines
    return [(0, B, lo, min(lo + width, N)) for lo in range(0, N, width)]


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


def _copy(alpha: Tensor, dtype: torch.dtype) -> Tensor:
    """A parameter in memory of its own: ``numpy()`` pins memory, and FSDP resizes that of parameters."""
    return alpha.to(dtype, copy=True)


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
