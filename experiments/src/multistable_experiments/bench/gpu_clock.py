"""Time on a GPU, in a CUDA graph or as called from Python, and rows that compare it."""

import statistics
import time
from collections.abc import Callable
from functools import cache

import torch

from multistable_experiments.bench.report import Row

__all__ = ["copy_bandwidth", "eager_milliseconds", "gain_row", "milliseconds", "python_milliseconds", "share_row"]


def milliseconds(compute: Callable[[], object]) -> float:
    """Time on the GPU alone: replays of a graph of many calls."""
    from triton.testing import do_bench_cudagraph

    return do_bench_cudagraph(compute, rep=20, return_mode="median")  # pyright: ignore[reportReturnType]


def eager_milliseconds(compute: Callable[[], object]) -> float:
    """Time as called from Python, launches included."""
    from triton.testing import do_bench

    return do_bench(compute, warmup=25, rep=100, return_mode="median")  # pyright: ignore[reportReturnType]


def python_milliseconds(compute: Callable[[], object], calls: int = 200, rounds: int = 5) -> float:
    """Time of a call in a loop of Python, the GPU waiting for nothing else: the median of several loops."""
    times = []
    for _ in range(rounds + 1):  # the first one warms up
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(calls):
            compute()
        torch.cuda.synchronize()
        times.append(1e3 * (time.perf_counter() - start) / calls)
    return statistics.median(times[1:])


@cache
def copy_bandwidth() -> float:
    """Bytes read and written per millisecond by a large copy.

    Not in a graph: there the copy engine reaches 2.7 TB/s on an H200, the multiprocessors 4.2.
    """
    source = torch.randn(1 << 28, device="cuda")
    target = torch.empty_like(source)
    return 2 * source.nbytes / eager_milliseconds(lambda: target.copy_(source))


def share_row(name: str, shape: tuple[int, ...], compute: Callable[[], object], size: int, dtype: torch.dtype) -> Row:
    copy_ms = size / copy_bandwidth()
    baseline = f"copy of {size / 1e6:,.0f} MB"
    return Row(name, shape, str(dtype)[6:], milliseconds(compute), baseline, copy_ms, "share")


def gain_row(
    name: str, shape: tuple[int, ...], ms: float, baseline: str, baseline_ms: float, goal: float | None,
    dtype: torch.dtype = torch.float32,
) -> Row:  # fmt: skip
    return Row(name, shape, str(dtype)[6:], ms, baseline, baseline_ms, "gain", goal)
