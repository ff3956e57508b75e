"""The dtype in which half-precision scans compute."""

import torch

__all__ = ["wide"]


def wide(dtype: torch.dtype) -> torch.dtype:
    """float32 for float16 and bfloat16, else the dtype itself: accumulators and surrogates are never half."""
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype
