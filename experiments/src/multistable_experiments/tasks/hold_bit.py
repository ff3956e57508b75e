"""Hold a bit: the first input is +1 or -1, all later ones are 0, and the last output must be the first input."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from multistable.ops.checks import check_sizes
from multistable_experiments.tasks.base import Regression, Samples, Split

__all__ = ["HoldBit"]

CHUNK = 10_000  # timesteps of a chunk of a stream


@dataclass(frozen=True)
class HoldBit(Regression):
    """The paper's "simple benchmark" (section "Properties of the bistable MRU", stationarity).

    ``x [B, T, 1]`` is the bit, then zeros; target: the bit; loss: squared error at the last timestep. Only two
    inputs are possible: a set alternates between them, and the test set has each once.
    """

    name = "hold-bit"
    d_input = 1

    length: int = 100
    train_samples: int = 2_560
    """Samples of an epoch; the validation set has 10 % as many. The paper gives no number."""

    def __post_init__(self) -> None:
        check_sizes(1, length=self.length)
        check_sizes(2, train_samples=self.train_samples)

    def samples(self, split: Split, seed: int, device: torch.device | str = "cpu") -> Samples:
        size = {"train": self.train_samples, "valid": max(2, self.train_samples // 10), "test": 2}[split]
        bits = both_bits(size).to(device)
        return Samples(bits, bits)

    def inputs(self, stored: Tensor) -> Tensor:
        x = stored.new_zeros(len(stored), self.length, 1)
        x[:, 0, 0] = stored
        return x

    def stream(self, length: int, samples: int, seed: int) -> tuple[Tensor, Iterator[Tensor]]:
        bits = both_bits(samples)

        def chunks() -> Iterator[Tensor]:
            for start in range(0, length, CHUNK):
                x = torch.zeros(samples, min(CHUNK, length - start), 1)
                if start == 0:
                    x[:, 0, 0] = bits
                yield x

        return bits, chunks()


def both_bits(samples: int) -> Tensor:
    """``[S]``: +1, -1, +1, ..."""
    return 1.0 - 2.0 * (torch.arange(samples) % 2)
