"""A BMRU layer on the CPU: projection and scan in one autograd function, in memory kept from call to call.

::

    proj = x W^T + b        [B, T, 2N], cand then beta
    h    = scan(proj)       [B, T, N]

The projection and its gradient are a layer's two largest tensors, and the first touch of fresh memory costs more than
the scan's work on it (``memory.py``): a training step at (32, 1024, 256) takes 178 ms, with ``F.linear`` and
``bmru_layer`` 206 (two cores). Without gradients the projection exists for a chunk of time only, 4 MiB at once.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from multistable.ops import pieces
from multistable.ops.autograd import Function, saved_tensors
from multistable.ops.dispatch import choose, load
from multistable.ops.memory import new_empty
from multistable.ops.operators import batch_first, call, intercepted, last_state, transformed

__all__ = ["can_project_and_scan", "project_and_scan"]

_SMALLEST = 1 << 22  # bytes of projection: smaller memory is not kept


def can_project_and_scan(x: Tensor, weight: Tensor, backend: str, *others: Tensor | None) -> bool:
    """Whether :func:`project_and_scan` supports this call, and pays: on the CPU, eagerly, in float32 or float64, with a
    large projection; not on a piece of a sequence."""
    if pieces.current() is not None:
        return False
    if x.device.type != "cpu" or intercepted(x, weight, *others):
        return False
    if x.dtype != weight.dtype or x.dtype not in (torch.float32, torch.float64):
        return False
    if x.shape[0] * x.shape[1] * weight.shape[0] * x.itemsize <= _SMALLEST:
        return False
    return not torch.is_autocast_enabled("cpu") and not transformed() and choose(backend, x).backend == "cpu"


def project_and_scan(
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
    must not write; the rest as in :func:`multistable.ops.layer_scans.bmru_layer`.
    """
    h0 = None if h0 is None else h0.to(x.dtype)
    inputs = x, weight, bias, alpha.to(x.dtype), h0
    keep = torch.is_grad_enabled() and any(y is not None and y.requires_grad for y in inputs)
    return _Layer.apply(*inputs, reset, valid, _Options(alpha_surr, reverse, time_major, keep))


class _Options(NamedTuple):
    alpha_surr: float
    reverse: bool
    time_major: bool
    keep: bool
    """Whether a backward may follow, which needs the whole projection."""


class _Layer(Function):
    """:func:`project_and_scan`, tensors in one dtype."""

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
        h = new_empty(x, (*x.shape[:2], len(alpha)))
        proj = new_empty(x, (*x.shape[:2], len(weight))) if options.keep else None
        state, scratch = h0, x.new_empty(0)
        for steps in _chunks(x, weight, options):
            at = (steps,) if options.time_major else (slice(None), steps)
            both = scratch.resize_(*x[at].shape[:2], len(weight)) if proj is None else proj  # grows once
            _project(x[at], weight, bias, None if valid is None else valid[at], both)
            cand, beta = batch_first(both, options.time_major).chunk(2, dim=-1)
            states, marks = batch_first(h[at], options.time_major), None if reset is None else reset[:, steps]
            load("cpu").bmru_forward(cand, beta, alpha, state, marks, states, reverse=options.reverse)
            state = states[:, 0 if options.reverse else -1]
        ctx.save_for_backward(x, weight, alpha, h0, reset, valid, proj, h)
        ctx.options = options
        ctx.set_materialize_grads(False)
        return h, last_state(batch_first(h, options.time_major), h0, options.reverse)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        """A second derivative raises, because that of the scan does."""
        x, weight, alpha, h0, reset, valid, proj, h = saved_tensors(ctx)
        saved = proj, alpha, h0, reset, h, *ctx.options[:3], "cpu"
        grad_proj, grad_alpha, grad_h0 = call("bmru_layer_backward", *grads, *saved)
        if valid is not None:
            grad_proj.masked_fill_(~valid, 0)
        rows, grad_x, grad_weight = grad_proj.view(-1, len(weight)), None, None
        if ctx.needs_input_grad[0]:
            plain = not torch.is_grad_enabled() and not intercepted(rows)
            out = new_empty(x, x.shape).view(-1, x.shape[2]) if plain else None
            grad_x = torch.mm(rows, weight, out=out).view(x.shape)
        if ctx.needs_input_grad[1]:
            grad_weight = rows.t() @ x.reshape(-1, x.shape[2])
        grad_bias = rows.sum(dim=0) if ctx.needs_input_grad[2] else None
        return grad_x, grad_weight, grad_bias, grad_alpha, None if h0 is None else grad_h0, None, None, None


def _chunks(x: Tensor, weight: Tensor, options: _Options) -> list[slice]:
    """Cut time, in the order of the scan, so that the projection of a chunk is small; not at all if it is kept."""
    T, B = x.shape[:2] if options.time_major else (x.shape[1], x.shape[0])
    size = T if options.keep else max(1, _SMALLEST // (B * len(weight) * x.itemsize))
    cuts = [slice(start, min(start + size, T)) for start in range(0, T, size)]
    return cuts[::-1] if options.reverse else cuts


def _project(x: Tensor, weight: Tensor, bias: Tensor | None, valid: Tensor | None, out: Tensor) -> None:
    """Fill ``out [..., 2N]`` with ``x W^T + b``; candidate 0 and threshold 1, which never write, where not valid."""
    rows, flat = x.reshape(-1, x.shape[2]), out.view(-1, len(weight))
    if bias is None:
        torch.mm(rows, weight.t(), out=flat)
    else:
        torch.addmm(bias, rows, weight.t(), out=flat)
    if valid is not None:
        for half, neutral in zip(out.chunk(2, dim=-1), (0.0, 1.0), strict=True):
            half.masked_fill_(~valid, neutral)
