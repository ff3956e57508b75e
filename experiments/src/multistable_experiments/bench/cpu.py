"""Speed on the CPU: the scan against torch operations that move as many bytes, layers and single steps against other
layers, growth with T.

All in float32. The bytes that a scan must move decide its baseline: forward reads cand and beta and writes h (3
tensors, as ``torch.add(cand, beta)``); backward reads the gradient of h, cand, beta and h and writes two gradients (6
tensors, as 3 clones, each of which reads one and writes one).
"""

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch
from torch import Tensor, nn

from multistable.layers import BMRU, BMRUCell, HysteresisMRU
from multistable.ops import map_scan, release_memory
from multistable_experiments.bench.measure import KEEP_MEMORY, peak_rss, run_module, take_turns
from multistable_experiments.bench.report import Row

__all__ = ["PARTS"]

Shape = tuple[int, int, int]  # B, T, N; the layers' input has N features too
BATCH, LONG = (32, 1024, 256), (1, 65536, 256)
LENGTHS = tuple(2**k for k in range(10, 21, 2))
STEADY = 2**16  # from here on all tensors are larger than the caches, and the time per step should not change
GOALS = {("forward", LONG): 10.0, ("training step", BATCH): 6.0}


def scan_rows(shape: Shape, repeats: int) -> Iterator[Row]:
    """``bmru_scan`` and its backward against torch operations that move as many bytes."""
    ops = torch.ops.multistable
    cand, beta, grad_h = (torch.randn(shape) for _ in range(3))
    alpha, options = torch.ones(shape[2]), (1.0, False, "auto")  # alpha_surr, reverse, backend
    forward = partial(ops.bmru_scan, cand, beta, alpha, None, None, *options)
    h = forward()[0]
    backward = partial(ops.bmru_scan_backward, grad_h, None, cand, beta, alpha, None, None, h, *options)

    ms, baseline_ms = take_turns([forward, partial(torch.add, cand, beta)], repeats)
    yield Row("bmru_scan forward", shape, "float32", ms, "torch.add", baseline_ms, goal=1.5)
    ms, baseline_ms = take_turns([backward, lambda: [x.clone() for x in (cand, beta, grad_h)]], repeats)
    yield Row("bmru_scan backward", shape, "float32", ms, "3 clones", baseline_ms, goal=2.0)


def map_rows(shape: Shape, repeats: int) -> Iterator[Row]:
    """``map_scan`` from uint8 maps, their check included, against a Python loop over time."""
    for K, goal in ((2, 20.0), (4, 20.0), (8, 20.0), (16, None)):
        maps = torch.randint(K, (*shape, K), dtype=torch.uint8)
        ms, loop_ms = take_turns([partial(map_scan, maps), partial(map_scan, maps, backend="reference")], repeats)
        yield Row(f"map_scan, {K} states", shape, "uint8", ms, "Python loop", loop_ms, kind="gain", goal=goal)


def layer_rows(shape: Shape, repeats: int) -> Iterator[Row]:
    """The whole layer, projections included, against nn.GRU and nn.LSTM of the same size.

    The layer is measured with the memory that it kept from its last call, as users have it, and once more with fresh
    memory, which nn.GRU allocates at every call.
    """
    B, T, N = shape
    x = torch.randn(B, T, N)
    layers = [layer(N, N, batch_first=True) for layer in (BMRU, nn.GRU, nn.LSTM)]
    for work, compute in WORK.items():
        for layer in layers:
            compute(layer, x[:, :64])  # warm-up; a whole round would take half of the benchmark's time
        calls = [partial(compute, layer, x) for layer in layers]
        ms, gru, lstm, fresh_ms = take_turns([*calls, partial(with_fresh_memory, calls[0])], repeats, warm_up=0)
        goal = GOALS.get((work, shape))
        yield Row(f"BMRU layer, {work}", shape, "float32", ms, "nn.GRU", gru, kind="gain", goal=goal)
        yield Row(f"BMRU layer, {work}, fresh memory", shape, "float32", fresh_ms, "nn.GRU", gru, kind="gain")
        yield Row(f"BMRU layer, {work}", shape, "float32", ms, "nn.LSTM", lstm, kind="gain")


def exact_rows(shape: Shape, repeats: int) -> Iterator[Row]:
    """The exact unit against the BMRU, its approximation: the cost of solving for the equilibria."""
    B, T, N = shape
    x = torch.randn(B, T, N)
    for work, compute in WORK.items():
        exact, bmru = (partial(compute, layer(N, N, batch_first=True), x) for layer in (HysteresisMRU, BMRU))
        ms, baseline_ms = take_turns([exact, bmru], repeats)
        goal = 8.0 if work == "training step" else None
        yield Row(f"HysteresisMRU layer, {work}", shape, "float32", ms, "BMRU layer", baseline_ms, goal=goal)


def step_rows(N: int, repeats: int) -> Iterator[Row]:
    """Single timesteps without gradients at batch 1, as in streaming: the cost of a call."""
    x, h = torch.randn(1, N), torch.zeros(1, N)
    rnn, gru = BMRU(N, N), nn.GRU(N, N)
    pairs = {
        ("BMRUCell", "nn.GRUCell"): (partial(BMRUCell(N, N), x, h), partial(nn.GRUCell(N, N), x, h)),
        ("BMRU.step", "nn.GRU, T = 1"): (partial(rnn.step, x, h[None]), partial(gru, x[None], h[None])),
    }
    for (name, baseline), calls in pairs.items():
        with torch.no_grad():
            ours_ms, theirs_ms = take_turns([partial(repeat, call, 100) for call in calls], repeats)
        us, baseline_us = 10 * ours_ms, 10 * theirs_ms
        yield Row(f"{name}, one timestep", (1, 1, N), "float32", us, baseline, baseline_us, unit="us")


