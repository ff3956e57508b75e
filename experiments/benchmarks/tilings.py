"""Which tiling of a GPU kernel is the fastest at a shape, and how long it takes to compile. Needs a GPU.

    python experiments/benchmarks/tilings.py bmru-backward --shape 64 2048 256 --dtype bfloat16

Tries every tiling of a grid, with sequences whole and cut into chunks, and prints the fastest: its share of copy, the
time, and the processor time of the compilation (that of Triton's passes, without ptxas). The results of all are
compared with those of the tiling in use. The tables ``_TILINGS`` of the kernels were chosen on an H200; on another GPU
other tilings may be faster.
"""

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch
from torch import Tensor

from multistable.ops.threads import for_each
from multistable.ops.triton import latch, latch_grad, linear, linear_grad, maps, primitives
from multistable.ops.triton.launch import Tiling, Tilings
from multistable.ops.triton.variants import THREADS
from multistable_experiments.bench.gpu_clock import copy_bandwidth, milliseconds
from multistable_experiments.bench.gpu_scans import bmru_passes, lru_passes, map_pass

GRID = {"steps": (4, 8, 16), "stages": (3, 4, 6), "warps": (1, 2, 4), "columns": (16, 32, 64)}
WHOLE, CUT = 0.0, 8.0
"""The fewest warps per multiprocessor below which sequences are cut."""
MODULES = {
    "bmru-forward": latch, "bmru-backward": latch_grad, "lru-forward": linear, "lru-backward": linear_grad,
    "map-2": maps, "map-4": maps, "map-8": maps, "map-2-single": maps, "map-4-single": maps,
}  # fmt: skip
"""A *single* map per thread, not four in a word."""
SAME = 1e-2
"""The largest difference between two gradients, relative to the largest number: they are summed in another order."""


@dataclass
class Trial:
    tiling: Tiling
    cut: bool
    compilation: float = 0.0
    ms: float = float("inf")
    wrong: bool = False


def trials_of(grid: dict[str, Sequence[int]]) -> list[Trial]:
    """All tilings of a grid with 1 to 32 strands."""
    tilings = [Tiling(U, stages, warps, BN) for U, stages, warps, BN in product(*(grid[name] for name in GRID))]
    tilings = [each for each in tilings if 1 <= 32 * each.warps // each.BN <= 32]
    return [Trial(tiling, cut) for tiling, cut in product(tilings, (False, True))]


def call_of(kernel: str, shape: tuple[int, int, int], dtype: torch.dtype) -> tuple[Callable[[], Any], int]:
    """The operator that launches a kernel, and the bytes that it must move."""
    B, T, N = shape
    name, _, which = kernel.partition("-")
    if name == "map":
        if which.endswith("-single"):
            maps.can_pack = lambda *tensors, count=2: False
        words, forward = map_pass(shape, int(which.removesuffix("-single")))
        return forward, words.nbytes + words.numel()
    x = torch.randn(B, T, 2 * N, device="cuda", dtype=dtype)
    both, tensors = (bmru_passes(x, N), (3, 5)) if name == "bmru" else (lru_passes(x), (4, 6))
    index = ("forward", "backward").index(which)
    return both[index], tensors[index] * B * T * N * dtype.itemsize


def tune(kernel: str, shape: tuple[int, int, int], dtype: torch.dtype, trials: list[Trial]) -> tuple[float, float]:
    """Fill in the trials; return the time with the tiling in use and that of a copy, in milliseconds."""
    call, size = call_of(kernel, shape, dtype)
    module = MODULES[kernel]
    usual: dict[Any, Tilings] = dict(module._TILINGS)
    expected, used = call(), milliseconds(call)

    def use(trial: Trial) -> None:
        module._TILINGS.update(dict.fromkeys(usual, ((CUT if trial.cut else WHOLE, trial.tiling),)))

    try:
        compile_all(trials, use, call)
        for trial in trials:
            use(trial)
            trial.wrong = not same(call(), expected)
            trial.ms = milliseconds(call)
    finally:
        module._TILINGS.update(usual)
    return used, size / copy_bandwidth()


def compile_all(trials: list[Trial], use: Callable[[Trial], None], call: Callable[[], Any]) -> None:
    """Compile what the trials launch."""
    work: list[tuple[Trial, Callable[[], None]]] = []
    for trial in trials:
        use(trial)
        with primitives.planning() as plan:
            call()
        work += [(trial, variant) for variant in plan.values()]

    def compile_one(item: tuple[Trial, Callable[[], None]]) -> None:
        trial, variant = item
        start = time.thread_time()
        variant()
        trial.compilation += time.thread_time() - start

    for_each(work, compile_one, THREADS)


def same(found: Any, expected: Any) -> bool:
    """Whether two results are equal, but for the order of sums."""
    pairs: list[tuple[Tensor, Tensor]] = [(x.float(), y.float()) for x, y in zip(found, expected, strict=True)]
    return all((x - y).abs().amax() <= SAME * y.abs().amax() for x, y in pairs if x.numel())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kernel", choices=list(MODULES))
    parser.add_argument("--shape", type=int, nargs=3, default=(64, 2048, 256), metavar=("B", "T", "N"))
    parser.add_argument("--dtype", choices=("float32", "bfloat16", "float16"), default="float32")
    parser.add_argument("--best", type=int, default=15, help="how many to print")
    for name, values in GRID.items():
        parser.add_argument(f"--{name}", type=int, nargs="+", default=values, help=f"default: {values}")
    options = parser.parse_args()
    trials = trials_of({name: getattr(options, name) for name in GRID})
    used, copy = tune(options.kernel, tuple(options.shape), getattr(torch, options.dtype), trials)
    print(f"{options.kernel} at {options.shape}, {options.dtype}")
    print(f"in use: {copy / used:.3f} of copy, {1e3 * used:.1f} us")
    print("share      us  compile  steps  stages  warps  columns  cut")
    for trial in sorted(trials, key=lambda trial: trial.ms)[: options.best]:
        U, stages, warps, BN = trial.tiling
        print(
            f"{copy / trial.ms:5.3f}  {1e3 * trial.ms:6.1f}  {trial.compilation:5.2f} s  {U:5}  {stages:6}  {warps:5}  "
            f"{BN:7}  {'yes' if trial.cut else 'no':3}{'  WRONG' if trial.wrong else ''}"
        )
    if wrong := sum(trial.wrong for trial in trials):
        raise SystemExit(f"{wrong} tilings give other results than the one in use")


if __name__ == "__main__":
    main()
