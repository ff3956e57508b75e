"""Triton compiles the kernels of scans for an H200, without one: its interpreter accepts more than its compiler."""

import pytest
import torch

pytest.importorskip("triton")

from h200 import pretend
from multistable.ops import triton as kernels
from multistable.ops.maps import word_dtype
from multistable.ops.triton import latch, launch, maps, primitives, variants

pytestmark = [
    pytest.mark.extra,
    pytest.mark.filterwarnings("ignore:TRITON_DEFAULT_FP_FUSION is unset:UserWarning"),  # Triton 3.9
    pytest.mark.skipif(bool(primitives.NO_ASSEMBLY), reason="the kernels are interpreted, or not for NVIDIA"),
]


@pytest.fixture
def gpu(monkeypatch):
    yield pretend(monkeypatch)
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
