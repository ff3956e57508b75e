"""Which timestep it is: counting steps, and sinusoids of the count."""

import math

import torch
from torch import Tensor, nn

__all__ = ["PositionEncoding", "count_steps"]


def count_steps(start: Tensor | None, T: int, reset: Tensor | None, device: torch.device) -> Tensor:
    """The number of steps before each step, ``[B, T]`` (``[1, T]`` where all sequences have the same).

    ``start [B]`` steps were seen before the first one (None: zero); a mark in ``reset [B, T]`` starts from zero.
    """
    t = torch.arange(T, device=device)
    counts = t[None] if start is None else start[:, None] + t
    if reset is None:
        return counts
    last_mark = torch.where(reset, t, -1).cummax(dim=1).values
    return torch.where(last_mark >= 0, t - last_mark, counts)


class PositionEncoding(nn.Module):
    """``scale * sin`` and ``scale * cos`` of ``2 pi t / wavelength`` for wavelengths in geometric progression.

    ``counts [...]`` (integers) -> ``[..., dim]``: all sines, then all cosines.
    """

    def __init__(self, dim: int, shortest: float, longest: float, scale: float) -> None:
        super().__init__()
        self.dim = dim
        self.shortest = shortest
        self.longest = longest
        self.scale = scale

    def forward(self, counts: Tensor, dtype: torch.dtype) -> Tensor:
        # In float32 a million steps of wavelength 2.5 would be off by 0.1 rad; the phase needs float64.
        wide = torch.float32 if counts.device.type == "mps" else torch.float64
        # Computed where it is needed: copied from the host, it could not be part of a CUDA graph.
        steps = torch.arange(self.dim // 2, dtype=wide, device=counts.device) / max(self.dim // 2 - 1, 1)
        wavelengths = self.shortest * torch.exp(steps * math.log(self.longest / self.shortest))
        phase = 2 * math.pi * torch.remainder(counts[..., None] / wavelengths, 1.0)
        return (self.scale * torch.cat([phase.sin(), phase.cos()], dim=-1)).to(dtype)

    def extra_repr(self) -> str:
        return f"{self.dim}, wavelengths {self.shortest:g} to {self.longest:g}, scale {self.scale:g}"
