"""Small models for tests."""

import dataclasses

import torch
from torch import Tensor

from multistable import ModelConfig, PositionConfig, SequenceModel, build_model

__all__ = ["BASE", "B", "T", "assert_close", "make_model", "random_input"]

B, T = 3, 11
BASE = ModelConfig(
    cells=("lru", "bmru"),
    d_input=2,
    d_output=5,
    d_model=8,
    d_state=6,
    pooling="none",
    position=PositionConfig(dim=4, T=T),
)


def make_model(dtype: torch.dtype = torch.float64, **changes) -> SequenceModel:
    """A model in evaluation mode, with batch norm statistics that differ from the initial ones."""
    torch.manual_seed(0)
    model = build_model(dataclasses.replace(BASE, **changes)).to(dtype)
    model(torch.randn(16, T, 2, dtype=dtype))
    return model.eval()


def random_input(dtype: torch.dtype = torch.float64) -> Tensor:
    torch.manual_seed(1)
    return torch.randn(B, T, 2, dtype=dtype)


def assert_close(actual: Tensor, expected: Tensor) -> None:
    """Equal within 1e-10, for float64."""
    torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-10)
