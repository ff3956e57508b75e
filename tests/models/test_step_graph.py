import pytest
import torch

from multistable import BMRU, LRU, Hybrid, StepGraph
from multistable.layers import bmru, lru
from multistable.layers.base import STEP_BY_SCAN


def test_needs_a_gpu():
    with pytest.raises(ValueError, match="x must be on a GPU"):
        StepGraph(BMRU(3, 4), torch.zeros(1, 3))


@pytest.mark.parametrize(("kind", "count"), [(BMRU, 1), (LRU, 1), (Hybrid, 2)])
@torch.no_grad()
def test_a_step_as_a_scan_is_the_step(monkeypatch, kind, count):
    torch.manual_seed(0)
    layer, x = kind(3, 8).double(), torch.randn(5, 3, dtype=torch.float64)
    state, calls = layer.step(x)[1], []
    x = -x
    expected = layer.step(x, state)
    for module, name in ((bmru, "bmru_layer"), (lru, "linear_layer")):
        scan = getattr(module, name)
        monkeypatch.setattr(module, name, lambda *a, scan=scan, **b: calls.append(scan) or scan(*a, **b))
    token = STEP_BY_SCAN.set(True)
    try:
        scanned = layer.step(x, state)
    finally:
        STEP_BY_SCAN.reset(token)
    assert len(calls) == count
    tolerance = 0 if kind is BMRU else 1e-15
    for own, other in zip(scanned, expected, strict=True):
        torch.testing.assert_close(own, other, rtol=tolerance, atol=tolerance)
