"""Decisions that no rounding can change.

The states of a machine are exact, but the scores that decide between transitions are matrix products, which round
differently in other shapes and on other machines. With ``s = |W| |x| + |b|`` and ``n`` terms, any order of summation is
within ``g s, g = n u / (1 - n u)``, of the exact score (u: the unit roundoff). So the largest score is the largest in
every computation if it exceeds each other one by more than ``2 g (s_largest + s_other)``. Where it does not, nothing is
proven, nor where a sum could overflow. Underflow adds up to the smallest normal number per product and sum, if the
factors themselves are normal (:func:`are_kept`).
"""

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["are_kept", "decide", "ratios", "rounding_of", "scores_of"]


def are_kept(numbers: Tensor) -> bool:
    """Whether every product reads these parameters as numbers near them: none is NaN, infinite, or so large that lower
    precision makes it infinite; none is subnormal, which bfloat16 products on CPUs (oneDNN) take for zero, and with
    ``torch.set_flush_denormal`` all do."""
    size, dtype = numbers.abs(), torch.finfo(numbers.dtype)
    smallest = min(dtype.tiny, torch.finfo(torch.float32).tiny)  # those of float16 are multiplied in float32
    return bool(((size == 0) | ((size >= smallest) & (size <= dtype.max / 2))).all())


def scores_of(x: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor]:
    """Scores in float64, and the rounding of each that a margin must exceed."""
    wide, x, bias = weight.double(), x.double(), None if bias is None else bias.double()
    size = F.linear(x.abs(), wide.abs(), None if bias is None else bias.abs())
    return F.linear(x, wide, bias), rounding_of(size, weight)


def rounding_of(size: Tensor, weight: Tensor) -> Tensor:
    """``2 g s`` of products with this matrix, and what underflow adds, from ``size``, the s of one or the sum of two;
    infinite where a sum could overflow, or has so many terms that g is no bound."""
    terms, numbers = weight.shape[1] + 1, torch.finfo(weight.dtype)
    g = terms * unit_roundoff(weight.dtype)
    if g >= 1:
        return torch.full_like(size, torch.inf)
    rounding = 2 * g / (1 - g) * size + 32 * terms * numbers.tiny
    return rounding.masked_fill(2 * size > numbers.max, torch.inf)


def unit_roundoff(dtype: torch.dtype) -> float:
    """The unit roundoff of products in ``dtype``, as torch computes them: float32 may run in TF32 or bfloat16."""
    try:
        exact = dtype != torch.float32 or torch.get_float32_matmul_precision() == "highest"
    except RuntimeError:  # another precision was set by an `fp32_precision` of torch.backends
        exact = False
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
