"""Call layers and a model for a long time, and measure how much the process grows.

    python tools/soak.py [--calls 20000] [--threads 1]

Forward and backward, sizes in turn, every layer but torch's own; the growth is that of the resident memory after the
first tenth of the calls, in which caches fill. (torch's LSTM keeps a compiled kernel for every length of a sequence:
it grows by 4 MiB in 300 calls.)
"""

import argparse
import gc
import resource
from pathlib import Path

import torch

from multistable import ModelConfig, build_model
from multistable.layers.registry import LAYERS


def resident() -> float:
    """MiB."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 2**20


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--calls", type=int, default=20_000)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    names = [name for name in LAYERS if name not in ("gru", "lstm")]
    models = [build_model(ModelConfig((name,), 3, 2, d_model=16, d_state=16)) for name in names]
    inputs = [torch.randn(B, T, 3) for B, T in ((2, 10), (8, 40), (1, 100))]
    before = 0.0
    for i in range(options.calls):
        x = inputs[i % len(inputs)]
        y, _ = models[i % len(models)](x, lengths=torch.randint(1, x.shape[1] + 1, (len(x),)) if i % 2 else None)
        y.sum().backward()
        if i == options.calls // 10:
            gc.collect()
            before = resident()
    gc.collect()
    after = resident()
    print(f"{options.calls} calls of {len(models)} models: {before:.0f} to {after:.0f} MiB, {after - before:+.1f} MiB")


if __name__ == "__main__":
    main()
