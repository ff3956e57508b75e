"""The GPU kernels against the definition: on a GPU, or without one through Triton's interpreter.

The interpreter must be chosen before the kernels are imported, so it has a process of its own (see the Makefile)::

    TRITON_INTERPRET=1 python -m pytest tests/test_triton.py
"""

import os
from functools import partial

import pytest
import torch

from gradients import gradients
from multistable.ops import bmru_layer, bmru_scan, latch_scan, linear_scan
from multistable.ops.operators import call
from nasty import LAYOUTS, SHAPES, VALUES, bmru_inputs, latch_inputs, shape_ids
from tolerances import assert_close, assert_same_bits

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cpu" if INTERPRETED else "cuda"
if INTERPRETED:
    import interpreter  # noqa: F401
elif not torch.cuda.is_available():
    pytest.skip("no GPU; the interpreter runs in a process of its own", allow_module_level=True)

from multistable.ops.triton import latch, latch_grad, launch, linear, linear_grad  # noqa: E402

# The interpreter computes with numpy, which warns where a GPU would overflow in silence.
pytestmark = pytest.mark.filterwarnings("ignore:Conversion of an array", "ignore::RuntimeWarning")

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
# The interpreter takes two minutes for all of them.
SLOW = [pytest.mark.extra] if INTERPRETED else []
LINEAR_DTYPES = [
    torch.float32,
    torch.complex64,
    *(pytest.param(x, marks=SLOW) for x in (torch.float64, torch.complex128)),
]
every_dtype = pytest.mark.parametrize(
    "dtype", [pytest.param(x, marks=SLOW if x in (torch.float16, torch.float64) else [], id=str(x)) for x in DTYPES]
)
SMALL = (2, 11, 6)


@pytest.fixture(params=["alone", "strands", "chunks"] + ["planned"] * (DEVICE == "cuda"))
def cut(request, monkeypatch):
    """How time is cut: as for this batch on this device, or in small tiles, so that small inputs have several of them:
    by one warp alone, by two warps on neighbouring strands, or by many in chunks of some 4 steps (13 are three)."""
    launch.launch_config.cache_clear()
    if request.param != "planned":
        monkeypatch.setattr(launch, "_multiprocessors", lambda device: 1e-6 if request.param == "alone" else 1e6)
        monkeypatch.setattr(launch, "_LANES", 4)
        monkeypatch.setattr(launch, "_MOST_WARPS", 2 if request.param == "strands" else 1)
        monkeypatch.setattr(launch, "_SHORTEST", 4 if request.param == "chunks" else 10**6)
        for module in (latch, latch_grad, linear, linear_grad):
            monkeypatch.setattr(module, "_TILINGS", ((0, 2, 1),))
    yield request.param
    launch.launch_config.cache_clear()


def there(inputs):
    """The same arguments on the device."""
    return {k: x.to(DEVICE) if isinstance(x, torch.Tensor) else x for k, x in inputs.items()}


def doubled(inputs):
    return {k: x.double() if isinstance(x, torch.Tensor) and x.is_floating_point() else x for k, x in inputs.items()}


def assert_scan(scan, inputs):
    actual = scan(**there(inputs), backend="triton")
    assert_same_bits(actual.cpu(), scan(**inputs, backend="reference"))


def assert_gradients(scan, inputs, names, reference_inputs=None):
    names = [name for name in names if inputs[name] is not None and inputs[name].is_floating_point()]
    actual = gradients(partial(_on_device, scan), inputs, names)
    expected = gradients(partial(scan, backend="reference"), reference_inputs or doubled(inputs), names)
    for name in names:
        assert_close(actual[name], expected[name], f"gradient of {name}")


def _on_device(scan, **inputs):
    outputs = scan(**there(inputs), backend="triton")
    return tuple(x.cpu() for x in outputs) if isinstance(outputs, tuple) else outputs.cpu()


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
def test_bmru_scan_gate_gets_nothing_for_writing_what_is_there(dtype, cut):
    """``value - h_prev`` is zero, not the rounding of alpha, which must be the same in both."""
    cand = torch.ones(1, 5, 2, dtype=dtype, device=DEVICE)
    beta = torch.full_like(cand, 0.5).requires_grad_()
    h = bmru_scan(cand, beta, torch.tensor([1.001, -0.3], device=DEVICE), backend="triton")
    (grad,) = torch.autograd.grad(h.sum(), beta)
    assert (grad[:, 0] != 0).all()
    assert (grad[:, 1:] == 0).all()


