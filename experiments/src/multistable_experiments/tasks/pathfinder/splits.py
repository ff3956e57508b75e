"""Which images train, validate and test: indices ``[n]`` into a data set, three ways."""

import torch
from torch import Tensor

__all__ = ["lra_split", "paper_split", "s4_split"]

Split = tuple[Tensor, Tensor, Tensor]


def lra_split(n: int) -> Split:
    """LRA: the first 80 % train, the next 10 % validate, the last 10 % test.

    >>> [part.tolist() for part in lra_split(10)]
    [[0, 1, 2, 3, 4, 5, 6, 7], [8], [9]]
    """
    order = torch.arange(n)
    first, second = round(n * 0.8), round(n * 0.9)
    return order[:first], order[first:second], order[second:]


def s4_split(n: int, seed: int = 42) -> Split:
    """S4, S5, LRU: ``torch.utils.data.random_split`` with this seed; 10 % validate, 10 % test, the rest train."""
    tenth = int(0.1 * n)
    order = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
    return order[: n - 2 * tenth], order[n - 2 * tenth : n - tenth], order[n - tenth :]


def paper_split(n: int) -> Split:
    """The paper's 90 % / 10 %: the last tenth of the images tests; of the rest 90 % train and 10 % validate.

    The paper says nothing of the test set. Batches are independent, so no shuffling is needed.
    """
    order = torch.arange(n)
    test = n - n // 10
    train = round(test * 0.9)
    return order[:train], order[train:test], order[test:]
