"""The linear recurrence: real and complex, constant and changing coefficients, resets.

A property of the recurrence: ``ops/portable.py`` and ``ops/cpu.py`` are compared with ``ops/reference.py``.
"""

from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from backends import BACKENDS, FAST, HALVES
from gradients import gradients
from multistable.ops import linear_scan
from multistable.ops.layer_scans import linear_layer
from nasty import LAYOUTS, SHAPES, shape_ids
from oracles import linear_formula
from tolerances import assert_close

ARGUMENTS = ["a", "b", "h0"]
WIDE = {torch.float32: torch.float64, torch.complex64: torch.complex128}

every_backend = pytest.mark.parametrize("backend", BACKENDS)
every_fast_backend = pytest.mark.parametrize("backend", FAST)
every_number = pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.complex64, torch.complex128], ids=str
)
every_coefficient = pytest.mark.parametrize("constant", [False, True], ids=["per_step", "constant"])


def linear_inputs(dtype, shape=(3, 17, 5), constant=False, seed=0):
    """Coefficients with a magnitude below 1.1 and random signs or angles."""
    B, T, N = shape
    generator = torch.Generator().manual_seed(seed)
    randn = partial(torch.randn, dtype=dtype, generator=generator)
    a = randn(N) if constant else randn(B, T, N)
    a = a / a.abs() * torch.rand(a.shape, generator=generator).to(a.real.dtype) * 1.1
    reset = torch.rand(B, T, generator=generator) < 0.1
    return {"a": a, "b": randn(B, T, N), "h0": randn(B, N), "reset": reset}


def to_double_precision(inputs):
    return {k: x if x is None else x.to(WIDE.get(x.dtype, x.dtype)) for k, x in inputs.items()}


def assert_forward_and_gradients(inputs, backend, names=ARGUMENTS):
    wide = to_double_precision(inputs)
    scan, reference = partial(linear_scan, backend=backend), partial(linear_scan, backend="reference")
    names = [name for name in names if inputs[name] is not None]
    h = scan(**inputs)
    assert h.dtype == inputs["b"].dtype
    assert_close(h, reference(**wide), "h")
    actual, expected = gradients(scan, inputs, names), gradients(reference, wide, names)
    for name in names:
        terms = None
        if name == "a" and inputs["a"].ndim == 1:  # the sum of what each step would get
            each_step = wide | {"a": wide["a"].expand_as(wide["b"])}
            terms = gradients(reference, each_step, ["a"])["a"]
        assert_close(actual[name], expected[name], f"gradient of {name}", terms)


@every_backend
@every_number
@every_coefficient
@pytest.mark.parametrize("argument", ARGUMENTS)
def test_linear_scan_gradient(argument, backend, dtype, constant):
    assert_forward_and_gradients(linear_inputs(dtype, (3, 37, 5), constant), backend, [argument])


@every_fast_backend
@every_coefficient
@pytest.mark.parametrize("pairs", [False, True], ids=["real", "pairs"])
def test_gradients_of_the_reverse_direction(backend, constant, pairs):
    inputs = linear_inputs(torch.float64, (3, 17, 6), constant)
    scan = partial(linear_layer, pairs=pairs, reverse=True, time_major=False)
    actual, expected = (
        gradients(partial(scan, backend=name), inputs, ARGUMENTS, through=(0, 1)) for name in (backend, "reference")
    )
    for name in ARGUMENTS:
        assert_close(actual[name], expected[name], f"gradient of {name}")


@every_backend
@every_number
@every_coefficient
def test_linear_scan_matches_the_formula(backend, dtype, constant):
    inputs = linear_inputs(dtype, constant=constant) | {"reset": None}
    expected = linear_formula(*(to_double_precision(inputs)[name] for name in ARGUMENTS))
    assert_close(linear_scan(**inputs, backend=backend), expected)


@every_fast_backend
@every_coefficient
@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128], ids=str)
@pytest.mark.parametrize("shape", [s for s in SHAPES if 0 not in s], ids=shape_ids)
def test_linear_scan_shapes(backend, dtype, shape, constant):
    assert_forward_and_gradients(linear_inputs(dtype, shape, constant), backend)


@every_fast_backend
@every_coefficient
@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64], ids=str)
@pytest.mark.parametrize("shape", [(0, 4, 3), (2, 0, 3)], ids=shape_ids)
def test_linear_scan_of_empty_input(backend, dtype, shape, constant):
    inputs = linear_inputs(dtype, shape, constant)
    assert linear_scan(**inputs, backend=backend).shape == shape
    for grad in gradients(partial(linear_scan, backend=backend), inputs, ARGUMENTS).values():
        assert (grad == 0).all()


