"""The compiled backend (``ops/cpu.py``, ``ops/cpu_kernels.py``): how work is cut into spans changes no result."""

from functools import partial

import pytest
import torch

from backends import DTYPES
from gradients import gradients as gradients_of
from multistable.ops import bmru_scan, cpu
from multistable.ops.layer_scans import bmru_layer
from nasty import VALUES, bmru_inputs, latch_inputs
from tolerances import assert_close, assert_same_bits

pytestmark = pytest.mark.usefixtures("two_threads")


@pytest.mark.parametrize("shape", [(5, 129, 129), (1, 513, 129), (2, 2049, 17), (3, 22000, 1)], ids=str)
def test_bmru_scan_on_any_number_of_threads(shape):
    """States match the portable backend; states and gradients do not depend on the number of threads."""
    inputs, names = bmru_inputs(torch.float32, shape=shape), ["cand", "beta", "alpha", "h0"]
    portable, compiled = (partial(bmru_scan, backend=name) for name in ("portable", "cpu"))
    expected, expected_grads = portable(**inputs), gradients_of(portable, inputs, names)
    torch.set_num_threads(1)
    alone = gradients_of(compiled, inputs, names)
    for threads in (1, 2, 3, 7):
        torch.set_num_threads(threads)
        assert threads == 1 or shape[2] == 1 or len(cpu._spans(inputs["cand"])) > 1
        assert torch.equal(compiled(**inputs), expected)
        actual = gradients_of(compiled, inputs, names)
        for name in names:
            assert_close(actual[name], expected_grads[name], name)
            assert torch.equal(actual[name], alone[name]), name


def test_spans_cover_every_unit_of_every_sequence_once(monkeypatch):
    monkeypatch.setattr(cpu, "_SMALLEST_SPAN", 1)
    torch.set_num_threads(3)
    for B, N in [(1, 1), (1, 15), (1, 16), (1, 17), (2, 40), (2, 129), (3, 5), (7, 5), (100, 2)]:
        times = torch.zeros(B, N)
        for b_lo, b_hi, lo, hi in cpu._spans(torch.empty(B, 4, N)):
            times[b_lo:b_hi, lo:hi] += 1
        assert bool((times == 1).all()), (B, N)


def layer(cand, beta, alpha, h0, reset, *, reverse, backend):
    options = {"alpha_surr": 1.0, "reset": reset, "reverse": reverse, "time_major": False, "backend": backend}
    return bmru_layer(torch.cat([cand, beta], dim=-1), alpha, h0, **options)


@pytest.mark.parametrize("shape", [(1, 17, 37), (2, 3, 20)], ids=str)
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("values", VALUES)
def test_spans_of_units_on_nasty_input(monkeypatch, values, dtype, reverse, shape):
    monkeypatch.setattr(cpu, "_SMALLEST_SPAN", 1)
    torch.set_num_threads(3)
    inputs = bmru_inputs(dtype, values, shape=shape)
    assert len(cpu._spans(inputs["cand"])) > 1
    states = [layer(**inputs, reverse=reverse, backend=backend) for backend in ("cpu", "portable")]
    for got, want in zip(*states, strict=True):
        assert_same_bits(got, want)

    if values not in ("huge", "infinite", "infinite_state") and dtype == torch.float64:
        names = [name for name in ("cand", "beta", "alpha", "h0") if inputs[name] is not None]
        of = {"inputs": inputs, "names": names, "through": (0, 1)}
        got, want = (
            gradients_of(lambda b=backend, **x: layer(**x, reverse=reverse, backend=b), **of)
            for backend in ("cpu", "portable")
        )
        for name in names:
            assert_close(got[name], want[name], name)


def latch(write, value, h0, reset, *, reverse, backend):
    return torch.ops.multistable.latch_scan(write, value, h0, reset, reverse, backend)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("values", VALUES)
def test_spans_of_units_of_a_latch_on_nasty_input(monkeypatch, values, dtype, reverse):
    monkeypatch.setattr(cpu, "_SMALLEST_SPAN", 1)
    torch.set_num_threads(3)
    inputs = latch_inputs(dtype, values, shape=(2, 9, 37), gate="float")
    assert len(cpu._spans(inputs["value"])) > 1
    states = [latch(**inputs, reverse=reverse, backend=backend) for backend in ("cpu", "portable")]
    for got, want in zip(*states, strict=True):
        assert_same_bits(got, want)
    if values == "plain" and dtype == torch.float64:
        names = ["write", "value", "h0"]
        got, want = (
            gradients_of(partial(latch, reverse=reverse, backend=backend), inputs, names, through=(0, 1))
            for backend in ("cpu", "portable")
        )
        for name in names:
            assert_close(got[name], want[name], name)


@pytest.mark.parametrize("B", [1, 8])
def test_gradients_that_keep_a_graph(B: int) -> None:
    """With ``create_graph`` the incoming gradient itself requires a gradient, but grad mode is per thread."""
    inputs = bmru_inputs(torch.float32, shape=(B, 2048, 40))
    inputs["cand"].requires_grad_()
    h, h_last = layer(**inputs, reverse=False, backend="cpu")
    (grad,) = torch.autograd.grad((h**3).sum() + (h_last**2).sum(), inputs["cand"], create_graph=True)
    assert grad.requires_grad
