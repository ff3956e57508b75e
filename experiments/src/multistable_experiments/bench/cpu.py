"""Speed on the CPU: the scan against torch operations that move as much, layers and single steps against other layers,
growth with T.

All in float32. What a scan must move decides its baseline: forward reads cand and beta and writes h (3 tensors, as
``torch.add(cand, beta)``); backward reads the gradient of h, cand, beta and h and writes two gradients (6 tensors, as 3
clones, each of which reads one and writes one).
"""

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch
from torch import Tensor, nn

from multistable.layers import BMRU, BMRUCell, HysteresisMRU
from multistable.ops import release_memory
from multistable_experiments.bench.measure import KEEP_MEMORY, peak_bytes_of, peak_rss, printed_by, take_turns
from multistable_experiments.bench.report import Row

__all__ = ["rows"]

SHAPES = ((32, 1024, 256), (1, 65536, 256))  # B, T, N; the layers' input has N features too
LENGTHS = tuple(2**k for k in range(10, 21, 2))
STEADY = 2**16  # from here on all tensors are larger than the caches, and the time per step should not change
GOALS = {
    ("forward", SHAPES[1]): 10.0,
    ("training step", SHAPES[0]): 6.0,
}


def rows(
    shapes: Sequence[tuple[int, int, int]] = SHAPES, lengths: Sequence[int] = LENGTHS, repeats: int = 3
) -> Iterator[Row]:
    """All measurements, as they come."""
    for shape in shapes:
        yield from scan_rows(shape, repeats=7 * repeats)
    for shape in shapes:
        yield from layer_rows(shape, 2 * repeats + 1 if shape[0] > 1 else repeats)  # one sequence: nn.GRU takes 30 s
    yield from exact_rows(shapes[0], repeats)
    yield from step_rows(shapes[-1][2], 7 * repeats)
    yield from time_growth(lengths, shapes[-1][2], repeats)
    yield from memory_growth(lengths, shapes[-1][2])


def scan_rows(shape: tuple[int, int, int], repeats: int) -> Iterator[Row]:
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


def layer_rows(shape: tuple[int, int, int], repeats: int) -> Iterator[Row]:
    """The whole layer, projections included, against nn.GRU and nn.LSTM of the same size.

    The layer is measured with the memory that it kept from its last call, as users have it, and once more with fresh
    memory, which nn.GRU takes at every call.
    """
    B, T, N = shape
    x = torch.randn(B, T, N)
    layers = [layer(N, N, batch_first=True) for layer in (BMRU, nn.GRU, nn.LSTM)]
    for what, compute in (("forward", _infer), ("training step", _train)):
        for layer in layers:
            compute(layer, x[:, :64])  # warm: a whole round of the others would take half of the benchmark's time
        calls = [partial(compute, layer, x) for layer in layers]
        ms, gru, lstm, fresh_ms = take_turns([*calls, partial(_afresh, calls[0])], repeats, warm_up=0)
        goal = GOALS.get((what, shape))
        yield Row(f"BMRU layer, {what}", shape, "float32", ms, "nn.GRU", gru, kind="gain", goal=goal)
        yield Row(f"BMRU layer, {what}, fresh memory", shape, "float32", fresh_ms, "nn.GRU", gru, kind="gain")
        yield Row(f"BMRU layer, {what}", shape, "float32", ms, "nn.LSTM", lstm, kind="gain")


def exact_rows(shape: tuple[int, int, int], repeats: int) -> Iterator[Row]:
    """The exact unit against the BMRU, its approximation: what solving for the equilibria costs."""
    B, T, N = shape
    x = torch.randn(B, T, N)
    for what, compute in _WORK.items():
        exact, bmru = (partial(compute, layer(N, N, batch_first=True), x) for layer in (HysteresisMRU, BMRU))
        ms, baseline_ms = take_turns([exact, bmru], repeats)
        goal = 8.0 if what == "training step" else None
        yield Row(f"HysteresisMRU layer, {what}", shape, "float32", ms, "BMRU layer", baseline_ms, goal=goal)


def step_rows(N: int, repeats: int) -> Iterator[Row]:
    """Single timesteps without gradients at batch 1, as in streaming: what a call costs, whatever it computes."""
    x, h = torch.randn(1, N), torch.zeros(1, N)
    cell, peer_cell, rnn, peer = BMRUCell(N, N), nn.GRUCell(N, N), BMRU(N, N), nn.GRU(N, N)
    pairs = {
        ("BMRUCell", "nn.GRUCell"): (partial(cell, x, h), partial(peer_cell, x, h)),
        ("BMRU.step", "nn.GRU, T = 1"): (partial(rnn.step, x, h[None]), partial(peer, x[None], h[None])),
    }
    for (name, baseline), calls in pairs.items():
        with torch.no_grad():
            ours, theirs = (
                10 * ms for ms in take_turns([partial(_repeat, call, times=100) for call in calls], repeats)
            )
        yield Row(f"{name}, one timestep", (1, 1, N), "float32", ours, baseline, theirs, unit="us")