def time_growth(lengths: Sequence[int], N: int, repeats: int) -> Iterator[Row]:
    """Time per timestep of the layer at B = 1, all lengths in turns; the slowest over the fastest from STEADY on.

    Measured in a process that keeps the memory it frees (:data:`KEEP_MEMORY`), and once more in one that keeps only
    the 256 MiB of the layers. The latter includes the cost of fresh memory, which grows where a virtual machine has
    returned freed memory to its host (``docs/log.md``).
    """
    steady = [T for T in lengths if min(STEADY, lengths[-1]) <= T]
    kept = run_module(__name__, "time", N, repeats, *lengths, **KEEP_MEMORY)
    fresh = run_module(__name__, "time", N, repeats, *steady)
    for work in WORK:
        name, us = f"BMRU layer, {work}, per step", dict(zip(lengths, kept[work], strict=True))
        for T in lengths:
            yield Row(name, (1, T, N), "float32", us[T], f"T = {steady[0]}", us[steady[0]], unit="us")
        yield slowest_over_fastest(name, N, {T: us[T] for T in steady}, goal=1.3)
        yield slowest_over_fastest(f"{name}, fresh memory", N, dict(zip(steady, fresh[work], strict=True)), goal=None)


def slowest_over_fastest(name: str, N: int, us: dict[int, float], goal: float | None) -> Row:
    slow, fast = max(us, key=us.__getitem__), min(us, key=us.__getitem__)
    name, shape = f"{name}, slowest T over fastest", (1, slow, N)
    return Row(name, shape, "float32", us[slow], f"T = {fast}", us[fast], goal=goal, unit="us")


def memory_growth(lengths: Sequence[int], N: int) -> Iterator[Row]:
    """Peak memory per timestep of the layer at B = 1, against that at STEADY: linear growth is a ratio of 1."""
    for work in WORK:
        name, base = f"BMRU layer, {work}, peak memory per step", min(STEADY, lengths[-1])
        kib = {T: peak_bytes(work, T, N) / T / 1024 for T in lengths}
        for T in lengths:
            goal = 1.1 if base < T else None
            yield Row(name, (1, T, N), "float32", kib[T], f"T = {base}", kib[base], goal=goal, unit="KiB")


def peak_bytes(work: str, T: int, N: int, runs: int = 2) -> int:
    """How much one call raises the peak memory of a new process, input included.

    The smallest of ``runs``, because the first may include numba's compiler (41 MB instead of 34 in the test).
    """
    return min(run_module(__name__, "memory", N, T, work) for _ in range(runs))


# What the new processes run


def microseconds_per_step(N: int, repeats: int, *lengths: int) -> dict[str, list[float]]:
    """Time of each kind of work at each length. Each turn computes as many timesteps, in one call or in many."""
    layer, x, times = BMRU(N, N, batch_first=True), torch.randn(1, lengths[-1], N), {}
    for work, compute in WORK.items():
        counts = [lengths[-1] // T for T in lengths]
        calls = [partial(compute, layer, x[:, :T]) for T in lengths]
        turns = take_turns([partial(repeat, call, count) for call, count in zip(calls, counts, strict=True)], repeats)
        times[work] = [1e3 * ms / (T * count) for ms, T, count in zip(turns, lengths, counts, strict=True)]
    return times


def growth_of_peak(N: int, T: int, work: str) -> int:
    """Bytes by which one call raises the peak memory of this process."""
    layer = BMRU(N, N, batch_first=True)
    WORK[work](layer, torch.randn(1, 8, N))  # loads and compiles what the call needs
    before = peak_rss()
    WORK[work](layer, torch.randn(1, T, N))
    return max(peak_rss() - before, 4096)  # one page, if the call fits into memory freed before


def infer(layer: nn.Module, x: Tensor) -> Tensor:
    with torch.no_grad():
        return layer(x)[0]


def train(layer: nn.Module, x: Tensor) -> Tensor:
    """Forward, and backward to the parameters; the gradient of the outputs is x, which has their shape."""
    output = layer(x)[0]
    torch.autograd.grad(output, tuple(layer.parameters()), x)
    return output


WORK: dict[str, Callable[[nn.Module, Tensor], Tensor]] = {"forward": infer, "training step": train}


def repeat(compute: Callable[[], object], times: int) -> None:
    for _ in range(times):
        compute()


def with_fresh_memory(compute: Callable[[], Tensor]) -> Tensor:
    release_memory()
    return compute()


PARTS: dict[str, Callable[[], Iterator[Row]]] = {
    "scans": partial(scan_rows, BATCH, repeats=21),
    "long-scans": partial(scan_rows, LONG, repeats=21),
    "maps": partial(map_rows, (16, 512, 256), repeats=21),
    "layers": partial(layer_rows, BATCH, repeats=7),
    "long-layers": partial(layer_rows, LONG, repeats=3),  # nn.GRU takes 30 s
    "exact": partial(exact_rows, BATCH, repeats=3),
    "steps": partial(step_rows, N=256, repeats=21),
    "time": partial(time_growth, LENGTHS, N=256, repeats=3),
    "memory": partial(memory_growth, LENGTHS, N=256),
}
"""What is measured, each row yielded as soon as it is done."""


if __name__ == "__main__":
    what, *words = sys.argv[1:]
    if what == "time":
        print(json.dumps(microseconds_per_step(*map(int, words))))
    else:
        print(growth_of_peak(int(words[0]), int(words[1]), words[2]))
