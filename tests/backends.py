"""The backends under test. Add a new backend here, and every test of an operator runs on it."""

import torch

__all__ = ["BACKENDS", "DTYPES", "FAST", "HALVES"]

BACKENDS = ("reference", "portable", "cpu")
FAST = tuple(name for name in BACKENDS if name != "reference")  # compared with the reference

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
HALVES = (torch.float16, torch.bfloat16)
