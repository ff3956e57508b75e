"""Gradients of the GPU kernels of latch and BMRU scans (``ops/triton/latch_grad.py``)."""

import pytest
import torch

from gpu_kernels import DEVICE, IGNORED, SLOW, assert_gradients
from multistable.ops import bmru_scan, latch_scan
from nasty import bmru_inputs, latch_inputs

pytestmark = IGNORED
SMALL = (2, 11, 6)


@pytest.mark.parametrize(
    ("dtype", "values"),
    [(torch.float32, values) for values in ("plain", "never_write", "tie", "nothing_but_input", "zero_cand")]
    + [(torch.float64, values) for values in ("plain", "tie")]
    + [pytest.param(torch.float64, values, marks=SLOW) for values in ("never_write", "nothing_but_input", "zero_cand")],
)
def test_bmru_scan_gradients(dtype, values, cut):
    inputs = bmru_inputs(dtype, values, (2, 13, 5)) | {"alpha_surr": 1.5}
    assert_gradients(bmru_scan, inputs, ["cand", "beta", "alpha", "h0"])


@pytest.mark.parametrize("dtype", [pytest.param(torch.float16, marks=SLOW), torch.bfloat16], ids=str)
def test_bmru_scan_gate_has_no_gradient_where_a_write_changes_nothing(dtype, cut):
    """``value - h_prev`` is exactly zero: alpha must be rounded the same way in both."""
    cand = torch.ones(1, 5, 2, dtype=dtype, device=DEVICE)
    beta = torch.full_like(cand, 0.5).requires_grad_()
    h = bmru_scan(cand, beta, torch.tensor([1.001, -0.3], device=DEVICE), backend="triton")
    (grad,) = torch.autograd.grad(h.sum(), beta)
    assert (grad[:, 0] != 0).all()
    assert (grad[:, 1:] == 0).all()


@pytest.mark.parametrize("dtype", [pytest.param(torch.float16, marks=SLOW), torch.bfloat16], ids=str)
@pytest.mark.parametrize("N", [4, 6])
def test_bmru_scan_gradients_in_half_precision(dtype, N, cut):
    """Four numbers are an aligned row, but only two words: no block may be narrower than a row is aligned to."""
    assert_gradients(bmru_scan, bmru_inputs(dtype, shape=(2, 13, N)), ["cand", "beta", "alpha", "h0"])


@pytest.mark.parametrize("values", ["nan_in_cand", "nan_in_beta"])
def test_bmru_scan_gradients_of_nan(values):
    assert_gradients(bmru_scan, bmru_inputs(torch.float64, values, SMALL), ["cand", "beta", "alpha", "h0"])


@pytest.mark.parametrize("gate", ["boolean", "float"])
def test_latch_scan_gradients(gate, cut):
    inputs = latch_inputs(torch.float64, shape=(2, 13, 5), gate=gate)
    assert_gradients(latch_scan, inputs, ["write", "value", "h0"])
