"""One training step of a BMRU layer over a sequence of any length, in pieces: seconds and memory.

python -m multistable_experiments.bench.long_sequence --device cuda --dtype bfloat16 --steps 2**30

The input is an embedding of 256 tokens, drawn again for every piece from its own seed. The loss is the mean square of
the outputs, summed over units. Prints one line of JSON per length, shortest first. Memory is the peak of the device, or
the resident set on a CPU.
"""

import argparse
import json
import time
from typing import Any

import torch
from torch import Tensor, nn

from multistable import BMRU
from multistable.streamed import streamed
from multistable_experiments.bench.measure import peak_rss

__all__ = ["main", "power", "train_once"]


def train_once(T: int, piece: int, width: int, device: str, dtype: torch.dtype) -> dict[str, Any]:
    """Forward, backward and optimiser over ``T`` steps, B = 1; a first step over two pieces does not count."""
    rnn = BMRU(width, width, batch_first=True, device=device, dtype=dtype)
    embedding = nn.Embedding(256, width, device=device, dtype=dtype)
    leaves = [embedding.weight, *rnn.parameters()]
    optimizer = torch.optim.AdamW(leaves, lr=1e-3)

    def tokens(i: int) -> Tensor:
        generator = torch.Generator(device).manual_seed(i)
        return torch.randint(256, (1, min(piece, T - i * piece)), generator=generator, device=device)

    def step(count: int) -> float:
        loss = streamed(
            rnn, lambda i: embedding(tokens(i)), count, lambda y, _: y.float().square().sum() / T, None, leaves
        )
        optimizer.step()
        optimizer.zero_grad()
        return loss.loss.item()  # waits for the device

    count = -(-T // piece)
    step(min(2, count))
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    start = time.perf_counter()
    loss = step(count)
    seconds = time.perf_counter() - start
    memory = torch.cuda.max_memory_allocated() if device == "cuda" else peak_rss()
    return {"T": T, "piece": piece, "width": width, "seconds": seconds, "peak_bytes": memory, "loss": loss}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=power, nargs="+", default=[1 << 20], help="lengths, such as 2**30")
    parser.add_argument("--piece", type=power, default=1 << 20, help="steps per piece (default: 2**20)")
    parser.add_argument("--width", type=int, default=256, help="inputs and units (default: 256)")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float32", "float64"])
    given = parser.parse_args()
    for T in sorted(given.steps):
        print(
            json.dumps(train_once(T, given.piece, given.width, given.device, getattr(torch, given.dtype))), flush=True
        )


def power(text: str) -> int:
    """
    >>> power("2**4"), power("100")
    (16, 100)
    """
    base, _, exponent = text.partition("**")
    return int(base) ** int(exponent or 1)


if __name__ == "__main__":
    main()
