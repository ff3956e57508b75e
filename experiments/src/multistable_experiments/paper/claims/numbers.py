"""For claims that are computed on the spot: random input, the same on every call, and what is said of rounding."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

__all__ = ["differing", "gaussian", "largest", "seeded", "within"]


def gaussian(*shape: int, seed: int = 0) -> Tensor:
    """Standard normal numbers, float64."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@contextmanager
def seeded(seed: int = 0) -> Iterator[None]:
    """Layers made within start from this seed; numbers that are drawn elsewhere do not change."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


def differing(x: Tensor, y: Tensor) -> int:
    """How many elements of two tensors differ (0.0 and -0.0 do not)."""
    return int((x != y).sum())


def largest(tensors: Iterable[Tensor]) -> float:
    """The largest element of some tensors; NaN if there is one, which Python's ``max`` would pass over."""
    return float(torch.stack([x.max() for x in tensors]).max())


def within(value: float, bound: float) -> str:
    """A difference in words. Rounding differs between machines, so only the bound is named, unless it is exceeded."""
    return f"at most {bound:g} apart" if value <= bound else f"{value:.2g} apart"
