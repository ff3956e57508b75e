"""Gradients of the latches: every input and backend, against the reference, formulas and the paper's equations.

A property of the recurrences: ``ops/portable.py`` and ``ops/cpu.py`` are compared with ``ops/reference.py``.
"""

from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from backends import BACKENDS, FAST, HALVES
from gradients import gradients, weights_like
from multistable.ops import bmru_scan, latch_scan
from nasty import LAYOUTS, SHAPES, VALUES, bmru_inputs, latch_inputs, shape_ids
from oracles import bmru_formulas, bmru_paper, latch_formulas
from tolerances import assert_close

BMRU_ARGUMENTS = ["cand", "beta", "alpha", "h0"]
LATCH_ARGUMENTS = ["write", "value", "h0"]

every_backend = pytest.mark.parametrize("backend", BACKENDS)
every_fast_backend = pytest.mark.parametrize("backend", FAST)
both_floats = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
every_slope = pytest.mark.parametrize("alpha_surr", [0.0, 1.0, 2.5])


def to_float64(inputs):
    return {k: x.double() if isinstance(x, torch.Tensor) and x.is_floating_point() else x for k, x in inputs.items()}


def differentiable(inputs, names):
    return [name for name in names if inputs[name] is not None and inputs[name].is_floating_point()]


def assert_gradients(scan, inputs, names, backend, reference_inputs=None):
    """Gradients of ``backend`` match those of the reference in float64 on the same numbers."""
    names = differentiable(inputs, names)
    actual = gradients(partial(scan, backend=backend), inputs, names)
    expected = gradients(partial(scan, backend="reference"), reference_inputs or to_float64(inputs), names)
    for name in names:
        assert_close(actual[name], expected[name], f"gradient of {name}")


@every_fast_backend
@both_floats
@every_slope
@pytest.mark.parametrize("argument", BMRU_ARGUMENTS)
def test_bmru_scan_gradient(argument, backend, dtype, alpha_surr):
    inputs = bmru_inputs(dtype, shape=(3, 37, 5)) | {"alpha_surr": alpha_surr}
    assert_gradients(bmru_scan, inputs, [argument], backend)


@every_fast_backend
@pytest.mark.parametrize("values", [v for v in VALUES if v not in ("huge", "infinite", "infinite_state")])
def test_bmru_scan_gradient_values(backend, values):
    assert_gradients(bmru_scan, bmru_inputs(torch.float64, values), BMRU_ARGUMENTS, backend)


@every_fast_backend
@pytest.mark.parametrize("values", ["huge", "infinite", "infinite_state"])
def test_bmru_scan_gradient_is_non_finite_in_the_same_places(backend, values):
    inputs = bmru_inputs(torch.float64, values)
    actual = gradients(partial(bmru_scan, backend=backend), inputs, BMRU_ARGUMENTS)
    expected = gradients(partial(bmru_scan, backend="reference"), inputs, BMRU_ARGUMENTS)
    for name in BMRU_ARGUMENTS:
        assert torch.equal(actual[name].isfinite(), expected[name].isfinite()), name


@every_fast_backend
@both_floats
@pytest.mark.parametrize("shape", [s for s in SHAPES if s[1] > 0], ids=shape_ids)
def test_bmru_scan_gradient_shapes(backend, dtype, shape):
    assert_gradients(bmru_scan, bmru_inputs(dtype, shape=shape), BMRU_ARGUMENTS, backend)


@every_fast_backend
def test_bmru_scan_gradient_without_timesteps(backend):
    """Without steps nothing has an influence: zeros. (The last state is h0 then, see test_scan_bmru_layer.py.)"""
    inputs = bmru_inputs(torch.float64, shape=(2, 0, 3))
    for grad in gradients(partial(bmru_scan, backend=backend), inputs, BMRU_ARGUMENTS).values():
        assert (grad == 0).all()


