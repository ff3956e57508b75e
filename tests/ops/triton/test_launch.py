"""How the GPU kernels cut their work (``ops/triton/launch.py``)."""

import pytest
import torch

from gpu_kernels import DEVICE, IGNORED, SLOW, assert_gradients, assert_scan, linear_inputs
from multistable.ops import BackendError, bmru_scan, linear_scan
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


@pytest.mark.parametrize(("T", "C"), [(127, 1), (784, 6), (1000, 7), (2048, 8), (9999, 19), (65536, 128), (2**20, 132)])
def test_few_columns_are_cut_into_chunks(monkeypatch, T, C):
    """Short ones, of a multiple of 8 steps, if there are few of them."""
    monkeypatch.setattr(launch, "_multiprocessors", lambda device: 132)
    launch.launch_config.cache_clear()
    plan = launch.launch_config(1, T, 256, ((8, launch.Tiling(8, 3)),), 4, torch.device("cpu"))
    launch.launch_config.cache_clear()
    assert plan.C == C


@pytest.mark.parametrize(("N", "BN"), [(256, 128), (160, 32), (192, 64), (96, 32), (40, 32), (18, 16)])
def test_blocks_are_halved_where_they_overlap(N, BN):
    """A tenth of the columns may be computed twice; blocks of less than 32 columns only for narrower rows."""
    plan = launch.launch_config(4, 1000, N, ((0, launch.Tiling(8, 3, warps=4, BN=128)),), 4, torch.device("cpu"))
    assert (plan.BN, plan.column_blocks) == (BN, -(-N // BN))


@pytest.mark.parametrize(
    ("per_word", "N", "dtype", "name"),
    [
        (1, 16, torch.float32, "wide"),
        (1, 12, torch.float32, "unaligned"),
        (2, 8, torch.bfloat16, "pairs"),
        (2, 12, torch.bfloat16, "unaligned"),
        (1, 7, torch.bfloat16, "single"),
    ],
)
def test_rows_are_aligned_to_sectors_of_eight_words(per_word, N, dtype, name):
    assert launch.words(per_word, N, torch.empty(1, dtype=dtype)) == name


@pytest.mark.parametrize("B", [1, 1000])
def test_steps_are_numbered_with_32_bits(monkeypatch, B):
    """A number beyond would be negative, and its chunk without steps."""
    monkeypatch.setattr(launch, "_multiprocessors", lambda device: 132)
    launch.launch_config.cache_clear()
    options = 1, latch._TILINGS["wide"], 4, torch.device(DEVICE)
    plan = launch.launch_config(B, (1 << 31) - (1 << 22), *options)
    assert plan.C * plan.L + plan.S * plan.U < 1 << 31
    for T in ((1 << 31) - 5, 1 << 31):
        with pytest.raises(BackendError, match=rf"fewer than 2\^31 steps, got {T}"):
            launch.launch_config(B, T, *options)
    launch.launch_config.cache_clear()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_stands_for_a_missing_tensor_has_no_memory(dtype):
    """It is kept. In the pool of a CUDA graph of ``torch.compile`` it would count as a leak."""
    x, given = launch.optional(None, torch.empty(1, device=DEVICE), dtype)
    assert (x.dtype, x.device.type, given) == (dtype, DEVICE, 0)
    assert x.untyped_storage().nbytes() == 0
