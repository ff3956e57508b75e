"""Exported programs in torch's own operators, without this library's: the step before ONNX.

:func:`register` lets ``torch.onnx.export`` use them, so that its ordinary call works. By hand::

    program = torch.export.export(rnn.eval(), (x,), dynamic_shapes={"input": {0: Dim("B"), 1: Dim("T")}})
    program = program.run_decompositions(decompositions())

Each scan becomes one ``torch.ops.higher_order.scan``, the loop over time that defines it, and one ``Scan`` in ONNX. A
latch has the same bits, except that ONNX Runtime's ``Where`` turns -0.0 into 0.0.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from multistable.ops import maps
from multistable.ops.numerics import multiply, wide
from multistable.ops.operators import as_gate, batch_first, in_onnx
from multistable.ops.portable import gates

__all__ = ["decompositions", "register"]

Maybe = Tensor | None
States = tuple[Tensor, Tensor]  # all of them, [B, T, N], and the last, [B, N]


def decompositions() -> dict[Any, Callable[..., Any]]:
    """Each scan of this library in terms of torch's own operators, for ``ExportedProgram.run_decompositions``.

    For inference only: the decompositions have no surrogate gradient, and there is none of ``map_adjoint``.
    """
    ours = torch.ops.multistable
    return {
        ours.bmru_scan.default: _bmru_scan,
        ours.bmru_layer.default: _bmru_layer,
        ours.latch_scan.default: _latch_scan,
        ours.linear_scan.default: _linear_scan,
        ours.map_pack.default: _map_pack,
        ours.map_scan.default: _map_scan,
        ours.map_run.default: _map_run,
    }


def register() -> None:
    """Let ``torch.onnx.export`` decompose this library's operators; ``import multistable`` does it.

    torch's own table of decompositions is left alone: where the variable ``CI`` is set, torch's compiler refuses
    operators that are in it.
    """
    in_onnx.update({op._opname: function for op, function in decompositions().items()})


def _bmru_scan(
    cand: Tensor, beta: Tensor, alpha: Tensor, h0: Maybe, reset: Maybe, alpha_surr: float, reverse: bool, backend: str
) -> States:
    write, side = gates(cand, beta)
    return _latch_scan(write, alpha.to(cand.dtype) * side, h0, reset, reverse, backend)


def _bmru_layer(
    proj: Tensor,
    alpha: Tensor,
    h0: Maybe,
    reset: Maybe,
    alpha_surr: float,
    reverse: bool,
    time_major: bool,
    backend: str,
) -> States:
    cand, beta = batch_first(proj, time_major).chunk(2, dim=-1)
    h, last = _bmru_scan(cand, beta, alpha, h0, reset, alpha_surr, reverse, backend)
    return batch_first(h, time_major).contiguous(), last  # swaps the axes back


def _latch_scan(write: Tensor, value: Tensor, h0: Maybe, reset: Maybe, reverse: bool, backend: str) -> States:
    """``h_t = value_t`` where ``write_t``, else ``h_{t-1}``; a reset without a write is a write of zero."""
    write, value = as_gate(write, value)
    if reset is not None:
        value = torch.where(write, value, torch.zeros_like(value))
        write = write | reset[..., None]

    def step(h: Tensor, value: Tensor, write: Tensor) -> Tensor:
        return torch.where(write, value, h)

    return _loop(step, h0, [value, write], reverse)


def _linear_scan(a: Tensor, b: Tensor, h0: Maybe, reset: Maybe, pairs: bool, reverse: bool, backend: str) -> States:
    """``h_t = a_t h_{t-1} + b_t``, with ``h_{t-1}`` zero at a reset; half precision is computed in float32."""
    dtype, a, b = b.dtype, a.to(wide(b.dtype)), b.to(wide(b.dtype))
    h0 = None if h0 is None else h0.to(dtype)  # the scan rounds it too
    inputs = [b, a.expand(1, b.shape[1], -1) if a.ndim == 1 else a]

    def step(h: Tensor, b: Tensor, a: Tensor, reset: Tensor | None = None) -> Tensor:
        h = h if reset is None else torch.where(reset, torch.zeros_like(h), h)
        return (multiply(a, h) if pairs else a * h) + b

    h, last = _loop(step, h0, inputs if reset is None else [*inputs, reset[..., None]], reverse)
    return h.to(dtype), last.to(dtype)


def _map_pack(states: Tensor, backend: str) -> tuple[Tensor, Tensor]:
    """Maps ``[B, T, N, K]`` as words, and that none is out of range: a layer's are not.

    By products, because torch's exporter has no ``<<``; in 64 bits they wrap around as a shift does.
    """
    K, bits = states.shape[3], maps.state_bits(states.shape[3])
    words = torch.full(states.shape[:3], maps.padding(K), device=states.device)
    for k in range(K):
        words = words + states[..., k].long() * (1 << bits * k)
    return words.to(maps.word_dtype(K)), torch.zeros((), dtype=torch.bool, device=states.device)


def _map_scan(words: Tensor, s0: Maybe, reset: Maybe, K: int, reverse: bool, backend: str) -> States:
    """``s_t = map_t[s_{t-1}]``, with ``s_{t-1}`` zero at a reset."""
    bits, words = maps.state_bits(K), words.long()
    if reset is not None:
        words = torch.where(reset[..., None], maps.constant(words, bits), words)

    def step(state: Tensor, word: Tensor) -> Tensor:
        return torch.bitwise_right_shift(word, bits * state) & ((1 << bits) - 1)

    states, last = _loop(step, s0, [words], reverse)
    return states.byte(), last.byte()


def _map_run(states: Tensor, s0: Maybe, reset: Maybe, reverse: bool, backend: str) -> States:
    return _map_scan(_map_pack(states, backend)[0], s0, reset, states.shape[3], reverse, backend)


def _loop(step: Callable[..., Tensor], h0: Maybe, inputs: list[Tensor], reverse: bool) -> States:
    """States ``h_t = step(h_{t-1}, *inputs_t)``, ``[B, T, N]`` like the first input, and the last state."""
    B, T, N = inputs[0].shape
    h0 = inputs[0].new_zeros(B, N) if h0 is None else h0.to(inputs[0].dtype)
    if T == 0:
        return torch.empty_like(inputs[0]), h0.clone()

    def advance(h: Tensor, *now: Tensor) -> list[Tensor]:
        h = step(h, *now)
        return [h, h.clone()]

    steps = [x.transpose(0, 1) for x in inputs]
    steps = [(x.flip(0) if reverse else x).contiguous() for x in steps]
    scan: Any = torch.ops.higher_order.scan
    last, h = scan(advance, [h0], steps, ())
    return (h.flip(0) if reverse else h).transpose(0, 1).contiguous(), last
