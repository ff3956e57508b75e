"""A BMRU layer on the CPU: projection and scan tile by tile, so that what passes between them stays in the cache.

::

    proj = x W^T + b        [B, T, 2N], cand then beta
    h    = scan(proj)       [B, T, N]

A *tile* is as many timesteps as have 4 MiB of projection. Each tile starts from the state that leaves the one before,
which gives the same bits as one scan. Without gradients the projection never exists as a whole. With gradients it does,
but its gradient does not::

    grad_x = grad_proj W        grad_W = sum of grad_proj^T x over tiles        grad_b = sum of grad_proj over rows

The projection and its gradient are a layer's two largest pieces of fresh memory, and the first touch of fresh memory
costs more than the scan's work on it.

The matrix products are cut, too. In every case tried, MKL rounded those of a tile like the whole, in float32 and
float64; that is not guaranteed.
"""

from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor

from multistable.ops.autograd import Function
from multistable.ops.dispatch import choose, load
from multistable.ops.memory import new_empty
from multistable.ops.operators import batch_first, intercepted, raise_no_second_derivative, transformed

__all__ = ["can_tile", "tiled_bmru_layer"]

_TILE = 1 << 22  # bytes of projection


def can_tile(x: Tensor, weight: Tensor, backend: str, *others: Tensor | None) -> bool:
    """Whether :func:`tiled_bmru_layer` can and should compute the layer: on the CPU, eagerly, more than one tile.

    Not in half precision: sums over tiles would round the gradient of the weights once per tile.
    """
    if x.device.type != "cpu" or intercepted(x, weight, *others):
        return False
    wide = x.dtype == weight.dtype and x.dtype in (torch.float32, torch.float64)
    if not wide or x.shape[0] * x.shape[1] <= _rows_of_a_tile(weight):
        return False
    if torch.is_autocast_enabled("cpu") or transformed():  # _TiledLayer supports neither
        return False
    return choose(backend, x).backend == "cpu"


def tiled_bmru_layer(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    alpha: Tensor,
    h0: Tensor | None,
    *,
    alpha_surr: float,
    reset: Tensor | None,
    valid: Tensor | None,
    reverse: bool,
    time_major: bool,
) -> tuple[Tensor, Tensor]:
    """``x [B, T, D]`` (``[T, B, D]`` if ``time_major``) -> ``h [B, T, N]`` (``[T, B, N]``), ``h_last [B, N]``.

    ``weight [2N, D]``, ``bias [2N]``; ``valid``, in the layout of x with a last axis of 1, is False where a step
    must not write; the rest as in :func:`multistable.ops.bmru_layer`.
    """
    h0 = None if h0 is None else h0.to(x.dtype)
    inputs = x, weight, bias, alpha.to(x.dtype), h0
    keep = torch.is_grad_enabled() and any(y is not None and y.requires_grad for y in inputs)
    return _TiledLayer.apply(*inputs, reset, valid, _Options(alpha_surr, reverse, time_major, keep))


class _Options(NamedTuple):
    alpha_surr: float
    reverse: bool
    time_major: bool
    keep: bool
    """Whether a backward may follow, which needs the whole projection."""


