"""The GPU kernels of the linear recurrence (``ops/triton/linear.py``) against the definition."""

from functools import partial

import pytest
import torch

from gpu_kernels import IGNORED, SLOW, linear_inputs, on_device, to_float64
from gradients import gradients
from multistable.ops import linear_scan
from nasty import shape_ids
from tolerances import assert_close

pytestmark = IGNORED
LINEAR_DTYPES = [
    torch.float32,
    torch.complex64,
    *(pytest.param(x, marks=SLOW) for x in (torch.float64, torch.complex128)),
]


@pytest.mark.parametrize("constant", [True, False], ids=["constant", "per_step"])
@pytest.mark.parametrize("dtype", LINEAR_DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(2, 21, 3), (1, 1, 1)], ids=shape_ids)
def test_linear_scan(dtype, constant, shape, cut):
    inputs = linear_inputs(dtype, shape, constant)
    wide = torch.complex128 if dtype.is_complex else torch.float64
    exact = {k: x.to(wide) if x.dtype == dtype else x for k, x in inputs.items()}
    assert_close(on_device(linear_scan, **inputs), linear_scan(**exact, backend="reference"))
    names = ["a", "b", "h0"]
    actual = gradients(partial(on_device, linear_scan), inputs, names)
    expected = gradients(partial(linear_scan, backend="reference"), exact, names)
    for name in names:
        assert_close(actual[name], expected[name], f"gradient of {name}")


def test_linear_scan_in_half_precision():
    inputs = linear_inputs(torch.bfloat16, (2, 37, 6), constant=True)
    assert_close(on_device(linear_scan, **inputs), linear_scan(**to_float64(inputs), backend="reference"))


@pytest.mark.parametrize("of", ["the_input", "the_product"])
def test_linear_scan_reset_ends_an_overflow(cut, of):
    inputs = linear_inputs(torch.float32, (1, 21, 3), constant=False)
    if of == "the_input":
        inputs["b"][:, 4] = torch.inf
    else:
        inputs["a"][:, :8] = 1e20
    inputs["reset"][:, 9] = True
    found, expected = on_device(linear_scan, **inputs), linear_scan(**inputs, backend="reference")
    assert_close(found[:, 9:], expected[:, 9:])  # before, infinity may become NaN, because products overflow first
