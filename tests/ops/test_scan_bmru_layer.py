"""``ops.bmru_layer`` on every backend: one projection, both layouts, both directions, the last state.

A property of the recurrence, so it runs on every backend (``ops/portable.py``, ``ops/cpu.py``).
"""

from functools import partial

import pytest
import torch

from backends import BACKENDS, DTYPES, FAST
from gradients import gradients, weights_like
from multistable.ops import bmru_scan
from multistable.ops.layer_scans import bmru_layer
from nasty import SHAPES, VALUES, bmru_inputs, shape_ids
from oracles import bmru_formulas
from tolerances import assert_close, assert_same_bits

ARGUMENTS = ["proj", "alpha", "h0"]
OUTPUTS = {"h": (0,), "h_last": (1,), "both": (0, 1)}

every_backend = pytest.mark.parametrize("backend", BACKENDS)
every_fast_backend = pytest.mark.parametrize("backend", FAST)
every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)
every_layout = pytest.mark.parametrize("time_major", [False, True], ids=["batch_first", "time_major"])
every_direction = pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])


def layer_inputs(*args, time_major, reverse, **kwargs):
    x = bmru_inputs(*args, **kwargs)
    proj = torch.cat([x["cand"], x["beta"]], dim=-1)
    proj = proj.transpose(0, 1).contiguous() if time_major else proj
    rest = {"alpha": x["alpha"], "h0": x["h0"], "reset": x["reset"], "alpha_surr": 1.0}
    return {"proj": proj, **rest, "time_major": time_major, "reverse": reverse}


def by_scan(proj, alpha, h0, reset, alpha_surr, time_major, reverse):
    """The same operation by hand: flip, split, ``bmru_scan``, flip back."""
    proj = proj.transpose(0, 1) if time_major else proj
    proj = proj.flip(1) if reverse else proj
    reset = reset.flip(1) if reverse and reset is not None else reset
    cand, beta = proj.chunk(2, dim=-1)
    h = bmru_scan(cand, beta, alpha, h0, alpha_surr=alpha_surr, reset=reset, backend="reference")
    last = h[:, -1]
    h = h.flip(1) if reverse else h
    return (h.transpose(0, 1) if time_major else h), last


@every_backend
@every_dtype
@every_layout
@every_direction
@pytest.mark.parametrize("values", VALUES)
def test_bmru_layer_values(backend, dtype, time_major, reverse, values):
    inputs = layer_inputs(dtype, values, time_major=time_major, reverse=reverse)
    h, h_last = bmru_layer(**inputs, backend=backend)
    expected, expected_last = by_scan(**inputs)
    assert_same_bits(h, expected, "h")
    assert_same_bits(h_last, expected_last, "h_last")


@every_backend
@every_layout
@every_direction
@pytest.mark.parametrize("shape", [s for s in SHAPES if s[1] > 0], ids=shape_ids)
def test_bmru_layer_shapes(backend, time_major, reverse, shape):
    inputs = layer_inputs(torch.float32, shape=shape, time_major=time_major, reverse=reverse)
    for actual, expected in zip(bmru_layer(**inputs, backend=backend), by_scan(**inputs), strict=True):
        assert_same_bits(actual, expected)


@every_fast_backend
@every_layout
@every_direction
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("through", OUTPUTS)
@pytest.mark.parametrize("argument", ARGUMENTS)
def test_bmru_layer_gradient(argument, through, backend, dtype, time_major, reverse):
    inputs = layer_inputs(dtype, shape=(3, 37, 5), time_major=time_major, reverse=reverse)
    wide = {k: x.double() if isinstance(x, torch.Tensor) and x.is_floating_point() else x for k, x in inputs.items()}
    actual = gradients(partial(bmru_layer, backend=backend), inputs, [argument], OUTPUTS[through])
    expected = gradients(by_scan, wide, [argument], OUTPUTS[through])
    assert_close(actual[argument], expected[argument])


@every_backend
@pytest.mark.parametrize("argument", ["cand", "beta", "alpha", "h0"])
def test_bmru_layer_gradient_matches_the_formulas(argument, backend):
    """Through the states and the last state at once, against formulas that do not use torch."""
    x = bmru_inputs(torch.float64)
    arrays = {name: tensor.numpy() for name, tensor in x.items()}
    grad_h, grad_last = weights_like(x["cand"], seed=1), weights_like(x["h0"], seed=2)
    _, expected = bmru_formulas(**arrays, grad_h=grad_h.numpy(), grad_last=grad_last.numpy(), alpha_surr=1.0)

    def layer(cand, beta, **rest):
        return bmru_layer(torch.cat([cand, beta], dim=-1), **rest)

    options = {"alpha_surr": 1.0, "reverse": False, "time_major": False, "backend": backend}
    actual = gradients(partial(layer, **options), x, [argument], through=(0, 1))
    assert_close(actual[argument], torch.from_numpy(expected[argument]))


@every_backend
@every_layout
@every_direction
def test_bmru_layer_without_timesteps(backend, time_major, reverse):
    """Without steps, the last state is h0, and its gradient goes to h0 unchanged."""
    inputs = layer_inputs(torch.float32, shape=(2, 0, 3), time_major=time_major, reverse=reverse)
    h, h_last = bmru_layer(**inputs, backend=backend)
    assert h.shape == ((0, 2, 3) if time_major else (2, 0, 3))
    assert_same_bits(h_last, inputs["h0"])
    grad = gradients(partial(bmru_layer, backend=backend), inputs, ["h0"], through=(1,))["h0"]
    assert_same_bits(grad, weights_like(inputs["h0"], seed=1))


@every_backend
def test_bmru_layer_last_state_shares_no_memory_with_the_states(backend):
    inputs = layer_inputs(torch.float32, time_major=False, reverse=False)
    h, h_last = bmru_layer(**inputs, backend=backend)
    before = h[:, -1].clone()
    h_last.zero_()
    assert torch.equal(h[:, -1], before)


@every_backend
def test_last_state_without_timesteps_shares_no_memory_with_h0(backend):
    inputs = layer_inputs(torch.float32, shape=(2, 0, 3), time_major=False, reverse=False)
    _, h_last = bmru_layer(**inputs, backend=backend)
    h_last.zero_()
    assert inputs["h0"].all()
