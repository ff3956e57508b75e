"""The comparisons that other tests use can fail."""

import pytest
import torch

from backends import DTYPES
from tolerances import RELATIVE, assert_close, assert_same_bits


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_tolerances_are_tight(dtype):
    assert 0 < RELATIVE[dtype] <= 2e-2


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_assert_close_notices_twice_the_tolerance(dtype):
    x = torch.randn(50, dtype=torch.float64).to(dtype).double()
    assert_close(x.to(dtype), x)
    with pytest.raises(AssertionError, match="exceeds"):
        assert_close(x.to(dtype), x * (1 + 2 * RELATIVE[dtype]))


@pytest.mark.parametrize("wrong", [[1.0, 2.0], [torch.nan, torch.nan], [torch.inf, 2.0]], ids=str)
def test_assert_close_notices_nan_and_infinity(wrong):
    with pytest.raises(AssertionError):
        assert_close(torch.tensor(wrong), torch.tensor([torch.nan, 2.0]))


@pytest.mark.parametrize(
    ("x", "y"),
    [(0.0, -0.0), (1.0, torch.nan), (torch.nan, 0.0), (1.0, 1.0000001), (torch.inf, -torch.inf)],
    ids=str,
)
def test_assert_same_bits_notices(x, y):
    assert_same_bits(torch.tensor([x]), torch.tensor([x]))
    with pytest.raises(AssertionError, match="differs"):
        assert_same_bits(torch.tensor([x]), torch.tensor([y]))


def test_assert_same_bits_notices_dtype_and_shape():
    with pytest.raises(AssertionError, match="float64"):
        assert_same_bits(torch.zeros(2), torch.zeros(2, dtype=torch.float64))
    with pytest.raises(AssertionError, match="shape"):
        assert_same_bits(torch.zeros(2), torch.zeros(2, 1))


def test_uninitialised_memory_is_nan():
    assert torch.empty(3).isnan().all()
    assert torch.zeros(3).new_empty(2, 2).isnan().all()
