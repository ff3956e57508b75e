"""How the tests of the GPU kernels cut time into tiles."""

import os

import pytest


@pytest.fixture(params=["alone", "strands", "chunks"] + ["planned"] * (os.environ.get("TRITON_INTERPRET") != "1"))
def cut(request, monkeypatch):
    """How time is cut: as planned for this batch and device, or into tiles so small that small inputs have several.

    The small tiles belong to one warp alone, to two warps on neighbouring strands, or to many warps in chunks of about
    4 steps (13 steps are three chunks).
    """
    from multistable.ops.triton import latch, latch_grad, launch, linear, linear_grad, maps

    launch.launch_config.cache_clear()
    if request.param != "planned":
        monkeypatch.setattr(launch, "_multiprocessors", lambda device: 1e-6 if request.param == "alone" else 1e6)
        monkeypatch.setattr(launch, "_LANES", 4)
        monkeypatch.setattr(launch, "_SHORTEST", 4 if request.param == "chunks" else 10**6)
        tiling = launch.Tiling(U=2, stages=1, warps=2 if request.param == "strands" else 1, BN=4)
        for module in (latch, latch_grad, linear, linear_grad, maps):
            monkeypatch.setattr(module, "_TILINGS", dict.fromkeys((1, 2, 4), ((1.0, tiling),)))
    yield request.param
    launch.launch_config.cache_clear()
