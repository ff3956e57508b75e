"""Decisions that no rounding can change.

The states of a machine are exact, but the scores that decide between transitions are matrix products, which round
differently in other shapes and on other machines. With ``s = |W| |x| + |b|`` and ``n`` terms, any order of summation is
within ``g s, g = n u / (1 - n u)``, of the exact score (u: the unit roundoff). So the largest score is the largest in
every computation if it exceeds each other one by more than ``2 g (s_largest + s_other)``. Where it does not, nothing is
proven.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["decide", "ratios", "rounding_of", "scores_of"]


def scores_of(x: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor]:
    """Scores in float64, and the rounding ``2 g s`` of each that a margin must exceed."""
    g = rounding_of(weight)
    x, weight, bias = x.double(), weight.double(), None if bias is None else bias.double()
    size = F.linear(x.abs(), weight.abs(), None if bias is None else bias.abs())
    return F.linear(x, weight, bias), g * size


def rounding_of(weight: Tensor) -> float:
    """``2 g`` of a product with this matrix; infinite where a sum has so many terms that g is no bound."""
    g = (weight.shape[1] + 1) * unit_roundoff(weight.dtype)
    return 2 * g / (1 - g) if g < 1 else math.inf


def unit_roundoff(dtype: torch.dtype) -> float:
    """The unit roundoff of products in ``dtype``, as torch computes them: float32 may run in TF32 or bfloat16."""
    exact = dtype != torch.float32 or torch.get_float32_matmul_precision() == "highest"
    return torch.finfo(dtype if exact else torch.bfloat16).eps / 2


def ratios(scores: Tensor, rounding: Tensor) -> Tensor:
    """The distance of each of ``scores [..., M]`` from the largest, relative to the rounding of both; 0 there."""
    first = scores.argmax(-1, keepdim=True)
    found = (scores.gather(-1, first) - scores) / (rounding.gather(-1, first) + rounding)
    return found.scatter(-1, first, 0.0)


def decide(scores: Tensor, rounding: Tensor) -> tuple[Tensor, Tensor]:
    """The largest of ``scores [..., M]`` and the smallest ratio of its distance from another to their rounding."""
    first = scores.argmax(-1, keepdim=True)
    return first.squeeze(-1), ratios(scores, rounding).scatter(-1, first, torch.inf).amin(-1)
