"""Scans of other libraries on a GPU, in the same process. Those that are not installed are left out.

Both sides of a row are measured by the same clock: in a graph where the other scan can be captured, otherwise as called
from Python, launches and autograd included.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from multistable.ops import bmru_scan
from multistable_experiments.bench.gpu_clock import eager_milliseconds, gain_row, milliseconds
from multistable_experiments.bench.gpu_scans import LONG, bmru_passes
from multistable_experiments.bench.report import Row
from multistable_experiments.bench.shapes import percentile, random_shapes

__all__ = ["peer_rows", "random_peer_rows"]


def peer_rows(shape: tuple[int, int, int]) -> Iterator[Row]:
    """Scans of other libraries on as many float32 numbers: gate and input [B, T, N] in, states out."""
    B, T, N = shape
    name = "BMRU forward"
    forward, _ = bmru_passes(torch.randn(B, T, 2 * N, device="cuda"), N)
    ms = milliseconds(forward)
    gate, value = torch.rand(B, T, N, device="cuda"), torch.randn(B, T, N, device="cuda")
    if find_spec("accelerated_scan"):
        from accelerated_scan.scalar import scan  # pyright: ignore[reportMissingImports]

        across = gate.transpose(1, 2).contiguous(), value.transpose(1, 2).contiguous()
        yield gain_row(name, shape, ms, "accelerated-scan", milliseconds(lambda: scan(*across)), 1 / 1.05)
        turn = lambda: scan(*(x.transpose(1, 2).contiguous() for x in (gate, value))).transpose(1, 2).contiguous()  # noqa: E731
        yield gain_row(name, shape, ms, "accelerated-scan and its transposes", milliseconds(turn), None)
        del across
    if find_spec("fla"):
        chunk_hgrn: Any = import_module("fla.ops.hgrn").chunk_hgrn
        x, g = value.requires_grad_(), gate.log().requires_grad_()
        weight = torch.randn_like(value)

        def hgrn() -> None:
            chunk_hgrn(x, g)[0].backward(weight)
            x.grad = g.grad = None

        with torch.no_grad():
            forward_ms = milliseconds(lambda: chunk_hgrn(x, g))
        yield gain_row(name, shape, ms, "fla chunk_hgrn", forward_ms, None)
        both_ms = eager_milliseconds(forward_and_backward(shape))
        yield gain_row("BMRU forward + backward", shape, both_ms, "fla chunk_hgrn", eager_milliseconds(hgrn), 2.0)
        value = value.detach()
    if shape != LONG:
        compiled = torch.compile(_associative_scan)
        compiled_ms = eager_milliseconds(lambda: compiled(gate, value))
        yield gain_row(name, shape, eager_milliseconds(forward), "associative_scan, compiled", compiled_ms, None)
        heinsen_ms = milliseconds(lambda: _heinsen_scan(gate, value))
        yield gain_row(name, shape, ms, "Heinsen scan in torch (minGRU)", heinsen_ms, None)


def forward_and_backward(shape: tuple[int, int, int], device: str = "cuda") -> Callable[[], None]:
    """The scan and its gradients as users call them, by autograd."""
    cand, beta, weight = (torch.randn(shape, device=device) for _ in range(3))
    alpha = torch.ones(shape[2], device=device)
    cand.requires_grad_()
    beta.requires_grad_()

    def compute() -> None:
        bmru_scan(cand, beta, alpha).backward(weight)
        cand.grad = beta.grad = None

    return compute


def random_peer_rows(seed: int) -> Iterator[Row]:
    """accelerated-scan at the random shapes, on tensors that lie as it wants them, [B, N, T]; then the median gain."""
    if not find_spec("accelerated_scan"):
        return
    from accelerated_scan.scalar import scan  # pyright: ignore[reportMissingImports]

    rows: list[Row] = []
    for (B, T, N), itemsize in random_shapes(seed):
        options: dict[str, Any] = {"device": "cuda", "dtype": torch.float32 if itemsize == 4 else torch.bfloat16}
        ms = milliseconds(bmru_passes(torch.randn(B, T, 2 * N, **options), N)[0])
        across = torch.rand(B, N, T, **options), torch.randn(B, N, T, **options)
        theirs = milliseconds(partial(scan, *across))
        row = gain_row(
            "BMRU forward at a random shape", (B, T, N), ms, "accelerated-scan", theirs, None, options["dtype"]
        )
        rows.append(row)
        yield row
    ratio = percentile([row.ratio for row in rows], 0.5)
    middle = next(row for row in rows if row.ratio == ratio)
    yield replace(middle, name="BMRU forward, median over random shapes", goal=1.0)


def _associative_scan(gate: Tensor, value: Tensor) -> Tensor:
    from torch._higher_order_ops.associative_scan import associative_scan

    return associative_scan(lambda x, y: (y[0] * x[0], y[0] * x[1] + y[1]), (gate, value), dim=1)[1]


def _heinsen_scan(gate: Tensor, value: Tensor) -> Tensor:
    """``h_t = gate_t h_{t-1} + |value_t|`` by two cumulative sums of logarithms, as minGRU's authors compute it."""
    decay = gate.log().cumsum(1)
    return (decay + (value.abs().log() - decay).logcumsumexp(1)).exp()
