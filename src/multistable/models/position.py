"""Position encoding: count timesteps, and take sinusoids of the count."""

import math

import torch
from torch import Tensor, nn

__all__ = ["PositionEncoding", "count_steps"]


def count_steps(start: Tensor, T: int, reset: Tensor | None) -> Tensor:
    """The number of steps before each of T steps, ``[B, T]``.

    The count begins at ``start [B]``, and again at zero where ``reset [B, T]`` is true.
    """
    t = torch.arange(T, device=start.device)
    counts = start[:, None] + t
    if reset is None:
        return counts
    last_reset = torch.where(reset, t, -1).cummax(dim=1).values
    return torch.where(last_reset >= 0, t - last_reset, counts)


class PositionEncoding(nn.Module):
    """``scale * sin`` and ``scale * cos`` of ``2 pi t / wavelength`` for wavelengths in geometric progression.

    ``counts [...]`` (integers) -> ``[..., dim]``: all sines, then all cosines. Steps after ``last`` have the encoding
    of ``last``; None: every step has its own.
    """

    def __init__(self, dim: int, shortest: float, longest: float, scale: float, last: int | None = None) -> None:
        super().__init__()
        self.dim = dim
        self.shortest = shortest
        self.longest = longest
        self.scale = scale
        self.last = last

    def forward(self, counts: Tensor, dtype: torch.dtype) -> Tensor:
        # In float32 a phase of wavelength 2.5 would be 0.1 rad off after a million steps, but mps has no float64.
        # Everything is computed on the device of counts: a copy from the host cannot be part of a CUDA graph.
        widest = torch.float32 if counts.device.type == "mps" else torch.float64
        counts = counts if self.last is None else counts.clamp(max=self.last)
        t = counts[..., None].to(widest)
        phase = 2 * math.pi * torch.remainder(t / self.wavelengths(t.device, widest), 1.0)
        return (self.scale * torch.cat([phase.sin(), phase.cos()], dim=-1)).to(dtype)

    def wavelengths(self, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float64) -> Tensor:
        """``[dim / 2]``, in steps, from the shortest to the longest."""
        exponents = torch.arange(self.dim // 2, device=device, dtype=dtype) / max(self.dim // 2 - 1, 1)
        return self.shortest * torch.pow(self.longest / self.shortest, exponents)

    def extra_repr(self) -> str:
        held = "" if self.last is None else f", held after step {self.last}"
        return f"{self.dim}, wavelengths {self.shortest:g} to {self.longest:g}, scale {self.scale:g}{held}"