@pytest.mark.parametrize("dtype", [pytest.param(torch.float16, marks=SLOW), torch.bfloat16], ids=str)
def test_bmru_scan_gradients_in_half_precision(dtype, cut):
    assert_gradients(bmru_scan, bmru_inputs(dtype, shape=(2, 13, 6)), ["cand", "beta", "alpha", "h0"])


@pytest.mark.parametrize("values", ["nan_in_cand", "nan_in_beta"])
def test_bmru_scan_gradients_of_nan(values):
    assert_gradients(bmru_scan, bmru_inputs(torch.float64, values, SMALL), ["cand", "beta", "alpha", "h0"])


@pytest.mark.parametrize("gate", ["boolean", "float"])
def test_latch_scan_gradients(gate, cut):
    inputs = latch_inputs(torch.float64, shape=(2, 13, 5), gate=gate)
    assert_gradients(latch_scan, inputs, ["write", "value", "h0"])


@pytest.mark.parametrize("through", [(0,), (1,), (0, 1)], ids=["states", "last", "both"])
@pytest.mark.parametrize("reverse", [False, True], ids=["forwards", "backwards"])
@pytest.mark.parametrize("time_major", [False, True], ids=["batch_first", "time_major"])
def test_bmru_layer(reverse, time_major, through, cut):
    inputs = bmru_inputs(torch.float64, shape=(1, 13, 3))
    proj = torch.cat([inputs.pop("cand"), inputs.pop("beta")], dim=-1)
    inputs |= {"proj": proj.transpose(0, 1).contiguous() if time_major else proj}
    options = {"alpha_surr": 1.0, "reverse": reverse, "time_major": time_major}
    layer = partial(bmru_layer, **options)
    for actual, expected in zip(_on_device(layer, **inputs), layer(**inputs, backend="reference"), strict=True):
        assert_same_bits(actual, expected)
    actual = gradients(partial(_on_device, layer), inputs, ["proj", "alpha", "h0"], through)
    expected = gradients(partial(layer, backend="reference"), inputs, ["proj", "alpha", "h0"], through)
    for name, grad in actual.items():
        assert_close(grad, expected[name], f"gradient of {name}")


def linear_inputs(dtype, shape, constant):
    B, T, N = shape
    a = torch.randn(N if constant else (B, T, N), dtype=dtype) * 0.6
    return {
        "a": torch.randn(N, dtype=dtype) * 0.6 if constant else a,
        "b": torch.randn(B, T, N, dtype=dtype),
        "h0": torch.randn(B, N, dtype=dtype),
        "reset": torch.rand(B, T) < 0.1,
    }


@pytest.mark.parametrize("constant", [True, False], ids=["constant", "per_step"])
@pytest.mark.parametrize("dtype", LINEAR_DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(2, 21, 3), (1, 1, 1)], ids=shape_ids)
def test_linear_scan(dtype, constant, shape, cut):
    inputs = linear_inputs(dtype, shape, constant)
    wide = torch.complex128 if dtype.is_complex else torch.float64
    exact = {k: x.to(wide) if x.dtype == dtype else x for k, x in inputs.items()}
    assert_close(_on_device(linear_scan, **inputs), linear_scan(**exact, backend="reference"))
    names = ["a", "b", "h0"]
    actual = gradients(partial(_on_device, linear_scan), inputs, names)
    expected = gradients(partial(linear_scan, backend="reference"), exact, names)
    for name in names:
        assert_close(actual[name], expected[name], f"gradient of {name}")


def test_linear_scan_in_half_precision():
    inputs = linear_inputs(torch.bfloat16, (2, 37, 6), constant=True)
    assert_close(_on_device(linear_scan, **inputs), linear_scan(**doubled(inputs), backend="reference"))


@pytest.mark.parametrize("dtype", [pytest.param(torch.float16, marks=SLOW), torch.bfloat16], ids=str)
@pytest.mark.parametrize("constant", [True, False], ids=["constant", "per_step"])
def test_linear_scan_gradients_in_half_precision(dtype, constant, cut):
    inputs = linear_inputs(dtype, (2, 13, 6), constant)
    assert_gradients(linear_scan, inputs, ["a", "b", "h0"])


