"""Gradients of the GPU kernels of the linear recurrence (``ops/triton/linear_grad.py``)."""

import pytest
import torch

from gpu_kernels import DEVICE, IGNORED, SLOW, assert_gradients, linear_inputs
from gradients import gradients
from multistable.ops import linear_scan
from multistable.ops.operators import call
from tolerances import assert_close

pytestmark = IGNORED


@pytest.mark.parametrize("dtype", [pytest.param(torch.float16, marks=SLOW), torch.bfloat16], ids=str)
@pytest.mark.parametrize("constant", [True, False], ids=["constant", "per_step"])
def test_linear_scan_gradients_in_half_precision(dtype, constant, cut):
    inputs = linear_inputs(dtype, (2, 13, 6), constant)
    assert_gradients(linear_scan, inputs, ["a", "b", "h0"])


@pytest.mark.parametrize("reverse", [False, True], ids=["forwards", "backwards"])
@pytest.mark.parametrize("constant", [True, False], ids=["constant", "per_step"])
def test_linear_scan_gradients_through_the_last_state(constant, reverse, cut):
    """13 steps do not fill their last tile: the gradient of the last state has to pass the empty part."""
    inputs = linear_inputs(torch.float64, (2, 13, 3), constant)
    flip = (lambda x: x.flip(1)) if reverse else (lambda x: x)
    names = ["a", "b", "h0"]

    def last_state(a, b, h0, reset):
        tensors = (x.to(DEVICE) for x in (a, b, h0, reset))
        return call("linear_scan", *tensors, False, reverse, "triton")[1].cpu()

    def definition(a, b, h0, reset):
        a = a if constant else flip(a)
        return linear_scan(a, flip(b), h0, reset=flip(reset), backend="reference")[:, -1]

    actual, expected = gradients(last_state, inputs, names), gradients(definition, inputs, names)
    for name in names:
        assert_close(actual[name], expected[name], f"gradient of {name}")
