"""The scans on a GPU against a copy of as many bytes, at fixed shapes and at random ones."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from multistable.ops.maps import pack
from multistable_experiments.bench.gpu_clock import share_row
from multistable_experiments.bench.report import Row
from multistable_experiments.bench.shapes import SMALL, percentile, random_shapes

__all__ = [
    "LONG",
    "SHAPES",
    "bmru_passes",
    "fixed_rows",
    "lru_passes",
    "map_pass",
    "map_rows",
    "random_rows",
    "silent_rows",
    "small_rows",
]

SHAPES = ((64, 2048, 256), (256, 784, 256), (16, 16384, 1024))
LONG = (1, 1 << 20, 256)
GOALS = {"BMRU forward": 0.88, "BMRU backward": 0.80, "LRU forward": 0.75, "LRU backward": 0.75}
LONG_GOALS = {"BMRU forward": 0.70, "BMRU backward": 0.70, "LRU forward": 0.62, "LRU backward": 0.62}
RANDOM_GOALS = {
    "BMRU forward": (0.85, 0.70),
    "BMRU backward": (0.78, 0.62),
    "LRU forward": (0.72, 0.50),
    "LRU backward": (0.72, 0.50),
}
"""Of the median over random shapes, and of the tenth percentile."""


def fixed_rows() -> Iterator[Row]:
    """At the shapes that the kernels were tuned on."""
    for shape in (*SHAPES, LONG):
        goals = LONG_GOALS if shape == LONG else GOALS
        for dtype in (torch.float32, torch.bfloat16):
            for row in scan_rows(shape, dtype):
                yield replace(row, goal=goals[row.name])


def random_rows(seed: int) -> Iterator[Row]:
    """At 40 shapes that nobody could tune for; then the median and the tenth percentile of each kernel's shares."""
    found: dict[str, list[Row]] = {name: [] for name in RANDOM_GOALS}
    for shape, itemsize in random_shapes(seed):
        for row in scan_rows(shape, torch.float32 if itemsize == 4 else torch.bfloat16):
            found[row.name].append(row)
            yield replace(row, name=f"{row.name}, random shape")
    for name, goals in RANDOM_GOALS.items():
        for share, words, goal in ((0.5, "median", goals[0]), (0.1, "tenth percentile", goals[1])):
            ratio = percentile([row.ratio for row in found[name]], share)
            row = next(row for row in found[name] if row.ratio == ratio)
            yield replace(row, name=f"{name}, {words} of random shapes", goal=goal)


def small_rows() -> Iterator[Row]:
    """At shapes so small that launching and latency rule, without a goal."""
    for shape in SMALL:
        for dtype in (torch.float32, torch.bfloat16):
            for row in scan_rows(shape, dtype):
                yield replace(row, name=f"{row.name}, small shape")


def scan_rows(shape: tuple[int, int, int], dtype: torch.dtype) -> Iterator[Row]:
    """Forward and backward of both recurrences."""
    yield from bmru_rows(shape, dtype)
    yield from linear_rows(shape, dtype)


def bmru_rows(shape: tuple[int, int, int], dtype: torch.dtype) -> Iterator[Row]:
    """The BMRU on the two halves of a projection, as in the layer."""
    B, T, N = shape
    proj = torch.randn(B, T, 2 * N, device="cuda", dtype=dtype)
    forward, backward = bmru_passes(proj, N)
    yield share_row("BMRU forward", shape, forward, 3 * B * T * N * dtype.itemsize, dtype)
    yield share_row("BMRU backward", shape, backward, 5 * B * T * N * dtype.itemsize, dtype)


def silent_rows(shape: tuple[int, int, int]) -> Iterator[Row]:
    """The worst case of a long sequence in chunks: no unit ever writes, and each chunk is read to its end twice."""
    B, T, N = shape
    proj = torch.randn(B, T, 2 * N, device="cuda")
    proj[..., N:] = 1e9
    forward, backward = bmru_passes(proj, N)
    yield share_row("BMRU forward, no write", shape, forward, 3 * 4 * B * T * N, torch.float32)
    yield share_row("BMRU backward, no write", shape, backward, 5 * 4 * B * T * N, torch.float32)


def linear_rows(shape: tuple[int, int, int], dtype: torch.dtype) -> Iterator[Row]:
    """The LRU's recurrence: constant complex coefficients, N complex units as 2N real numbers."""
    B, T, N = shape
    forward, backward = lru_passes(torch.randn(B, T, 2 * N, device="cuda", dtype=dtype))
    size = B * T * 2 * N * dtype.itemsize
    yield share_row("LRU forward", shape, forward, 2 * size, dtype)
    yield share_row("LRU backward", shape, backward, 3 * size, dtype)


def bmru_passes(proj: Tensor, N: int) -> tuple[Callable[[], object], Callable[[], object]]:
    """Forward and backward of the layer's operator."""
    ops = torch.ops.multistable
    alpha, options = torch.ones(N, device="cuda"), (1.0, False, False, "triton")
    forward = partial(ops.bmru_layer, proj, alpha, None, None, *options)
    h = forward()[0]
    backward = partial(ops.bmru_layer_backward, torch.randn_like(h), None, proj, alpha, None, None, h, *options)
    return forward, backward


def lru_passes(b: Tensor) -> tuple[Callable[[], object], Callable[[], object]]:
    """Forward and backward of the layer's operator, on inputs ``b [B, T, 2N]``."""
    ops, N = torch.ops.multistable, b.shape[2] // 2
    a = torch.polar(0.99 * torch.rand(N, device="cuda").sqrt(), 6.28 * torch.rand(N, device="cuda"))
    a = torch.cat([a.real, a.imag])
    forward = partial(ops.linear_scan, a, b, None, None, True, False, "triton")
    h = forward()[0]
    backward = partial(ops.linear_scan_backward, torch.randn_like(b), None, a, None, None, h, True, False, "triton")
    return forward, backward


def map_rows(shape: tuple[int, int, int]) -> Iterator[Row]:
    """Machines of 2, 4 and 8 states, from packed maps: the words in, the states out, one byte each."""
    for K, goal in ((2, 0.68), (4, 0.70), (8, 0.70)):
        words, forward = map_pass(shape, K)
        size = words.nbytes + words.numel()
        yield replace(share_row(f"map scan, {K} states", shape, forward, size, words.dtype), goal=goal)


def map_pass(shape: tuple[int, int, int], K: int) -> tuple[Tensor, Callable[[], object]]:
    """Packed random maps of K states, and the scan over them."""
    words = pack(torch.randint(K, (*shape, K), device="cuda", dtype=torch.uint8))
    return words, partial(torch.ops.multistable.map_scan, words, None, None, K, False, "triton")
