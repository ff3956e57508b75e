"""A sequence to cut over ranks: where to cut, its resets and lengths, and the piece of this rank."""

import torch
import torch.distributed as dist
from torch import Tensor

B, T, D = 3, 40, 4
CUTS = {2: [(0, 13, 40), (0, 0, 40), (0, 40, 40)], 4: [(0, 5, 5, 30, 40), (0, 10, 20, 30, 40), (0, 0, 1, 40, 40)]}
RESET = torch.zeros(B, T, dtype=torch.bool)
RESET[0, [5, 13]] = RESET[1, 30] = RESET[2, 0] = True  # at borders, and at the first step
LENGTHS = torch.tensor([40, 12, 31])
ONE_EMPTY = torch.tensor([40, 0, 31])


def part(x: Tensor | None, cuts: tuple[int, ...]) -> Tensor | None:
    rank = dist.get_rank()
    return None if x is None else x[:, cuts[rank] : cuts[rank + 1]]


def lengths_of_part(lengths: Tensor | None, cuts: tuple[int, ...]) -> Tensor | None:
    start, end = cuts[dist.get_rank() :][:2]
    return None if lengths is None else (lengths - start).clamp(0, end - start)


def total(x: Tensor | None, like: Tensor) -> Tensor:
    """The sum over the ranks."""
    x = torch.zeros_like(like) if x is None else x.clone()
    dist.all_reduce(x)
    return x
