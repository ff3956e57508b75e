"""What a piece of a sequence tells the others, without processes."""

import pytest
import torch

from multistable.distributed.piece import _powers
from multistable.ops.numerics import from_pairs


@pytest.mark.parametrize("pairs", [False, True])
def test_powers_are_repeated_products(pairs):
    a = torch.tensor([0.9, 0.0, -0.5, 0.3, 0.1, 0.0, 0.0, -0.7])
    powers = _powers(a, torch.tensor([0, 1, 2, 37]), pairs)
    base, powers = (from_pairs(a.double()), from_pairs(powers)) if pairs else (a.double(), powers)
    for n, power in zip([0, 1, 2, 37], powers, strict=True):
        expected = torch.stack([base] * n).prod(dim=0) if n else torch.ones_like(base)
        torch.testing.assert_close(power, expected, rtol=1e-13, atol=1e-16)
