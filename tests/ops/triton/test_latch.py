"""GPU kernels of latch and BMRU scans (``ops/triton/latch.py``, ``primitives.py``) equal the reference bit for bit."""

from functools import partial

import pytest
import torch

from gpu_kernels import DEVICE, IGNORED, SLOW, assert_scan, on_device
from gradients import gradients
from multistable.ops import bmru_scan, latch_scan
from multistable.ops import triton as kernels
from multistable.ops.layer_scans import bmru_layer
from nasty import LAYOUTS, SHAPES, VALUES, bmru_inputs, latch_inputs, shape_ids
from tolerances import assert_close, assert_same_bits

pytestmark = IGNORED
DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
every_dtype = pytest.mark.parametrize(
    "dtype", [pytest.param(x, marks=SLOW if x in (torch.float16, torch.float64) else [], id=str(x)) for x in DTYPES]
)
SMALL = (2, 11, 6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("values", VALUES)
def test_bmru_scan_values(dtype, values, cut):
    assert_scan(bmru_scan, bmru_inputs(dtype, values, (1, 13, 6)))


@every_dtype
@pytest.mark.parametrize("shape", SHAPES, ids=shape_ids)
def test_bmru_scan_shapes(dtype, shape):
    assert_scan(bmru_scan, bmru_inputs(dtype, shape=shape))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("layout", [name for name in LAYOUTS if name != "negated_view"])
def test_bmru_scan_layouts(dtype, layout):
    assert_scan(bmru_scan, bmru_inputs(dtype, shape=SMALL, layout=layout))


@every_dtype
@pytest.mark.parametrize("gate", ["boolean", "float"])
def test_latch_scan(dtype, gate, cut):
    assert_scan(latch_scan, latch_inputs(dtype, shape=(1, 13, 6), gate=gate))


@pytest.mark.parametrize("values", ["never_write", "infinite", "nan", "negative_zero", "reset_everywhere"])
def test_latch_scan_values(values):
    assert_scan(latch_scan, latch_inputs(torch.bfloat16, values, SMALL))


@pytest.mark.parametrize("through", [(0,), (1,), (0, 1)], ids=["states", "last", "both"])
@pytest.mark.parametrize("reverse", [False, True], ids=["forwards", "backwards"])
@pytest.mark.parametrize("time_major", [False, True], ids=["batch_first", "time_major"])
def test_bmru_layer(reverse, time_major, through, cut):
    inputs = bmru_inputs(torch.float64, shape=(1, 13, 3))
    proj = torch.cat([inputs.pop("cand"), inputs.pop("beta")], dim=-1)
    inputs |= {"proj": proj.transpose(0, 1).contiguous() if time_major else proj}
    options = {"alpha_surr": 1.0, "reverse": reverse, "time_major": time_major}
    layer = partial(bmru_layer, **options)
    for actual, expected in zip(on_device(layer, **inputs), layer(**inputs, backend="reference"), strict=True):
        assert_same_bits(actual, expected)
    actual = gradients(partial(on_device, layer), inputs, ["proj", "alpha", "h0"], through)
    expected = gradients(partial(layer, backend="reference"), inputs, ["proj", "alpha", "h0"], through)
    for name, grad in actual.items():
        assert_close(grad, expected[name], f"gradient of {name}")


def test_strides_of_time_beyond_31_bits(monkeypatch):
    """Rows are 2^29 numbers apart, so that four of them exceed 2^31. Most of the 5 GiB are never touched."""
    monkeypatch.setattr(torch.utils.deterministic, "fill_uninitialized_memory", False)  # it would touch all of them
    T, apart = 6, 1 << 29
    rows = torch.empty((T - 1) * apart + 1, dtype=torch.float16, device=DEVICE).as_strided((1, T, 1), (1, apart, 1))
    write = torch.tensor([True, False, False, True, False, True], device=DEVICE).view(1, T, 1)
    value = torch.arange(1.0, T + 1, device=DEVICE, dtype=torch.float16).view(1, T, 1)
    last = kernels.latch_forward(write, value, None, None, rows, reverse=False)
    assert rows.flatten().tolist() == [1, 1, 1, 4, 4, 6]
    assert last.item() == 6
