"""A BMRU layer in one autograd function: projection and scan, where that saves time.

::

    proj = x W^T + b        [B, T, 2N], cand then beta
    h    = scan(proj)       [B, T, N]

On the CPU, the projection and its gradient are a layer's two largest tensors, and the first touch of fresh memory costs
more than the scan's work on it (``memory.py``): a training step at (32, 1024, 256) takes 178 ms, with ``F.linear`` and
an operator for the scan 206 (two cores). Without gradients the projection exists for a chunk of time only, 4 MiB at
once.

On a GPU, a small layer takes as long as Python and autograd do. One node instead of three has the same kernels.
"""

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from multistable.ops import pieces
from multistable.ops.autograd import Function, saved_tensors
from multistable.ops.dispatch import choose, load
from multistable.ops.memory import new_empty
from multistable.ops.operators import batch_first, call, compute, intercepted, last_state, transformed

__all__ = ["fused_backend", "project_and_scan"]

_SMALLEST = 1 << 22  # bytes of projection: smaller memory is not kept


def fused_backend(x: Tensor, weight: Tensor, backend: str, *others: Tensor | None) -> str | None:
    """The backend with which :func:`project_and_scan` supports this call, and pays; otherwise None.

    It runs eagerly, in one dtype, not on a piece of a sequence: on a CPU in float32 or float64 if the projection is
    large, on a GPU if there may be a backward.
    """
    if pieces.current() is not None or intercepted(x, weight, *others) or transformed():
        return None
    if x.dtype != weight.dtype or torch.is_autocast_enabled(x.device.type):
        return None
    if x.device.type == "cpu" and x.dtype in (torch.float32, torch.float64):
        pays = x.shape[0] * x.shape[1] * weight.shape[0] * x.itemsize > _SMALLEST
    else:
        pays = x.is_cuda and torch.is_grad_enabled()
    chosen = choose(backend, x).backend if pays else None
    return chosen if chosen in ("cpu", "triton") else None


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
    backend: str,
) -> tuple[Tensor, Tensor]:
    """``x [B, T, D]`` (``[T, B, D]`` if ``time_major``) -> ``h [B, T, N]`` (``[T, B, N]``), ``h_last [B, N]``.

    ``weight [2N, D]``, ``bias [2N]``; ``valid``, in the layout of x with a last axis of 1, is False where a step
    must not write; the rest as in :func:`multistable.ops.layer_scans.bmru_layer`.
    """
    h0 = None if h0 is None else h0.to(x.dtype)
    inputs = x, weight, bias, alpha if backend == "triton" else alpha.to(x.dtype), h0
    keep = torch.is_grad_enabled() and any(y is not None and y.requires_grad for y in inputs)
    return _Layer.apply_untransformed(*inputs, reset, valid, _Options(alpha_surr, reverse, time_major, backend, keep))


class _Options(NamedTuple):
    alpha_surr: float
    reverse: bool
    time_major: bool
    backend: str
    keep: bool
    """Whether a backward may follow, which needs the whole projection."""


class _Layer(Function):
    """:func:`project_and_scan`; tensors in one dtype, but for alpha on a GPU."""

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
        scan = _scan_at_once if options.backend == "triton" else _scan_in_chunks
        h, h_last, proj = scan(x, weight, bias, alpha, h0, reset, valid, options)
        ctx.save_for_backward(x, weight, alpha, h0, reset, valid, proj, h)
        ctx.options, ctx.device = options, x.device.type
        ctx.set_materialize_grads(False)
        return h, h_last

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        """A second derivative raises, because that of the scan does."""
        if torch.is_autocast_enabled(ctx.device):  # the backward of torch's own product does not round either
            with torch.autocast(ctx.device, enabled=False):
                return _Layer.backward(ctx, *grads)
        x, weight, alpha, h0, reset, valid, proj, h = saved_tensors(ctx)
        saved = proj, alpha, h0, reset, h, *ctx.options[:4]
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


def _scan_at_once(
    x: Tensor, weight: Tensor, bias: Tensor | None, alpha: Tensor, h0: Tensor | None, reset: Tensor | None,
    valid: Tensor | None, options: _Options,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """States, the last one and the projection, which are those of ``F.linear`` and the operator bit for bit."""
    proj = F.linear(x, weight, bias)
    _hold(proj, valid)
    h, h_last = compute("bmru_layer", proj, alpha, h0, reset, *options[:4])
    return h, h_last, proj


def _scan_in_chunks(
    x: Tensor, weight: Tensor, bias: Tensor | None, alpha: Tensor, h0: Tensor | None, reset: Tensor | None,
    valid: Tensor | None, options: _Options,
) -> tuple[Tensor, Tensor, Tensor | None]:  # fmt: skip
    """The same on a CPU, a chunk of time at once; the projection only if it is kept."""
    h = new_empty(x, (*x.shape[:2], len(alpha)))
    proj = new_empty(x, (*x.shape[:2], len(weight))) if options.keep else None
    state, scratch = h0, x.new_empty(0)
    for steps in _chunks(x, weight, options):
        at = (steps,) if options.time_major else (slice(None), steps)
        # It grows once, for the first chunk, before the compiled loops pin it.
        both = scratch.resize_(*x[at].shape[:2], len(weight)) if proj is None else proj
        _project(x[at], weight, bias, both)
        _hold(both, None if valid is None else valid[at])
        cand, beta = batch_first(both, options.time_major).chunk(2, dim=-1)
        states, marks = batch_first(h[at], options.time_major), None if reset is None else reset[:, steps]
        load("cpu").bmru_forward(cand, beta, alpha, state, marks, states, reverse=options.reverse)
        state = states[:, 0 if options.reverse else -1]
    return h, last_state(batch_first(h, options.time_major), h0, options.reverse), proj


def _chunks(x: Tensor, weight: Tensor, options: _Options) -> list[slice]:
    """Cut time, in the order of the scan, so that the projection of a chunk is small; not at all if it is kept.

    Only the last chunk may be shorter.
    """
    T, B = x.shape[:2] if options.time_major else (x.shape[1], x.shape[0])
    size = T if options.keep else max(1, _SMALLEST // (B * len(weight) * x.itemsize))
    cuts = [slice(start, min(start + size, T)) for start in range(0, T, size)]
    return [slice(T - cut.stop, T - cut.start) for cut in cuts] if options.reverse else cuts


def _project(x: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor) -> None:
    """Fill ``out [..., 2N]`` with ``x W^T + b``."""
    rows, flat = x.reshape(-1, x.shape[2]), out.view(-1, len(weight))
    if bias is None:
        torch.mm(rows, weight.t(), out=flat)
    else:
        torch.addmm(bias, rows, weight.t(), out=flat)


def _hold(proj: Tensor, valid: Tensor | None) -> None:
    """Set candidate 0 and threshold 1, which never write, where a step is not valid."""
    if valid is not None:
        for half, neutral in zip(proj.chunk(2, dim=-1), (0.0, 1.0), strict=True):
            half.masked_fill_(~valid, neutral)