@every_fast_backend
@pytest.mark.parametrize("layout", LAYOUTS)
def test_bmru_scan_gradient_layouts(backend, layout):
    def scan(cand, beta, **rest):
        return bmru_scan(LAYOUTS[layout](cand), LAYOUTS[layout](beta), **rest)

    assert_gradients(scan, bmru_inputs(torch.float64), BMRU_ARGUMENTS, backend)


@every_backend
@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("argument", BMRU_ARGUMENTS)
def test_bmru_scan_gradient_of_half_precision(argument, backend, dtype):
    assert_gradients(bmru_scan, bmru_inputs(dtype, shape=(3, 37, 5)), [argument], backend)


@every_backend
@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_bmru_scan_gradient_of_wide_parameters(backend, dtype):
    """Under autocast, candidates have half precision; gradients of float32 alpha and h0 are not rounded to it."""
    inputs = bmru_inputs(dtype, shape=(3, 37, 5))
    inputs |= {"alpha": inputs["alpha"].float(), "h0": inputs["h0"].float()}
    assert_gradients(bmru_scan, inputs, ["alpha", "h0"], backend)


@every_backend
@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_bmru_scan_gate_has_no_gradient_where_a_write_changes_nothing(backend, dtype):
    """``value - h_prev`` is exactly zero: alpha must be rounded the same way in both."""
    cand, beta = torch.ones(1, 5, 3, dtype=dtype), torch.full((1, 5, 3), 0.5, dtype=dtype, requires_grad=True)
    h = bmru_scan(cand, beta, torch.tensor([1.001, -0.3, 0.7]), backend=backend)
    (grad,) = torch.autograd.grad(h.sum(), beta)
    assert (grad[:, 0] != 0).all()
    assert (grad[:, 1:] == 0).all()


@every_fast_backend
@both_floats
@given(
    values=st.sampled_from(["plain", "tie", "zero_cand", "reset_everywhere", "never_write", "always_write", "no_h0"]),
    shape=st.tuples(st.integers(1, 3), st.integers(1, 40), st.integers(1, 9)),
    seed=st.integers(0, 2**20),
    alpha_surr=st.sampled_from([0.0, 0.5, 1.0, 4.0]),
)
def test_bmru_scan_gradient_hypothesis(backend, dtype, values, shape, seed, alpha_surr):
    inputs = bmru_inputs(dtype, values, shape, seed=seed) | {"alpha_surr": alpha_surr}
    assert_gradients(bmru_scan, inputs, BMRU_ARGUMENTS, backend)


@every_backend
@every_slope
@pytest.mark.parametrize("argument", BMRU_ARGUMENTS)
@pytest.mark.parametrize("values", ["plain", "never_write", "always_write", "tie", "zero_cand", "reset_everywhere"])
def test_bmru_scan_gradient_matches_the_formulas(argument, backend, alpha_surr, values):
    inputs = bmru_inputs(torch.float64, values)
    arrays = {name: x.numpy() for name, x in inputs.items()}
    grad_h = weights_like(inputs["cand"]).numpy()
    h, expected = bmru_formulas(**arrays, grad_h=grad_h, grad_last=0.0, alpha_surr=alpha_surr)
    actual = gradients(partial(bmru_scan, alpha_surr=alpha_surr, backend=backend), inputs, [argument])
    assert torch.equal(bmru_scan(**inputs, backend=backend), torch.from_numpy(h))
    assert_close(actual[argument], torch.from_numpy(expected[argument]))


@every_backend
@every_slope
@pytest.mark.parametrize("argument", BMRU_ARGUMENTS)
def test_bmru_scan_gradient_matches_the_paper(argument, backend, alpha_surr):
    """Autograd through the paper's own equations, including the products."""
    inputs = bmru_inputs(torch.float64)
    actual = gradients(partial(bmru_scan, alpha_surr=alpha_surr, backend=backend), inputs, [argument])
    expected = gradients(partial(bmru_paper, alpha_surr=alpha_surr), inputs, [argument])
    assert_close(actual[argument], expected[argument])


