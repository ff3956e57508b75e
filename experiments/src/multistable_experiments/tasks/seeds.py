"""Independent random streams from one seed: data, order of an epoch, dropout of a step."""

import hashlib

import torch

__all__ = ["derive", "generator"]


def derive(seed: int, *words: str | int) -> int:
    """A 63-bit seed for the purpose named by ``words``: equal words give equal seeds, other words unrelated ones.

    torch's CPU generator uses the lower 32 bits only: of the 21,000 steps of a run of 100 epochs, two share their
    dropout stream with a probability of 5 %.

    >>> derive(0, "order", 1) == derive(0, "order", 1) != derive(0, "order", 2)
    True
    """
    text = ":".join(map(str, (seed, *words)))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def generator(seed: int, *words: str | int) -> torch.Generator:
    """A CPU generator, so that every device gets the same numbers."""
    return torch.Generator().manual_seed(derive(seed, *words))
