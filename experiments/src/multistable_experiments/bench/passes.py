"""What a rank computes beside its scans when a sequence is cut: its summary, and the gradient it passes back.

python -m multistable_experiments.bench.passes --device cuda --dtype bfloat16 --steps 2**20

Prints one line of JSON per scan, medians of milliseconds, launches included. ``forward`` and ``backward`` are the
operators on the whole piece, which one process runs as well; the others are what a cut adds. The exchange is missing:
the summaries of ``ranks`` pieces are copies of this one. Of the BMRU there are two: every unit writes in about a
third of its steps, or one unit never writes, so that the whole piece must be searched.
"""

import argparse
import json
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from multistable.distributed.piece import Piece, piece_of
from multistable_experiments.bench.long_sequence import power
from multistable_experiments.bench.measure import take_turns

__all__ = ["main", "measure"]


def pieces_of(B: int, T: int, N: int, device: str, dtype: torch.dtype) -> Iterator[tuple[str, Piece]]:
    """Pieces to measure by name. The LRU has ``N`` real numbers."""
    torch.manual_seed(0)
    cand, beta = (torch.randn(B, T, N, device=device, dtype=dtype) for _ in range(2))
    alpha = torch.ones(N, device=device, dtype=dtype)
    yield "BMRU", piece_of("bmru_scan", cand, beta, alpha, None, None, 1.0, False, "auto")
    beta[:, :, 0] = 1e4
    yield "BMRU, one unit never writes", piece_of("bmru_scan", cand, beta, alpha, None, None, 1.0, False, "auto")
    turn = torch.linspace(0, 3, N // 2, device=device)
    rates = 0.999 * torch.cat([turn.cos(), turn.sin()]).to(dtype)  # real, then imaginary parts
    yield "LRU", piece_of("linear_scan", rates, cand, None, None, True, False, "auto")


def measure(piece: Piece, ranks: int, repeats: int) -> dict[str, float]:
    """Median milliseconds of each pass over one piece."""
    summary = piece.summary()
    gathered = [torch.stack([x] * ranks) for x in summary]
    states, _, passes = piece.compose(*gathered)
    entering = states[:, 0].contiguous()
    h, start, own = piece.forward(entering)[0], entering.float(), passes[:, 0]
    grad = torch.randn_like(h)
    alone = piece.passed_back(grad, start, h, own)
    every = torch.stack([alone] * ranks, dim=1)
    # As _Scan.backward does: a linear recurrence reads its states in the place of its inputs.
    last = piece_of(piece.name, *(h if x is None else x for x in piece.kept()), entering, None, *piece.options)
    competitors: dict[str, Callable[[], Any]] = {
        "forward": lambda: piece.forward(entering),
        "summary": piece.summary,
        "compose": lambda: piece.compose(*gathered),
        "backward": lambda: last.backward(grad, alone, start, h),
        "passed_back": lambda: last.passed_back(grad, start, h, own),
        "compose_back": lambda: last.compose_back(every, passes),
    }
    wait = torch.cuda.synchronize if h.is_cuda else lambda: None
    times = take_turns([_waiting(compute, wait) for compute in competitors.values()], repeats, warm_up=3)
    return dict(zip(competitors, times, strict=True))


def _waiting(compute: Callable[[], Any], wait: Callable[[], None]) -> Callable[[], Any]:
    def timed() -> Tensor:
        result = compute()
        wait()
        return result

    return timed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=power, default=1 << 20, help="of the piece, such as 2**20")
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=50)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float32"])
    given = parser.parse_args()
    shape = 1, given.steps, given.width
    for name, piece in pieces_of(*shape, given.device, getattr(torch, given.dtype)):
        times = measure(piece, given.ranks, given.repeats)
        row = {"scan": name, "shape": shape, "dtype": given.dtype, "ranks": given.ranks, "ms": times}
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
