"""Random calls of every operator through ``torch.library.opcheck``: shapes, strides and gradients are as promised."""

import pytest

from opcheck_cases import check

QUICK = ("test_schema", "test_faketensor")


@pytest.mark.parametrize("group", range(10))
def test_schema_and_strides(group):
    """Outputs of fake tensors have the strides of the real ones; inputs are neither changed nor returned."""
    for seed in range(40 * group, 40 * group + 40):
        check(seed, test_utils=QUICK)


@pytest.mark.extra
@pytest.mark.parametrize("seed", range(1000))
def test_everything(seed):
    """Also registration, and gradients under ``torch.compile`` with dynamic shapes."""
    check(seed)
