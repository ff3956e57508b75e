"""How the tests of the GPU kernels cut time into tiles."""

import os

import pytest


@pytest.fixture(params=["alone", "strands", "chunks"] + ["planned"] * (os.environ.get("TRITON_INTERPRET") != "1"))
def cut(request, monkeypatch):
    """How time is cut: as for this batch on this device, or in small tiles, so that small inputs have several of them:
    by one warp alone, by two warps on neighbouring strands, or by many in chunks of some 4 steps (13 are three)."""
    from multistable.ops.triton import latch, latch_grad, launch, linear, linear_grad

    launch.launch_config.cache_clear()
    if request.param != "planned":
        monkeypatch.setattr(launch, "_multiprocessors", lambda device: 1e-6 if request.param == "alone" else 1e6)
        monkeypatch.setattr(launch, "_LANES", 4)
        monkeypatch.setattr(launch, "_MOST_WARPS", 2 if request.param == "strands" else 1)
        monkeypatch.setattr(launch, "_SHORTEST", 4 if request.param == "chunks" else 10**6)
        for module in (latch, latch_grad, linear, linear_grad):
            monkeypatch.setattr(module, "_TILINGS", ((0, 2, 1),))
    yield request.param
    launch.launch_config.cache_clear()
