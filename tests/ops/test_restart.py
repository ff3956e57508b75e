"""Resets that return to the branch +alpha: the same states as a loop, the same gradients as autograd through it."""

import pytest
import torch

from backends import BACKENDS, DTYPES
from gradients import gradients
from multistable.ops import reference
from multistable.ops.restart import bmru_layer_on_branch
from nasty import VALUES, bmru_inputs
from tolerances import assert_close, assert_same_bits


def layer_inputs(dtype, values="plain"):
    """The inputs of a layer, with a state and resets."""
    x = bmru_inputs(dtype, values)
    B, T, N = x["cand"].shape
    h0 = torch.randn(B, N).to(dtype) if x["h0"] is None else x["h0"]
    reset = torch.rand(B, T) < 0.3 if x["reset"] is None else x["reset"]
    return {"proj": torch.cat([x["cand"], x["beta"]], dim=-1), "alpha": x["alpha"], "h0": h0, "reset": reset}


def loop(proj, alpha, h0, reset, reverse=False, alpha_surr=0.7):
    """The recurrence step by step: before a marked step the state is alpha."""
    order = range(proj.shape[1])
    hs, h = [None] * len(order), h0.to(proj.dtype)
    for t in reversed(order) if reverse else order:
        h = torch.where(reset[:, t, None], alpha.to(proj.dtype), h)
        cand, beta = proj[:, t].chunk(2, dim=-1)
        hs[t] = h = reference.bmru_step(cand, beta, alpha, h, alpha_surr=alpha_surr)
    return torch.stack(hs, dim=1), h


def scan(backend, time_major=False, **options):
    options = {"reverse": False, "alpha_surr": 0.7} | options

    def call(proj, alpha, h0, reset):
        proj = proj.transpose(0, 1) if time_major else proj
        h, h_last = bmru_layer_on_branch(
            proj, alpha, h0, reset=reset, time_major=time_major, backend=backend, **options
        )
        return h.transpose(0, 1) if time_major else h, h_last

    return call


every_backend = pytest.mark.parametrize("backend", BACKENDS)
both_ways = pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])


@every_backend
@both_ways
@pytest.mark.parametrize("values", VALUES)
def test_states_match_the_loop_bit_for_bit(backend, reverse, values):
    for dtype in DTYPES:
        x = layer_inputs(dtype, values)
        with torch.no_grad():
            expected = loop(**x, reverse=reverse)
        for name, actual, wanted in zip(("h", "h_last"), scan(backend, reverse=reverse)(**x), expected, strict=True):
            assert_same_bits(actual, wanted, f"{name} in {dtype}")


@every_backend
@both_ways
@pytest.mark.parametrize("time_major", [False, True], ids=["batch_first", "time_major"])
@pytest.mark.parametrize("through", [(0,), (1,), (0, 1)], ids=["states", "last", "both"])
def test_gradients_match_autograd_through_the_loop(backend, reverse, time_major, through):
    x, names = layer_inputs(torch.float64), ["proj", "alpha", "h0"]
    expected = gradients(lambda **args: loop(**args, reverse=reverse), x, names, through)
    found = gradients(scan(backend, time_major, reverse=reverse), x, names, through)
    for name in names:
        assert 0 not in through or expected[name].abs().max() > 0, name  # the last state may not depend on h0
        assert_close(found[name], expected[name], name)


@every_backend
def test_a_reset_that_is_not_overwritten_gives_alpha_a_gradient(backend):
    """Nothing is written, and one reset: of five states the first two are h0, the other three alpha."""
    proj = torch.tensor([0.0, 9.0], dtype=torch.float64).expand(1, 5, 2)
    reset = torch.tensor([[False, False, True, False, False]])
    alpha, h0 = torch.tensor([3.0]).double().requires_grad_(), torch.zeros(1, 1).double().requires_grad_()
    h, _ = scan(backend)(proj, alpha, h0, reset)
    assert h.flatten().tolist() == [0, 0, 3, 3, 3]
    h.sum().backward()
    assert (alpha.grad.item(), h0.grad.item()) == (3, 2)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@every_backend
def test_half_precision_rounds_gradients_once(backend, dtype):
    x, names = layer_inputs(dtype), ["proj", "alpha", "h0"]
    wide = {name: value.double() if value.is_floating_point() else value for name, value in x.items()}
    expected, found = gradients(loop, wide, names), gradients(scan(backend), x, names)
    for name in names:
        assert_close(found[name], expected[name], name)
