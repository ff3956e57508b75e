"""Complex numbers as pairs of real ones: on the last axis all real parts, then all imaginary parts."""

import torch
from torch import Tensor

from multistable.ops.precision import wide

__all__ = ["from_pairs", "to_pairs"]


def to_pairs(x: Tensor) -> Tensor:
    """Complex ``[..., N]`` to real ``[..., 2N]``."""
    return torch.cat([x.real, x.imag], dim=-1)


def from_pairs(x: Tensor) -> Tensor:
    """The inverse of :func:`to_pairs`; half precision becomes float32, because torch has no such complex numbers."""
    return torch.complex(*x.to(wide(x.dtype)).chunk(2, dim=-1))