@every_fast_backend
@pytest.mark.parametrize("layout", [name for name in LAYOUTS if name != "negated_view"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128], ids=str)
def test_linear_scan_layouts(backend, dtype, layout):
    def scan(a, b, **rest):
        return linear_scan(LAYOUTS[layout](a), LAYOUTS[layout](b), **rest, backend=backend)

    inputs = linear_inputs(dtype)
    assert_close(scan(**inputs), linear_scan(**inputs, backend="reference"))
    actual = gradients(scan, inputs, ARGUMENTS)
    expected = gradients(partial(linear_scan, backend="reference"), inputs, ARGUMENTS)
    for name in ARGUMENTS:
        assert_close(actual[name], expected[name], name)


@every_backend
@pytest.mark.parametrize("absent", [("h0",), ("reset",), ("h0", "reset")], ids="-".join)
def test_linear_scan_without_optional_arguments(backend, absent):
    inputs = linear_inputs(torch.float64) | dict.fromkeys(absent)
    assert_forward_and_gradients(inputs, backend)
    explicit = {"h0": torch.zeros(3, 5, dtype=torch.float64), "reset": torch.zeros(3, 17, dtype=torch.bool)}
    filled = inputs | {name: explicit[name] for name in absent}
    assert_close(linear_scan(**inputs, backend=backend), linear_scan(**filled, backend="reference"))


@every_fast_backend
@every_number
@given(
    shape=st.tuples(st.integers(1, 3), st.integers(1, 40), st.integers(1, 9)),
    constant=st.booleans(),
    seed=st.integers(0, 2**20),
)
def test_linear_scan_hypothesis(backend, dtype, shape, constant, seed):
    assert_forward_and_gradients(linear_inputs(dtype, shape, constant, seed), backend)


@every_backend
@every_coefficient
@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128], ids=str)
def test_linear_scan_gradcheck(backend, dtype, constant):
    inputs = linear_inputs(dtype, (2, 5, 3), constant)
    leaves = [inputs[name].requires_grad_() for name in ARGUMENTS]
    reset = inputs["reset"].clone()
    reset[0, 2] = True
    assert torch.autograd.gradcheck(lambda a, b, h0: linear_scan(a, b, h0, reset=reset, backend=backend), leaves)


@every_backend
@every_coefficient
@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_linear_scan_of_half_precision(backend, dtype, constant):
    inputs = linear_inputs(torch.float32, (3, 37, 5), constant)
    inputs = {k: x if k == "reset" else x.to(dtype) for k, x in inputs.items()}
    wide = {k: x if k == "reset" else x.double() for k, x in inputs.items()}
    h = linear_scan(**inputs, backend=backend)
    assert h.dtype == dtype
    assert_close(h, linear_scan(**wide, backend="reference"), "h")
    actual = gradients(partial(linear_scan, backend=backend), inputs, ARGUMENTS)
    expected = gradients(partial(linear_scan, backend="reference"), wide, ARGUMENTS)
    for name in ARGUMENTS:
        assert_close(actual[name], expected[name], f"gradient of {name}")


@every_fast_backend
def test_linear_scan_constant_coefficient_of_a_wider_dtype(backend):
    """A float32 parameter with bfloat16 inputs is not rounded, nor is its gradient."""
    inputs = linear_inputs(torch.float32, (3, 37, 5), constant=True)
    inputs |= {"b": inputs["b"].bfloat16(), "h0": inputs["h0"].bfloat16()}
    wide = {k: x if k == "reset" else x.double() for k, x in inputs.items()}
    assert_close(linear_scan(**inputs, backend=backend), linear_scan(**wide, backend="reference"))
    grad = gradients(partial(linear_scan, backend=backend), inputs, ["a"])["a"]
    assert grad.dtype == torch.float32


@every_backend
@every_coefficient
@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64], ids=str)
def test_linear_scan_recovers_from_overflow_at_a_reset(backend, dtype, constant):
    """States overflow before a reset; after it they equal those of a new sequence."""
    a = torch.full((5,) if constant else (2, 20, 5), 1e20, dtype=dtype)
    inputs = {"a": a, "b": torch.ones(2, 20, 5, dtype=dtype), "h0": torch.ones(2, 5, dtype=dtype)}
    reset = torch.zeros(2, 20, dtype=torch.bool)
    reset[:, 18] = True
    h = linear_scan(**inputs, reset=reset, backend=backend)
    assert not h[:, 17].isfinite().any()
    assert torch.equal(h[:, 18], inputs["b"][:, 18])
    assert_close(h[:, 19], torch.full((2, 5), 1e20, dtype=dtype))


@pytest.mark.usefixtures("two_threads")
@every_fast_backend
@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128], ids=str)
@pytest.mark.parametrize("shape", [(1, 17, 4097), (5, 17, 1025)], ids=shape_ids)
def test_linear_scan_large_enough_for_threads(backend, dtype, shape):
    inputs = linear_inputs(dtype, shape)
    assert_forward_and_gradients(inputs, backend)
