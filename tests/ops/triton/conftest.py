"""How the tests of the GPU kernels cut time into tiles."""

import os

import pytest


@pytest.fixture(params=["alone", "strands", "chunks"] + ["planned"] * (os.environ.get("TRITON_INTERPRET") != "1"))
def cut(request, monkeypatch):
    """How time is cut: as planned for this batch and device, or into tiles so small that small inputs have several.

    The small tiles belong to two warps that walk over all of time, each with columns of its own, to two warps on
    neighbouring strands, or to many warps in chunks of about 4 steps (13 steps are three chunks).
    """
    from multistable.ops.triton import latch, latch_grad, launch, linear, linear_grad, maps

    launch.launch_config.cache_clear()
    if request.param != "planned":
        monkeypatch.setattr(launch, "_multiprocessors", lambda device: 1e-6 if request.param == "alone" else 1e6)
        monkeypatch.setattr(launch, "_LANES", 4)
        monkeypatch.setattr(launch, "_SHORTEST", 4 if request.param == "chunks" else 10**6)
        warps, BN = {"alone": (2, 8), "strands": (2, 4), "chunks": (1, 4)}[request.param]
        tilings = ((1.0, launch.Tiling(2, 1, warps, BN)),)
        for module in (latch, latch_grad, linear, linear_grad):
            monkeypatch.setattr(module, "_TILINGS", dict.fromkeys(("wide", "pairs", "unaligned", "single"), tilings))
        monkeypatch.setattr(maps, "_TILINGS", dict.fromkeys((1, 2, 3), tilings))
    yield request.param
    launch.launch_config.cache_clear()
