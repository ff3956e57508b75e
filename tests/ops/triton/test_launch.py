"""How the GPU kernels cut their work (``ops/triton/launch.py``)."""

import pytest
import torch

from gpu_kernels import DEVICE, IGNORED, SLOW, assert_gradients, assert_scan, linear_inputs
from multistable.ops import bmru_scan, linear_scan
from multistable.ops.triton import latch, latch_grad, launch, linear, linear_grad
from nasty import bmru_inputs

pytestmark = IGNORED


@pytest.mark.parametrize("cut", ["chunks"], indirect=True)
@pytest.mark.parametrize("N", [1, pytest.param(3, marks=SLOW)])
@pytest.mark.extra
def test_more_chunks_than_one_round_carries(cut, N):
    """35 chunks: states and gradients are carried across 32 of them at a time."""
    shape = (1, 140, N)
    assert_scan(bmru_scan, bmru_inputs(torch.float32, shape=shape))
    held = bmru_inputs(torch.float64, "never_write", shape) | {"reset": None}  # gradients reach the first step
    assert_gradients(bmru_scan, held, ["cand", "beta", "alpha", "h0"])
    assert_gradients(linear_scan, linear_inputs(torch.float64, shape, constant=True), ["a", "b", "h0"])


@pytest.mark.parametrize("limit", [99 << 10, 48 << 10, 16 << 10])
def test_tiles_fit_the_shared_memory(monkeypatch, limit):
    """For few and many warps, all in float64."""
    monkeypatch.setattr(launch, "_multiprocessors", lambda device: 132)
    monkeypatch.setattr(launch, "_shared_memory", lambda device: limit)
    for module in (latch, latch_grad, linear, linear_grad):
        launch.launch_config.cache_clear()
        for rows in (2, 32, 512):
            plan = launch.launch_config(rows, 2048, 256, module._TILINGS["wide"], 24, torch.device(DEVICE))
            assert plan.U >= 1
            assert 32 * plan.warps * plan.U * 24 * plan.stages <= limit
    launch.launch_config.cache_clear()
