"""The backends under test. A new one is added here, and every test of an operator runs it."""

import torch

__all__ = ["BACKENDS", "DTYPES", "FAST", "HALVES"]

BACKENDS = ("reference", "portable", "cpu")
FAST = tuple(name for name in BACKENDS if name != "reference")  # those compared with the definition

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
HALVES = (torch.float16, torch.bfloat16)
