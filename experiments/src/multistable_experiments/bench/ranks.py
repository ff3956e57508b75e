"""A BMRU layer over a sequence cut over ranks: against one process, and what the exchange and the summaries cost.

torchrun --standalone --nproc-per-node 2 -m multistable_experiments.bench.ranks --steps 65536
python -m multistable_experiments.bench.ranks --device cuda --dtype bfloat16 --steps 1048576

Rank 0 prints one line of JSON, medians of milliseconds. The competitors take turns: the whole sequence on rank 0 while
the others wait, the pieces on all ranks, and an exchange of the same bytes alone. With one process there is no
exchange, and what is left of the difference are the summaries.
"""

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor

from multistable import BMRU
from multistable.distributed import SequencePieces, cut, sequence_parallel

__all__ = ["main", "measure"]


def measure(B: int, T: int, width: int, device: str, dtype: torch.dtype, repeats: int) -> dict[str, float | int]:
    """Milliseconds of a forward and backward pass, whole and in pieces, of which ``exchange`` the messages alone."""
    torch.manual_seed(0)
    rnn = BMRU(width, width, batch_first=True, device=device, dtype=dtype)
    x = torch.randn(B, T, width, device=device, dtype=dtype)
    piece = cut(x)[0].contiguous()
    pieces = SequencePieces()

    def train(x: Tensor) -> None:
        rnn.zero_grad()
        rnn(x)[0].square().sum().backward()

    def whole() -> None:
        if pieces.rank == 0:
            train(x)

    def in_pieces() -> None:
        with sequence_parallel():
            train(piece)

    bits, numbers = torch.zeros(B, width, dtype=torch.bool, device=device), torch.zeros(B, width, device=device)

    def exchange() -> None:
        pieces.exchange.gather("bits", bits, bits, bits[:, 0])
        pieces.exchange.gather("numbers", numbers)

    competitors = {"whole": whole, "in_pieces": in_pieces, "exchange": exchange}
    times = _take_turns(competitors, repeats, device)
    return {"ranks": pieces.size, "B": B, "T": T, "width": width, **times}


def _take_turns(competitors: dict[str, Callable[[], None]], repeats: int, device: str) -> dict[str, float]:
    """All ranks start together; the slowest rank counts."""
    times: dict[str, list[float]] = {name: [] for name in competitors}
    for i in range(repeats + 2):
        for name, compute in competitors.items():
            dist.barrier()
            start = time.perf_counter()
            compute()
            if device == "cuda":
                torch.cuda.synchronize()
            taken = torch.tensor(time.perf_counter() - start, device=device)
            dist.all_reduce(taken, dist.ReduceOp.MAX)
            if i >= 2:
                times[name].append(1e3 * taken.item())
    return {name: statistics.median(taken) for name, taken in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--steps", type=int, default=1 << 16)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32", choices=["bfloat16", "float32"])
    given = parser.parse_args()
    if "RANK" not in os.environ:
        os.environ |= {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "localhost", "MASTER_PORT": "29541"}
    if given.device == "cuda":
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", 0)))
    dist.init_process_group("nccl" if given.device == "cuda" else "gloo")
    dtype = getattr(torch, given.dtype)
    result = measure(given.batch, given.steps, given.width, given.device, dtype, given.repeats)
    if dist.get_rank() == 0:
        print(json.dumps(result), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
