"""What the tests of the GPU kernels share. Importing this skips a test module unless the kernels can run.

They run on a GPU, or without one in Triton's interpreter. That has to be chosen before the kernels are imported, so
it gets a process of its own (see the Makefile)::

    TRITON_INTERPRET=1 python -m pytest tests/ops/triton
"""

import os
from functools import partial

import pytest
import torch

from gradients import gradients
from tolerances import assert_close, assert_same_bits

__all__ = ["DEVICE", "IGNORED", "SLOW", "assert_gradients", "assert_scan", "linear_inputs", "on_device", "to_float64"]

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cpu" if INTERPRETED else "cuda"
if INTERPRETED:
    import interpreter  # noqa: F401
elif not torch.cuda.is_available():
    pytest.skip("no GPU; the interpreter runs in a process of its own", allow_module_level=True)

# The interpreter computes with numpy, which warns where a GPU overflows silently.
IGNORED = pytest.mark.filterwarnings("ignore:Conversion of an array", "ignore::RuntimeWarning")
# In the interpreter, all dtypes take two minutes.
SLOW = [pytest.mark.extra] if INTERPRETED else []


def to_device(inputs):
    """The same arguments on the device."""
    return {k: x.to(DEVICE) if isinstance(x, torch.Tensor) else x for k, x in inputs.items()}


def to_float64(inputs):
    return {k: x.double() if isinstance(x, torch.Tensor) and x.is_floating_point() else x for k, x in inputs.items()}


def assert_scan(scan, inputs):
    actual = scan(**to_device(inputs), backend="triton")
    assert_same_bits(actual.cpu(), scan(**inputs, backend="reference"))


def assert_gradients(scan, inputs, names, reference_inputs=None):
    names = [name for name in names if inputs[name] is not None and inputs[name].is_floating_point()]
    actual = gradients(partial(on_device, scan), inputs, names)
    expected = gradients(partial(scan, backend="reference"), reference_inputs or to_float64(inputs), names)
    for name in names:
        assert_close(actual[name], expected[name], f"gradient of {name}")


def on_device(scan, **inputs):
    outputs = scan(**to_device(inputs), backend="triton")
    return tuple(x.cpu() for x in outputs) if isinstance(outputs, tuple) else outputs.cpu()


def linear_inputs(dtype, shape, constant):
    B, T, N = shape
    a = torch.randn(N if constant else (B, T, N), dtype=dtype) * 0.6
    return {
        "a": torch.randn(N, dtype=dtype) * 0.6 if constant else a,
        "b": torch.randn(B, T, N, dtype=dtype),
        "h0": torch.randn(B, N, dtype=dtype),
        "reset": torch.rand(B, T) < 0.1,
    }