class _TiledLayer(Function):
    """:func:`tiled_bmru_layer`, tensors in one dtype."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        alpha: Tensor,
        h0: Tensor | None,
        reset: Tensor | None,
        valid: Tensor | None,
        options: _Options,
    ) -> tuple[Tensor, Tensor]:
        N, reverse, time_major = len(alpha), options.reverse, options.time_major
        tiles = _tiles(x, weight, options)
        h = new_empty(x, (*x.shape[:2], N))
        h_last = x.new_empty(x.shape[1 if time_major else 0], N)
        proj = new_empty(x, (*x.shape[:2], 2 * N)) if options.keep else None
        scratch = x.new_empty(0 if options.keep else max(tile.rows for tile in tiles), 2 * N)
        state = None
        for tile in tiles:
            x_tile = tile.of(x)
            both = scratch[: tile.rows].view(*x_tile.shape[:2], 2 * N) if proj is None else tile.of(proj)
            _project(x_tile, weight, bias, None if valid is None else tile.of(valid), both)
            out = tile.scanned(h)
            start = tile.state(h0) if tile.first else state
            cand, beta = batch_first(both, time_major).chunk(2, dim=-1)
            load("cpu").bmru_forward(cand, beta, alpha, start, tile.marks(reset), out, reverse=reverse)
            state = out[:, 0 if reverse else -1]
            if tile.last:
                h_last[tile.sequences] = state
        ctx.save_for_backward(x, weight, alpha, h0, reset, valid, proj, h)
        ctx.options = options
        ctx.set_materialize_grads(False)
        return h, h_last

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        return (
            *_TiledLayerBackward.apply(*grads, *ctx.saved_tensors, ctx.options, ctx.needs_input_grad),
            None,
            None,
            None,
        )


class _TiledLayerBackward(Function):
    """A function of its own, so that a second derivative raises instead of being zero."""

    @staticmethod
    def forward(
        ctx: Any,
        grad_h: Tensor | None,
        grad_last: Tensor | None,
        x: Tensor,
        weight: Tensor,
        alpha: Tensor,
        h0: Tensor | None,
        reset: Tensor | None,
        valid: Tensor | None,
        proj: Tensor,
        h: Tensor,
        options: _Options,
        needs: tuple[bool, ...],
    ) -> tuple[Tensor | None, ...]:
        reverse, time_major = options.reverse, options.time_major
        tiles = _tiles(x, weight, options)
        grad_x = new_empty(x, x.shape) if needs[0] else None
        grad_weight = torch.zeros_like(weight) if needs[1] else None
        grad_bias = x.new_zeros(len(weight)) if needs[2] else None
        grad_alpha, grad_h0 = torch.zeros_like(alpha), h.new_empty(h.shape[1 if time_major else 0], len(alpha))
        scratch = x.new_empty(max(tile.rows for tile in tiles), len(weight))
        total = None
        for tile in reversed(tiles):
            x_tile, rows = tile.of(x), scratch[: tile.rows]
            both, grad_both = (
                batch_first(y, time_major).chunk(2, dim=-1)
                for y in (tile.of(proj), rows.view(*x_tile.shape[:2], len(weight)))
            )
            found, total = load("cpu").bmru_backward(
                None if grad_h is None else tile.scanned(grad_h),
                tile.state(grad_last) if tile.last else total,
                *both,
                alpha,
                tile.state(h0) if tile.first else tile.before(h, reverse),
                tile.marks(reset),
                tile.scanned(h),
                *grad_both,
                alpha_surr=options.alpha_surr,
                reverse=reverse,
            )
            grad_alpha += found
            if tile.first:
                grad_h0[tile.sequences] = total
            if valid is not None:
                rows.masked_fill_(~tile.of(valid).reshape(-1, 1), 0)
            if grad_weight is not None:
                grad_weight.addmm_(rows.t(), x_tile.reshape(tile.rows, -1))
            if grad_bias is not None:
                grad_bias += rows.sum(dim=0)
            if grad_x is not None:
                torch.mm(rows, weight, out=tile.of(grad_x).view(tile.rows, -1))
        return grad_x, grad_weight, grad_bias, grad_alpha, None if h0 is None else grad_h0

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> None:
        raise_no_second_derivative()


class _Tile(NamedTuple):
    """Some sequences and some of their steps, side by side in memory; first and last in the order of the scan."""

    sequences: slice
    steps: slice
    first: bool
    last: bool
    time_major: bool

    @property
    def rows(self) -> int:
        return (self.sequences.stop - self.sequences.start) * (self.steps.stop - self.steps.start)

    def of(self, x: Tensor) -> Tensor:
        """Its part of ``x``, in the layout of x."""
        return x[self.steps, self.sequences] if self.time_major else x[self.sequences, self.steps]

    def scanned(self, x: Tensor) -> Tensor:
        """Its part of ``x`` as a scan wants it, [B, T, N]."""
        return batch_first(self.of(x), self.time_major)

    def marks(self, reset: Tensor | None) -> Tensor | None:
        return None if reset is None else reset[self.sequences, self.steps]

    def state(self, x: Tensor | None) -> Tensor | None:
        return None if x is None else x[self.sequences]

    def before(self, h: Tensor, reverse: bool) -> Tensor:
        """The state with which the tile starts, if it is not the first."""
        return batch_first(h, self.time_major)[self.sequences, self.steps.stop if reverse else self.steps.start - 1]


def _rows_of_a_tile(weight: Tensor) -> int:
    return max(1, _TILE // (weight.shape[0] * weight.itemsize))


def _tiles(x: Tensor, weight: Tensor, options: _Options) -> list[_Tile]:
    """The tiles in the order of the scan.

    A tile has some steps of all sequences if time comes first; else some steps of one sequence, or short sequences.
    """
    most, time_major = _rows_of_a_tile(weight), options.time_major
    T, B = x.shape[:2] if time_major else (x.shape[1], x.shape[0])
    width = B if time_major else max(1, most // T)
    found: list[_Tile] = []
    for lo in range(0, B, width):
        sequences = slice(lo, min(lo + width, B))
        count = min(T, -(-(sequences.stop - lo) * T // most))
        cuts = [slice(start, stop) for start, stop in pairwise(T * i // count for i in range(count + 1))]
        for i, steps in enumerate(reversed(cuts) if options.reverse else cuts):
            found.append(_Tile(sequences, steps, i == 0, i == count - 1, time_major))
    return found


def _project(x: Tensor, weight: Tensor, bias: Tensor | None, valid: Tensor | None, out: Tensor) -> None:
    """Fill ``out [..., 2N]`` with ``x W^T + b``; candidate 0 and threshold 1, which never write, where not valid."""
    rows, flat = x.reshape(-1, x.shape[-1]), out.view(-1, out.shape[-1])
    if bias is None:
        torch.mm(rows, weight.t(), out=flat)
    else:
        torch.addmm(bias, rows, weight.t(), out=flat)
    if valid is not None:
        for half, neutral in zip(out.chunk(2, dim=-1), (0.0, 1.0), strict=True):
            half.masked_fill_(~valid, neutral)
