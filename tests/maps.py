"""Random maps of K states, with everything that the scans over them take."""

import torch

__all__ = ["STATES", "map_inputs"]

STATES = (1, 2, 4, 7, 8, 16)
"""Numbers of states that fill a word, and others."""


def map_inputs(K, shape=(2, 13, 8), start=True, reset=True):
    """Maps ``[B, T, N, K]``, the state before and resets."""
    B, T, N = shape
    generator = torch.Generator().manual_seed(K)
    maps = torch.randint(K, (B, T, N, K), dtype=torch.uint8, generator=generator)
    s0 = torch.randint(K, (B, N), dtype=torch.uint8, generator=generator) if start else None
    return {"maps": maps, "s0": s0, "reset": torch.rand(B, T, generator=generator) < 0.2 if reset else None}
