"""Exported programs in torch's own operators, for what does not know ours: files for ONNX.

::

    program = torch.export.export(rnn.eval(), (x,), dynamic_shapes={"input": {0: Dim("B"), 1: Dim("T")}})
    program = program.run_decompositions(decompositions())
    torch.onnx.export(program, dynamo=True).save("rnn.onnx")

Each scan becomes one ``torch.ops.higher_order.scan``, the loop over time of the definition, and in a file for ONNX one
``Scan``. A latch has the same bits, but for ONNX Runtime's ``Where``, which makes 0.0 of -0.0.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from multistable.models.position import sinusoids
from multistable.ops.numerics import multiply, wide
from multistable.ops.operators import as_gate, batch_first
from multistable.ops.portable import gates

__all__ = ["decompositions"]


def decompositions() -> dict[torch._ops.OpOverload, Callable]:
    """What each operator of this library is in torch's own, for ``ExportedProgram.run_decompositions``.

    Without gradients: for programs that only infer.
    """
    ours = torch.ops.multistable
    return {
        ours.bmru_scan.default: _bmru_scan,
        ours.bmru_layer.default: _bmru_layer,
        ours.latch_scan.default: _latch_scan,
        ours.linear_scan.default: _linear_scan,
        ours.sinusoids.default: sinusoids,
    }


def _bmru_scan(cand, beta, alpha, h0, reset, alpha_surr, reverse, backend) -> tuple[Tensor, Tensor]:
    write, side = gates(cand, beta)
    return _latch_scan(write, alpha.to(cand.dtype) * side, h0, reset, reverse, backend)


def _bmru_layer(proj, alpha, h0, reset, alpha_surr, reverse, time_major, backend) -> tuple[Tensor, Tensor]:
    cand, beta = batch_first(proj, time_major).chunk(2, dim=-1)
    h, last = _bmru_scan(cand, beta, alpha, h0, reset, alpha_surr, reverse, backend)
    return batch_first(h, time_major).contiguous(), last  # the axes changed back: swapping them is its own inverse


def _latch_scan(write, value, h0, reset, reverse, backend) -> tuple[Tensor, Tensor]:
    """``h_t = value_t`` where ``write_t``, else ``h_{t-1}``; a reset that is not overwritten at once writes zero."""
    write, value = as_gate(write, value)
    if reset is not None:
        value = torch.where(write, value, torch.zeros_like(value))
        write = write | reset[..., None]
    return _loop(lambda h, value, write: torch.where(write, value, h), h0, [value, write], reverse)


def _linear_scan(a, b, h0, reset, pairs, reverse, backend) -> tuple[Tensor, Tensor]:
    """``h_t = a_t h_{t-1} + b_t``, half precision in float32; a reset selects zero."""
    dtype, a, b = b.dtype, a.to(wide(b.dtype)), b.to(wide(b.dtype))
    h0 = None if h0 is None else h0.to(dtype)  # rounded like that of the scan
    inputs = [b, a.expand(1, b.shape[1], -1) if a.ndim == 1 else a]

    def step(h: Tensor, b: Tensor, a: Tensor, reset: Tensor | None = None) -> Tensor:
        h = h if reset is None else torch.where(reset, torch.zeros_like(h), h)
        return (multiply(a, h) if pairs else a * h) + b

    h, last = _loop(step, h0, inputs if reset is None else [*inputs, reset[..., None]], reverse)
    return h.to(dtype), last.to(dtype)


def _loop(step: Callable[..., Tensor], h0: Tensor | None, inputs: list[Tensor], reverse: bool) -> tuple[Tensor, Tensor]:
    """States ``h_t = step(h_{t-1}, *inputs_t)``: all, ``[B, T, N]`` like the first of the inputs, and the last."""
    h0 = torch.zeros_like(inputs[0][:, 0]) if h0 is None else h0.to(inputs[0].dtype)

    def advance(h: Tensor, *now: Tensor) -> list[Tensor]:
        h = step(h, *now)
        return [h, h.clone()]

    steps = [_flip(x.transpose(0, 1), reverse).contiguous() for x in inputs]
    last, h = torch.ops.higher_order.scan(advance, [h0], steps, ())
    return _flip(h, reverse).transpose(0, 1).contiguous(), last


def _flip(x: Tensor, reverse: bool) -> Tensor:
    return x.flip(0) if reverse else x