def time_growth(lengths: Sequence[int], N: int, repeats: int) -> Iterator[Row]:
    """Time per timestep of the layer at B = 1, all lengths in turns; the slowest over the fastest from STEADY on.

    It is measured in a process that keeps the memory it frees (:data:`KEEP_MEMORY`), and
    once more in one that keeps only the 256 MiB of the layers. The latter includes the price of fresh memory, which
    grows where a virtual machine has handed back to its host what was freed (``docs/log.md``).
    """
    steady = [T for T in lengths if min(STEADY, lengths[-1]) <= T]
    measure = partial(printed_by, "multistable_experiments.bench.cpu", "time", N, repeats)
    kept, fresh = measure(*lengths, **KEEP_MEMORY), measure(*steady)
    for what in _WORK:
        name, per_step = f"BMRU layer, {what}, per step", {int(T): us for T, us in kept[what].items()}
        for T, us in per_step.items():
            yield Row(name, (1, T, N), "float32", us, f"T = {steady[0]}", per_step[steady[0]], unit="us")
        yield _spread(name, N, {T: per_step[T] for T in steady}, 1.3)
        yield _spread(f"{name}, fresh memory", N, {int(T): us for T, us in fresh[what].items()}, None)


def _spread(name: str, N: int, times: dict[int, float], goal: float | None) -> Row:
    slow, fast = max(times, key=times.__getitem__), min(times, key=times.__getitem__)
    name, baseline = f"{name}, slowest T over fastest", f"T = {fast}"
    return Row(name, (1, slow, N), "float32", times[slow], baseline, times[fast], goal=goal, unit="us")


def _microseconds_per_step(N: int, repeats: int, *lengths: int) -> dict[str, dict[int, float]]:
    """Of each kind of work at each length. Each turn takes as many timesteps, in one call or in many."""
    layer, x, found = BMRU(N, N, batch_first=True), torch.randn(1, lengths[-1], N), {}
    for what, compute in _WORK.items():
        counts = {T: lengths[-1] // T for T in lengths}
        calls = [partial(_repeat, partial(compute, layer, x[:, :T]), times=count) for T, count in counts.items()]
        turns = zip(counts.items(), take_turns(calls, repeats), strict=True)
        found[what] = {T: 1e3 * ms / (T * count) for (T, count), ms in turns}
    return found


def memory_growth(lengths: Sequence[int], N: int) -> Iterator[Row]:
    """Peak memory per timestep of the layer at B = 1, against that at STEADY: linear growth is a ratio of 1."""
    for what in _WORK:
        peaks = {T: peak_bytes_of("multistable_experiments.bench.cpu", what, T, N) / T / 1024 for T in lengths}
        first = min(STEADY, lengths[-1])
        for T, kib in peaks.items():
            goal = 1.1 if first < T else None
            yield Row(
                f"BMRU layer, {what}, peak memory per step", (1, T, N), "float32", kib, f"T = {first}", peaks[first],
                goal=goal, unit="KiB",
            )  # fmt: skip


def _repeat(compute: Callable[[], object], times: int) -> None:
    for _ in range(times):
        compute()


def _afresh(compute: Callable[[], Tensor]) -> Tensor:
    release_memory()
    return compute()


def _infer(layer: nn.Module, x: Tensor) -> Tensor:
    with torch.no_grad():
        return layer(x)[0]


def _train(layer: nn.Module, x: Tensor) -> Tensor:
    """Forward, and backward to the parameters from a gradient of all outputs: x, which has their shape."""
    output = layer(x)[0]
    torch.autograd.grad(output, tuple(layer.parameters()), x)
    return output


_WORK: dict[str, Callable[[nn.Module, Tensor], Tensor]] = {"forward": _infer, "training step": _train}


def _peak_bytes(what: str, T: int, N: int) -> int:
    """How much one call raises the peak memory of this process, input included."""
    layer = BMRU(N, N, batch_first=True)
    _WORK[what](layer, torch.randn(1, 8, N))  # loads and compiles what the call needs
    before = peak_rss()
    _WORK[what](layer, torch.randn(1, T, N))
    return max(peak_rss() - before, 4096)  # a call that fits into what was freed before shows nothing: one page


if __name__ == "__main__":
    if sys.argv[1] == "time":
        print(json.dumps(_microseconds_per_step(*map(int, sys.argv[2:]))))
    else:
        print(_peak_bytes(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