@pytest.mark.parametrize("cut", ["chunks"], indirect=True)
@pytest.mark.parametrize("N", [1, pytest.param(3, marks=SLOW)])
def test_more_chunks_than_one_round_of_carrying(cut, N):
    """35 chunks, of which the states and gradients are carried over 32 at a time."""
    shape = (1, 140, N)
    assert_scan(bmru_scan, bmru_inputs(torch.float32, shape=shape))
    held = bmru_inputs(torch.float64, "never_write", shape) | {"reset": None}  # gradients go all the way
    assert_gradients(bmru_scan, held, ["cand", "beta", "alpha", "h0"])
    assert_gradients(linear_scan, linear_inputs(torch.float64, shape, constant=True), ["a", "b", "h0"])


@pytest.mark.parametrize("of", ["the_input", "the_product"])
def test_linear_scan_reset_ends_an_overflow(cut, of):
    inputs = linear_inputs(torch.float32, (1, 21, 3), constant=False)
    if of == "the_input":
        inputs["b"][:, 4] = torch.inf
    else:
        inputs["a"][:, :8] = 1e20
    inputs["reset"][:, 9] = True
    found, expected = _on_device(linear_scan, **inputs), linear_scan(**inputs, backend="reference")
    assert_close(found[:, 9:], expected[:, 9:])  # before, an infinity may have become NaN: products overflow first


@pytest.mark.parametrize("reverse", [False, True], ids=["forwards", "backwards"])
@pytest.mark.parametrize("constant", [True, False], ids=["constant", "per_step"])
def test_linear_scan_gradients_through_the_last_state(constant, reverse, cut):
    """13 steps do not fill their last tile: the gradient of the last state has to pass what lies behind the end."""
    inputs = linear_inputs(torch.float64, (2, 13, 3), constant)
    turned = (lambda x: x.flip(1)) if reverse else (lambda x: x)
    names = ["a", "b", "h0"]

    def last_state(a, b, h0, reset):
        tensors = (x.to(DEVICE) for x in (a, b, h0, reset))
        return call("linear_scan", *tensors, False, reverse, "triton")[1].cpu()

    def definition(a, b, h0, reset):
        a = a if constant else turned(a)
        return linear_scan(a, turned(b), h0, reset=turned(reset), backend="reference")[:, -1]

    actual, expected = gradients(last_state, inputs, names), gradients(definition, inputs, names)
    for name in names:
        assert_close(actual[name], expected[name], f"gradient of {name}")


def test_strides_of_time_beyond_31_bits(monkeypatch):
    """Rows 2^29 numbers apart: four of them pass 2^31. Most of the 5 GiB are never touched."""
    monkeypatch.setattr(torch.utils.deterministic, "fill_uninitialized_memory", False)  # else all of them are
    T, apart = 6, 1 << 29
    rows = torch.empty((T - 1) * apart + 1, dtype=torch.float16, device=DEVICE).as_strided((1, T, 1), (1, apart, 1))
    write = torch.tensor([True, False, False, True, False, True], device=DEVICE).view(1, T, 1)
    value = torch.arange(1.0, T + 1, device=DEVICE, dtype=torch.float16).view(1, T, 1)
    last = latch.latch_forward(write, value, None, None, rows, reverse=False)
    assert rows.flatten().tolist() == [1, 1, 1, 4, 4, 6]
    assert last.item() == 6


@pytest.mark.parametrize("limit", [99 << 10, 48 << 10, 16 << 10])
def test_tiles_fit_the_shared_memory(monkeypatch, limit):
    """Those of a batch so small that eight warps share its columns, with every number in float64."""
    monkeypatch.setattr(launch, "_multiprocessors", lambda device: 132)
    monkeypatch.setattr(launch, "_shared_memory", lambda device: limit)
    for module in (latch, latch_grad, linear, linear_grad):
        launch.launch_config.cache_clear()
        plan = launch.launch_config(2, 2048, 256, module._TILINGS, 24, torch.device(DEVICE))
        assert plan.U >= 1
        assert 32 * plan.warps * plan.U * 24 * plan.stages <= limit
    launch.launch_config.cache_clear()
