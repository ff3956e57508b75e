"""Tolerances relative to the norm of a float64 reference, one per dtype, and the two comparisons of tensors.

A half-precision result is computed in float32 and rounded once, which costs half an eps. Reading back half-precision
states (for the gradient of a linear scan's coefficients) costs another half.
"""

import torch
from torch import Tensor

__all__ = ["MANY_STEPS", "RELATIVE", "STEP", "assert_close", "assert_same_bits"]

RELATIVE = {
    torch.float64: 1e-12,
    torch.float32: 1e-5,
    torch.float16: torch.finfo(torch.float16).eps,  # 9.8e-4
    torch.bfloat16: torch.finfo(torch.bfloat16).eps,  # 7.8e-3
}

STEP = {torch.float32: 2e-6, torch.bfloat16: 3e-2, torch.float16: 4e-3}
"""Of single numbers after one step, absolute or relative: a few products, rounded to their dtype in another order."""
MANY_STEPS = {torch.float32: 1e-4, torch.bfloat16: 5e-2, torch.float16: 1e-2}
"""Of the norm after some 500 steps, each of which rounds the state to its dtype, as a scan does not. In bfloat16 a
coefficient that is rounded otherwise shows by 0.1 to 0.3."""

_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def assert_close(actual: Tensor, expected: Tensor, name: str = "result", terms: Tensor | None = None) -> None:
    """Norms: ``|actual - expected| <= tol |expected|`` with the tolerance of actual's dtype, and NaN and inf in the
    same places.

    If ``expected`` is the sum of ``terms`` over all axes but the last, which may cancel: ``tol`` times their norm, as
    their errors have random signs. (In float32 the largest of 6,000 errors was a third of that.)
    """
    assert actual.shape == expected.shape, f"{name}: shape {list(actual.shape)}, expected {list(expected.shape)}"
    tolerance = RELATIVE[actual.real.dtype if actual.is_complex() else actual.dtype]
    wide = torch.complex128 if expected.is_complex() else torch.float64
    actual, expected = actual.detach().to(wide), expected.detach().to(wide)
    finite = expected.isfinite()
    torch.testing.assert_close(actual[~finite], expected[~finite], rtol=0, atol=0, equal_nan=True, msg=f"{name}: NaN")
    error = torch.linalg.vector_norm(actual[finite] - expected[finite])
    scale = expected if terms is None else torch.linalg.vector_norm(terms.detach().flatten(0, -2), dim=0)
    bound = tolerance * torch.linalg.vector_norm(scale[finite])
    assert error <= bound, f"{name}: error {error:.3g} exceeds {bound:.3g}"


def assert_same_bits(actual: Tensor, expected: Tensor, name: str = "result") -> None:
    """The same dtype, shape and bits (0.0 is not -0.0); all NaNs count as equal."""
    assert actual.dtype == expected.dtype, f"{name}: {actual.dtype}, expected {expected.dtype}"
    assert actual.shape == expected.shape, f"{name}: shape {list(actual.shape)}, expected {list(expected.shape)}"
    integer = _INTEGERS[actual.dtype.itemsize]
    bits = [
        torch.where(x.isnan(), torch.nan, x).contiguous().view(integer) for x in (actual.detach(), expected.detach())
    ]
    different = bits[0] != bits[1]
    assert not different.any(), f"{name} differs at {different.nonzero()[:5].tolist()}"