@every_backend
def test_bmru_scan_write_gets_a_gradient_where_nothing_is_written(backend):
    """Two steps of one unit, of which the second holds: its threshold still gets a gradient."""
    tensors = [torch.tensor(x, dtype=torch.float64) for x in ([[[2.0], [-0.5]]], [[[1.0], [0.75]]], [1.0])]
    cand, beta, alpha = (x.requires_grad_() for x in tensors)
    h = bmru_scan(cand, beta, alpha, backend=backend)
    h[:, 1].sum().backward()
    assert h.flatten().tolist() == [1.0, 1.0]
    assert beta.grad is not None
    assert cand.grad is not None
    # value - h_prev = -1 - 1, distance = -0.25; d|beta| = 1, d|cand| = -1
    slope = 1 / (1 + (torch.pi * 0.25) ** 2)
    assert beta.grad[0, 1, 0].item() == pytest.approx(2 * slope, rel=1e-12)
    assert cand.grad[0, 1, 0].item() == pytest.approx(2 * slope, rel=1e-12)


@every_backend
@pytest.mark.parametrize("values", ["zero_cand", "negative_zero"])
def test_bmru_scan_gradient_of_the_absolute_value_at_zero_is_zero(backend, values):
    inputs = bmru_inputs(torch.float64, values)
    grad = gradients(partial(bmru_scan, backend=backend), inputs, ["beta"])["beta"]
    assert (grad[inputs["beta"] == 0] == 0).all()
    assert (grad[inputs["beta"] != 0] != 0).any()


@every_fast_backend
@both_floats
@pytest.mark.parametrize("argument", LATCH_ARGUMENTS)
@pytest.mark.parametrize("gate", ["boolean", "float"])
def test_latch_scan_gradient(argument, backend, dtype, gate):
    if (argument, gate) == ("write", "boolean"):
        argument = "value"  # a boolean gate has no gradient, but the value must still get one
    assert_gradients(latch_scan, latch_inputs(dtype, shape=(3, 37, 5), gate=gate), [argument], backend)


@every_fast_backend
@pytest.mark.parametrize("values", ["tie", "always_write", "never_write", "no_h0", "nothing_but_input", "nan_in_beta"])
def test_latch_scan_gradient_values(backend, values):
    assert_gradients(latch_scan, latch_inputs(torch.float64, values, gate="float"), LATCH_ARGUMENTS, backend)


@every_fast_backend
@pytest.mark.parametrize("shape", [s for s in SHAPES if s[1] > 0], ids=shape_ids)
def test_latch_scan_gradient_shapes(backend, shape):
    assert_gradients(latch_scan, latch_inputs(torch.float64, shape=shape, gate="float"), LATCH_ARGUMENTS, backend)


@every_backend
@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("argument", LATCH_ARGUMENTS)
def test_latch_scan_gradient_of_half_precision(argument, backend, dtype):
    assert_gradients(latch_scan, latch_inputs(dtype, shape=(3, 37, 5), gate="float"), [argument], backend)


@every_backend
@pytest.mark.parametrize("argument", LATCH_ARGUMENTS)
def test_latch_scan_gradient_matches_the_formulas(argument, backend):
    inputs = latch_inputs(torch.float64, gate="float")
    arrays = {name: x.numpy() for name, x in inputs.items()}
    grad_h = weights_like(inputs["value"]).numpy()
    h, _, expected = latch_formulas(**arrays, grad_h=grad_h, grad_last=0.0)
    actual = gradients(partial(latch_scan, backend=backend), inputs, [argument])
    assert torch.equal(latch_scan(**inputs, backend=backend), torch.from_numpy(h))
    assert_close(actual[argument], torch.from_numpy(expected[argument]))


@pytest.mark.usefixtures("two_threads")
@every_fast_backend
@pytest.mark.parametrize("shape", [(1, 17, 4097), (5, 17, 1025)], ids=shape_ids)
def test_bmru_scan_gradient_large_enough_for_threads(backend, shape):
    inputs = bmru_inputs(torch.float64, shape=shape)
    assert_gradients(bmru_scan, inputs, BMRU_ARGUMENTS, backend)
