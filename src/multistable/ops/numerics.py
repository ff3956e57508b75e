"""Shared arithmetic: the dtype in which scans compute, axes of masks, and complex numbers as pairs of real ones.

A pair holds, on the last axis, all real parts and then all imaginary parts.
"""

import torch
from torch import Tensor

__all__ = ["aligned", "from_pairs", "multiply", "to_pairs", "wide"]


def wide(dtype: torch.dtype) -> torch.dtype:
    """float32 for float16 and bfloat16, else the dtype itself: accumulators and surrogates are never half."""
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype


def aligned(mask: Tensor, x: Tensor) -> Tensor:
    """``mask [B]`` or ``[B, T]`` with as many axes as ``x [B, T, ...]``, so that it broadcasts with it."""
    return mask.reshape(*mask.shape, *[1] * (x.ndim - mask.ndim))


def to_pairs(x: Tensor) -> Tensor:
    """Complex ``[..., N]`` to real ``[..., 2N]``."""
    return torch.cat([x.real, x.imag], dim=-1)


def from_pairs(x: Tensor) -> Tensor:
    """The inverse of :func:`to_pairs`; half precision becomes float32, because torch has no such complex numbers."""
    return torch.complex(*x.to(wide(x.dtype)).chunk(2, dim=-1))


def multiply(a: Tensor, h: Tensor) -> Tensor:
    """The products of pairs ``[..., 2N]``, as pairs."""
    (a_real, a_imag), (real, imag) = a.chunk(2, dim=-1), h.chunk(2, dim=-1)
    return torch.cat([a_real * real - a_imag * imag, a_real * imag + a_imag * real], dim=-1)
