"""What a user of a GPU meets outside of a CUDA graph: the first call, small layers, one timestep."""

import json
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from itertools import product
from typing import Any

import torch
from torch import nn

from multistable import Stack, StepGraph
from multistable.layers import BMRU, GRU, LRU, Hybrid, MinGRU
from multistable_experiments.bench.gpu_clock import python_milliseconds
from multistable_experiments.bench.measure import run_module
from multistable_experiments.bench.report import Row

__all__ = ["first_call_rows", "small_layer_rows", "step_graph_rows", "timestep_rows"]

SMALL = (16, 32, 64)
LAYERS = {kind.__name__: kind for kind in (BMRU, LRU, Hybrid, MinGRU)}
LIMITS = {"BMRU": 0.45, "LRU": 0.8, "Hybrid": 1.1}
"""Milliseconds of forward and backward at SMALL."""
FIRST_LIMITS = {"BMRU": 2.0, "LRU": 4.0}
"""Seconds of the first forward and backward with an empty cache of kernels."""


def small_layer_rows() -> Iterator[Row]:
    """Forward and backward, and forward without gradient, called from Python."""
    gru, graphed_gru = small_layer_times(nn.GRU), graphed_layer_time(nn.GRU)
    for name, kind in LAYERS.items():
        both, forward = small_layer_times(kind)
        call = f"{name} layer called from Python"
        yield Row(f"{call}, forward + backward", SMALL, "float32", both, "nn.GRU", gru[0])
        if name in LIMITS:
            yield Row(f"{call}, forward + backward", SMALL, "float32", both, "limit", LIMITS[name], goal=1.0)
        yield Row(f"{call}, forward", SMALL, "float32", forward, "nn.GRU", gru[1], goal=1.2)
        graphed = graphed_layer_time(kind)
        yield Row(
            f"{name} layer, graphed, forward + backward", SMALL, "float32", graphed, "nn.GRU, graphed", graphed_gru
        )
        if name in LIMITS:
            yield Row(f"{name} layer, graphed, forward + backward", SMALL, "float32", graphed, "limit", LIMITS[name])


def small_layer_times(kind: type[nn.Module]) -> tuple[float, float]:
    B, T, N = SMALL
    layer = kind(N, N, batch_first=True, device="cuda")
    x, weight = (torch.randn(B, T, N, device="cuda", requires_grad=True) for _ in range(2))
    inputs = (x, *layer.parameters())
    both = python_milliseconds(lambda: torch.autograd.grad(layer(x)[0], inputs, weight))
    with torch.no_grad():
        return both, python_milliseconds(lambda: layer(x))


def graphed_layer_time(kind: type[nn.Module]) -> float:
    """Forward and backward of a layer that torch has captured as two graphs (``torch.cuda.make_graphed_callables``)."""
    B, T, N = SMALL
    x, sample, weight = (torch.randn(B, T, N, device="cuda", requires_grad=True) for _ in range(3))
    layer: Any = torch.cuda.make_graphed_callables(kind(N, N, batch_first=True, device="cuda"), (sample,))
    inputs = (x, *layer.parameters())
    return python_milliseconds(lambda: torch.autograd.grad(layer(x)[0], inputs, weight))


@torch.no_grad()
def timestep_rows() -> Iterator[Row]:
    """``step`` of each layer without gradient, against nn.GRUCell."""
    for B, N, dtype in product((1, 64), (64, 256), (torch.float32, torch.bfloat16)):
        options = {"device": "cuda", "dtype": dtype}
        x = torch.randn(B, N, **options)
        cell = nn.GRUCell(N, N, **options)
        gru = 1e3 * python_milliseconds(partial(cell, x, torch.zeros_like(x)))
        for name, kind in LAYERS.items():
            layer = kind(N, N, **options)
            us = 1e3 * python_milliseconds(partial(layer.step, x, layer.step(x)[1]))
            yield Row(f"{name}.step", (B, 1, N), str(dtype)[6:], us, "nn.GRUCell", gru, goal=1.2, unit="us")


@torch.no_grad()
def step_graph_rows() -> Iterator[Row]:
    """One timestep replayed from a CUDA graph, of a layer and of a model of two blocks, against one of nn.GRU."""
    shape, dtype = (1, 1, 256), torch.bfloat16
    x = torch.randn(1, 256, device="cuda", dtype=dtype)
    gru = 1e3 * python_milliseconds(partial(StepGraph(GRU(256, 256).to("cuda", dtype), x), x))
    layers = {f"{name} layer": kind(256, 256) for name, kind in LAYERS.items()}
    for name, module in {**layers, "two blocks of a hybrid": Stack("hybrid", 256, 256, num_layers=2)}.items():
        us = 1e3 * python_milliseconds(partial(StepGraph(module.to("cuda", dtype), x), x))
        yield Row(f"{name}, in a StepGraph", shape, "bfloat16", us, "nn.GRU in a graph", gru, unit="us")


def first_call_rows() -> Iterator[Row]:
    """The first forward and backward of a process, with an empty cache of kernels and with a full one."""
    for name, limit in FIRST_LIMITS.items():
        with tempfile.TemporaryDirectory() as folder:
            for words, seconds in (("empty cache", limit), ("warm cache", 0.1)):
                taken, key = run_module(__name__, name, TRITON_CACHE_DIR=folder)
                title, shape = f"{name} layer, first call, {words}", (16, 1000, 256)
                yield Row(title, shape, "float32", taken, "limit", seconds, goal=1.0, unit="s")
                yield Row(title, shape, "float32", taken, "Triton's hash of its own library", key, unit="s")


def first_call(name: str) -> tuple[float, float]:
    """Seconds of the first forward and backward, after the context and the imports; how many of them Triton takes to
    hash its own library of half a gigabyte, once per process."""
    layer = LAYERS[name](256, 256, batch_first=True, device="cuda")
    x = torch.randn(16, 1000, 256, device="cuda", requires_grad=True)
    nn.functional.linear(x, torch.eye(256, device="cuda")).sum().backward()  # cuBLAS and autograd are there
    from triton.runtime import cache

    import multistable.ops.triton  # noqa: F401

    torch.cuda.synchronize()
    start = time.perf_counter()
    getattr(cache, "triton_key", lambda: None)()  # Triton's own name, not promised
    hashed = time.perf_counter()
    layer(x)[0].sum().backward()
    torch.cuda.synchronize()
    return time.perf_counter() - start, hashed - start


if __name__ == "__main__":
    print(json.dumps(first_call(sys.argv[1])))
