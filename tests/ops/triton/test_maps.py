"""GPU kernels of machines (``ops/triton/maps.py``) equal the reference: states bit for bit, adjoints to rounding."""

from functools import partial

import pytest
import torch

from gpu_kernels import IGNORED, assert_scan, on_device
from maps import STATES, map_inputs
from multistable.ops import map_adjoint, map_scan
from multistable.ops.triton import maps as kernels
from tolerances import assert_close

pytestmark = IGNORED


@pytest.mark.parametrize("K", STATES)
def test_map_scan(K, cut):
    assert_scan(map_scan, map_inputs(K, (1, 13, 4)))


@pytest.mark.parametrize("K", [2, 16])
def test_map_scan_backwards(K, cut):
    assert_scan(partial(map_scan, reverse=True), map_inputs(K, (1, 13, 4)))


@pytest.mark.parametrize("shape", [(1, 1, 1), (3, 5, 7), (2, 6, 4), (0, 3, 2), (2, 0, 3), (2, 3, 0)], ids=str)
def test_map_scan_shapes(shape, cut):
    for K in (2, 4, 16):
        assert_scan(map_scan, map_inputs(K, shape, start=False, reset=False))


@pytest.mark.parametrize("K", [2, 3])
def test_four_maps_in_a_word_equal_single_ones(K, cut, monkeypatch):
    inputs = map_inputs(K, (1, 13, 4))
    together = on_device(map_scan, **inputs)
    monkeypatch.setattr(kernels, "can_pack", lambda *tensors, count: False)
    assert torch.equal(on_device(map_scan, **inputs), together)


@pytest.mark.parametrize(
    ("K", "dtype"), [(1, torch.float32), (2, torch.bfloat16), (7, torch.float64), (16, torch.float32)]
)
@pytest.mark.parametrize("reverse", [False, True], ids=["forwards", "backwards"])
def test_map_adjoint(K, dtype, reverse):
    inputs = map_inputs(K, (2, 7, 5))
    inputs["grad"] = torch.randn(inputs["maps"].shape, dtype=dtype)
    del inputs["s0"]
    scan = partial(map_adjoint, reverse=reverse)
    for actual, expected in zip(on_device(scan, **inputs), scan(**inputs, backend="reference"), strict=True):
        assert_close(actual, expected, "adjoint")
