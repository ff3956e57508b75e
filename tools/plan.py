"""A plan on paper: the time of a training step of BMRU layers over 1, 8, 64 and 512 GPUs, for up to 2^30 timesteps.

python tools/plan.py                     from the measured speeds of one H200, with the assumptions it prints
python tools/plan.py --layers 12

Nothing here was measured on more than one GPU.
"""

import argparse
import json
from dataclasses import dataclass
from math import ceil
from pathlib import Path

SPEEDS = Path(__file__).parents[1] / "experiments" / "benchmarks" / "results" / "nvidia-h200.json"


@dataclass(frozen=True)
class Assumptions:
    """Links are those that vendors publish. ``host_s`` was measured on one H200 (``bench/passes.py``); the rest are
    guesses."""

    gpus_per_node: int = 8
    nvlink_bytes_per_s: float = 450e9  # NVLink 4: 900 GB/s, both directions together
    network_bytes_per_s: float = 50e9  # InfiniBand NDR: 400 Gbit/s per GPU
    nvlink_latency_s: float = 3e-6  # per step of a ring
    network_latency_s: float = 8e-6
    host_s: float = 0.75e-3  # per exchange: small kernels for searching and composing, from Python
    memory_bytes: float = 100e9  # of one GPU, for activations
    writes_in_window: bool = True  # every unit writes in the first and last 256 steps of a piece; else a scan more


@dataclass(frozen=True)
class Kernels:
    """Seconds per timestep of one layer, B = 1, N = 256, bfloat16."""

    scan_forward: float
    scan_backward: float
    layer: float  # forward and backward, projections included, as a CUDA graph

    @classmethod
    def read(cls, path: Path = SPEEDS) -> "Kernels":
        rows = [row for row in json.loads(path.read_text())["rows"] if "ms" in row]

        def per_step(name: str, shape: list[int]) -> float:
            times = [x["ms"] for x in rows if (x["name"], x["shape"], x["dtype"]) == (name, shape, "bfloat16")]
            return times[0] / 1e3 / (shape[0] * shape[1])

        long, layer = [1, 1 << 20, 256], [64, 2048, 256]
        name = "BMRU layer, forward + backward, in a graph"
        return cls(per_step("BMRU forward", long), per_step("BMRU backward", long), per_step(name, layer))


def gather_seconds(given: Assumptions, gpus: int, size: float) -> float:
    """A ring that hands each rank's ``size`` bytes to all others. Its slowest links count."""
    if gpus == 1:
        return 0.0
    within = gpus <= given.gpus_per_node
    latency, speed = (
        (given.nvlink_latency_s, given.nvlink_bytes_per_s)
        if within
        else (given.network_latency_s, given.network_bytes_per_s)
    )
    return (gpus - 1) * (latency + size / speed)


def step_seconds(kernels: Kernels, given: Assumptions, T: int, gpus: int, layers: int) -> dict[str, float]:
    """Seconds of one training step, and what they consist of. B = 1, N = 256, bfloat16."""
    N, steps = 256, layers * ceil(T / gpus)
    pieces = ceil(steps * 8 * N / given.memory_bytes)  # input, projection and states: 2, 4 and 2 bytes per unit
    projections = kernels.layer - kernels.scan_forward - kernels.scan_backward  # one product forwards, two backwards
    forward = projections / 3 + kernels.scan_forward
    searched = gpus > 1 and not given.writes_in_window
    parts = {
        "compute": steps * kernels.layer,
        "again": steps * forward if pieces > 1 else 0.0,  # streamed: every piece is computed a second time
        "search": steps * (kernels.scan_forward + kernels.scan_backward) if searched else 0.0,
        "exchange": 0.0,
        "reduce": 2 * gather_seconds(given, gpus, 4 * layers * (2 * N * N + 3 * N) / gpus),  # gradients of parameters
    }
    if gpus > 1:
        messages = gather_seconds(given, gpus, 2 * N / 8) + gather_seconds(given, gpus, 4 * N)
        parts["exchange"] = pieces * layers * (messages + 2 * given.host_s)
    return parts


def show(kernels: Kernels, given: Assumptions, layers: int) -> str:
    lines = ["Assumptions:", *(f"    {name} = {value:g}" for name, value in vars(given).items())]
    lines += ["Measured (bfloat16, N = 256, ns per timestep and layer):"]
    lines += [f"    {name} = {1e9 * value:.2f}" for name, value in vars(kernels).items()]
    lines += ["", f"| T | {' | '.join(f'{gpus} GPU' for gpus in GPUS)} |", "|---" * (1 + len(GPUS)) + "|"]
    for exponent in range(20, 31, 2):
        alone = sum(step_seconds(kernels, given, 1 << exponent, 1, layers).values())
        cells: list[str] = []
        for gpus in GPUS:
            parts = step_seconds(kernels, given, 1 << exponent, gpus, layers)
            seconds = sum(parts.values())
            share = (parts["exchange"] + parts["reduce"]) / seconds
            cells.append(
                f"{1e3 * seconds:,.1f} ms" + (f", x{alone / seconds:.1f}, {share:.0%} waiting" if gpus > 1 else "")
            )
        lines.append(f"| 2^{exponent} | {' | '.join(cells)} |")
    return "\n".join(lines)


GPUS = (1, 8, 64, 512)

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=1)
    parser.add_argument("--rarely", action="store_true", help="some units write less than once in 256 steps")
    options = parser.parse_args()
    print(show(Kernels.read(), Assumptions(writes_in_window=not options.rarely), options.layers))
