"""The compiled backend (``ops/cpu.py``): how the work is cut into spans must not show in the results."""

from functools import partial

import pytest
import torch

from backends import DTYPES
from gradients import gradients as gradients_of
from multistable.ops import bmru_layer, bmru_scan, cpu
from nasty import VALUES, bmru_inputs, latch_inputs
from tolerances import assert_close, assert_same_bits

SHAPE = 1, 2048, 40
pytestmark = pytest.mark.usefixtures("two_threads")


@pytest.mark.parametrize("threads", [1, 2, 3, 7])
@pytest.mark.parametrize("shape", [(5, 129, 129), (1, 513, 129), (2, 2049, 17), (3, 22000, 1)], ids=str)
def test_bmru_scan_any_number_of_threads(threads, shape):
    torch.set_num_threads(threads)
    inputs = bmru_inputs(torch.float32, shape=shape)
    assert threads == 1 or len(cpu._spans_of_steps(inputs["cand"])) > 1
    portable, compiled = (partial(bmru_scan, backend=name) for name in ("portable", "cpu"))
    assert torch.equal(compiled(**inputs), portable(**inputs))
    names = ["cand", "beta", "alpha", "h0"]
    actual, expected = gradients_of(compiled, inputs, names), gradients_of(portable, inputs, names)
    for name in names:
        assert_close(actual[name], expected[name], name)


def gradients(inputs: list[torch.Tensor], reset: torch.Tensor | None, grad: torch.Tensor, backend: str) -> tuple:
    leaves = [x.clone().requires_grad_() for x in inputs]
    h = bmru_scan(*leaves, reset=reset, backend=backend)
    return h.detach(), torch.autograd.grad(h, leaves, grad)


@pytest.mark.parametrize("with_reset", [False, True])
@pytest.mark.parametrize("write_rate", [0.0, 0.001, 0.5])
def test_spans_of_steps_give_the_same_states_and_gradients(write_rate: float, with_reset: bool) -> None:
    """Units that write rarely or never carry their state, and its gradient, across many spans."""
    generator = torch.Generator().manual_seed(0)
    B, T, N = SHAPE
    cand, grad = (torch.randn(SHAPE, dtype=torch.float64, generator=generator) for _ in range(2))
    beta = torch.where(torch.rand(SHAPE, generator=generator) < write_rate, 0.0, 9.0).double()
    beta[0, 300, 3] = cand[0, 1500, 5] = torch.nan
    inputs = [cand, beta, torch.rand(N, generator=generator).double() + 1, torch.full((B, N), 0.3).double()]
    reset = torch.rand(B, T, generator=generator) < 0.002 if with_reset else None
    assert len(cpu._spans_of_steps(cand)) == 8

    h, grads = gradients(inputs, reset, grad, "cpu")
    wanted, wanted_grads = gradients(inputs, reset, grad, "portable")
    torch.testing.assert_close(h, wanted, rtol=0, atol=0, equal_nan=True)
    for got, want in zip(grads, wanted_grads, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-10, equal_nan=True)


def layer(cand, beta, alpha, h0, reset, *, reverse, backend):
    options = {"alpha_surr": 1.0, "reset": reset, "reverse": reverse, "time_major": False, "backend": backend}
    return bmru_layer(torch.cat([cand, beta], dim=-1), alpha, h0, **options)


@pytest.mark.parametrize("shape", [(1, 17, 5), (1, 3, 9), (2, 65, 3)], ids=str)
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("values", VALUES)
def test_spans_of_steps_on_nasty_input(monkeypatch, values, dtype, reverse, shape):
    """Forwards and backwards in time, down to spans of one step."""
    monkeypatch.setattr(cpu, "_SMALLEST_SPAN", 1)
    torch.set_num_threads(3)
    inputs = bmru_inputs(dtype, values, shape=shape)
    assert len(cpu._spans_of_steps(inputs["cand"])) > shape[0]
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


@pytest.mark.parametrize("with_reset", [False, True])
@pytest.mark.parametrize("write_rate", [0.0, 0.001, 0.5])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("gate", [torch.bool, torch.float64], ids=["boolean", "float"])
def test_spans_of_steps_of_a_latch(gate, reverse, write_rate, with_reset) -> None:
    generator = torch.Generator().manual_seed(0)
    value = torch.randn(SHAPE, dtype=torch.float64, generator=generator)
    reset = torch.rand(SHAPE[:2], generator=generator) < 0.002 if with_reset else None
    write = (torch.rand(SHAPE, generator=generator) < write_rate).to(gate)
    inputs = {"write": write, "value": value, "h0": torch.full((1, SHAPE[2]), 0.3).double(), "reset": reset}
    assert len(cpu._spans_of_steps(value)) == 8
    names = ["value", "h0", *(["write"] if gate == torch.float64 else [])]
    states, grads = [], []
    for backend in ("cpu", "portable"):
        states.append(latch(**inputs, reverse=reverse, backend=backend))
        run = partial(latch, reverse=reverse, backend=backend)
        grads.append(gradients_of(run, inputs, names, through=(0, 1)))
    for got, want in zip(*states, strict=True):
        assert_same_bits(got, want)
    for name in names:
        assert_close(grads[0][name], grads[1][name], name)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("values", VALUES)
def test_spans_of_steps_of_a_latch_on_nasty_input(monkeypatch, values, dtype, reverse):
    monkeypatch.setattr(cpu, "_SMALLEST_SPAN", 1)
    torch.set_num_threads(3)
    inputs = latch_inputs(dtype, values, shape=(2, 65, 3), gate="float")
    assert len(cpu._spans_of_steps(inputs["value"])) > 2
    states = [latch(**inputs, reverse=reverse, backend=backend) for backend in ("cpu", "portable")]
    for got, want in zip(*states, strict=True):
        assert_same_bits(got, want)


@pytest.mark.parametrize("B", [1, 8])
def test_gradients_that_keep_a_graph(B: int) -> None:
    """With ``create_graph`` the incoming gradient requires a gradient, which the other threads do not know."""
    inputs = bmru_inputs(torch.float32, shape=(B, 2048, 40))
    inputs["cand"].requires_grad_()
    h, h_last = layer(**inputs, reverse=False, backend="cpu")
    (grad,) = torch.autograd.grad((h**3).sum() + (h_last**2).sum(), inputs["cand"], create_graph=True)
    assert grad.requires_grad
