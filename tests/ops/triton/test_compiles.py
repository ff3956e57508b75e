"""Triton compiles the kernels of scans for an H200, without one: its interpreter accepts more than its compiler."""

from contextlib import nullcontext

import pytest
import torch

pytest.importorskip("triton")

from triton.backends.compiler import GPUTarget
from triton.runtime import driver

from multistable.ops import triton as kernels
from multistable.ops.maps import word_dtype
from multistable.ops.triton import latch, launch, maps, primitives, variants

pytestmark = [
    pytest.mark.extra,
    pytest.mark.filterwarnings("ignore:TRITON_DEFAULT_FP_FUSION is unset:UserWarning"),  # Triton 3.9
    pytest.mark.skipif(bool(primitives.NO_ASSEMBLY), reason="the kernels are interpreted, or not for NVIDIA"),
]


class H200:
    """What the compiler, and a launch, ask a driver for. ``launched`` has the names of kernels."""

    def __init__(self):
        self.utils, self.launched = self, []

    def get_device_properties(self, device):
        return {"max_shared_mem": 227 * 1024}

    def load_binary(self, name, kernel, shared, device):
        return 1, 2, 3, 0, 1024  # module, function, registers, spills, threads

    def launcher_cls(self, src, metadata):
        return lambda *args: self.launched.append(metadata.name)

    def get_current_target(self):
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self):
        return 0

    def get_current_stream(self, device=0):
        return 0


@pytest.fixture
def gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(launch, "_multiprocessors", lambda device: 132)
    monkeypatch.setattr(launch, "_shared_memory", lambda device: 227 * 1024 * 7 // 8)
    launch.launch_config.cache_clear()
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
    monkeypatch.setattr(driver, "_active", H200())
    yield driver.active
    launch.launch_config.cache_clear()


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("layer", variants.LAYERS)
def test_kernels_compile(layer):
    """One variant of each, with all that a call can give them; pairs of 16 bits have the longest code."""
    dtype = torch.float32 if layer == "mingru" else torch.bfloat16
    calls = variants.Calls(256, dtype, dtype, True, True, (True, True), 1.0, torch.device("cpu"))
    assert compile_each(variants.plan_variants(layer, calls)) >= 3


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("K", [2, 4, 8, 16])
def test_kernels_of_machines_compile(K):
    B, T, N = 2, 1000, 64
    words, states = torch.zeros(B, T, N, dtype=word_dtype(K)), torch.zeros(B, T, N, dtype=torch.uint8)
    each, reset = torch.zeros(B, T, N, K), torch.zeros(B, T, dtype=torch.bool)
    with primitives.planning() as plan:
        maps.map_forward(words, states[:, 0], reset, states, K=K, reverse=False)
        maps.map_adjoint(words, each, reset, each, reverse=False)
    assert compile_each(plan) >= 3


def test_kernels_of_a_scan_are_compiled_and_launched(gpu, monkeypatch):
    """In chunks; once for both calls."""
    names = ["_last_write_kernel", "_carry_kernel", "_forward_kernel"]
    for name in names:
        monkeypatch.setattr(getattr(latch, name), "compiled", {})
    cand, beta, h = torch.empty(3, 2, 1000, 64).unbind()
    for _ in range(2):
        kernels.bmru_forward(cand, beta, torch.ones(64), None, None, h, reverse=False)
        assert [len(getattr(latch, name).compiled) for name in names] == [1, 1, 1]
    assert gpu.launched == 2 * names


def compile_each(plan):
    """Compile one variant of each kernel; return how many there are."""
    kernels = {kernel: variant for (kernel, _), variant in plan.items()}
    for kernel, variant in kernels.items():
        _, grid, args, constants = variant.args
        assert kernel.variant(constants).warmup(*args, grid=grid, **constants).asm["cubin"]
    return len(kernels)
