"""Copy-first-input: remember the first of many random numbers, which only a flag tells from the others."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from multistable.ops.checks import check_sizes
from multistable_experiments.tasks.base import Regression, Samples, Split, split_sizes
from multistable_experiments.tasks.seeds import generator

__all__ = ["CopyFirst"]

CHUNK = 1_000  # timesteps of a chunk of a stream; the numbers of a stream depend on it


@dataclass(frozen=True)
class CopyFirst(Regression):
    """The paper's section "Copy-first-input".

    ``x_t = (r_t, f_t)``: ``r_1`` is drawn from N(0, 1), the later ``r_t`` from N(0, noise^2); the flag ``f_t`` is 1 at
    the first timestep and 0 later. Target: ``r_1``; loss: squared error at the last timestep. Always
    answering 0 has a loss of 1.

    In the paper's test of generalisation the noise is drawn "from N(0, 0.1)", which is ambiguous: ``noise=0.1``, or,
    if 0.1 is the variance, ``noise=sqrt(0.1)``.
    """

    name = "copy-first"
    d_input = 2

    length: int = 100
    noise: float = 1.0
    """Standard deviation of the numbers after the first."""
    train_samples: int = 60_000
    """Fixed samples; 10 % of them are the validation set."""
    test_samples: int = 60_000

    def __post_init__(self) -> None:
        check_sizes(1, length=self.length, test_samples=self.test_samples)
        check_sizes(2, train_samples=self.train_samples)
        if not 0 <= self.noise < math.inf:
            raise ValueError(f"noise must be a finite standard deviation >= 0, got {self.noise!r}")

    def samples(self, split: Split, seed: int, device: torch.device | str = "cpu") -> Samples:
        train, valid = split_sizes(self.train_samples)
        size = {"train": train, "valid": valid, "test": self.test_samples}[split]
        r = torch.randn(size, self.length, generator=generator(seed, self.name, split))  # [S, T]
        r[:, 1:] *= self.noise
        r = r.to(device)
        return Samples(r, r[:, 0].contiguous())

    def inputs(self, stored: Tensor) -> Tensor:
        return with_flag(stored, first=True)

    def stream(self, length: int, samples: int, seed: int) -> tuple[Tensor, Iterator[Tensor]]:
        random = generator(seed, self.name, "stream", length, samples)
        target = torch.randn(samples, generator=random)

        def chunks() -> Iterator[Tensor]:
            for start in range(0, length, CHUNK):
                r = self.noise * torch.randn(samples, min(CHUNK, length - start), generator=random)
                if start == 0:
                    r[:, 0] = target
                yield with_flag(r, first=start == 0)

        return target, chunks()


def with_flag(r: Tensor, first: bool) -> Tensor:
    """``r [B, T]`` to ``x [B, T, 2]``; the flag is set at the first timestep if ``first``."""
    x = F.pad(r.unsqueeze(-1), (0, 1))
    if first:
        x[:, 0, 1] = 1
    return x
