"""Booleans as bits: eight in a byte."""

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["pack_bits", "unpack_bits"]


def pack_bits(x: Tensor) -> Tensor:
    """All elements of a boolean tensor, in order, as uint8 ``[ceil(n / 8)]``; the first one is the lowest bit.

    >>> pack_bits(torch.tensor([True, False, True]))
    tensor([5], dtype=torch.uint8)
    """
    bits = F.pad(x.reshape(-1).byte(), (0, -x.numel() % 8)).view(-1, 8)
    return (bits << torch.arange(8, dtype=torch.uint8, device=x.device)).sum(dim=1, dtype=torch.uint8)


def unpack_bits(packed: Tensor, shape: torch.Size) -> Tensor:
    """The inverse of :func:`pack_bits`, also for several at once: ``[..., bytes]`` to ``[..., *shape]``."""
    bits = (packed[..., None] >> torch.arange(8, dtype=torch.uint8, device=packed.device)) & 1
    return bits.flatten(-2)[..., : shape.numel()].bool().reshape(*packed.shape[:-1], *shape)
