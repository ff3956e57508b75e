import pytest
import torch

from multistable import BMRU, LRU, Hybrid, StepGraph
from multistable.layers.base import STEP_BY_SCAN


def test_needs_a_gpu():
    with pytest.raises(ValueError, match="x must be on a GPU"):
        StepGraph(BMRU(3, 4), torch.zeros(1, 3))


@pytest.mark.parametrize("kind", [BMRU, LRU, Hybrid])
@torch.no_grad()
def test_a_step_as_a_scan_is_the_step(kind):
    torch.manual_seed(0)
    layer, x = kind(3, 8).double(), torch.randn(5, 3, dtype=torch.float64)
    state = layer.step(x)[1]
    x = -x
    token = STEP_BY_SCAN.set(True)
    try:
        scanned = layer.step(x, state)
    finally:
        STEP_BY_SCAN.reset(token)
    for own, expected in zip(scanned, layer.step(x, state), strict=True):
        torch.testing.assert_close(
            own, expected, rtol=1e-15 if kind is not BMRU else 0, atol=1e-15 * (kind is not BMRU)
        )
