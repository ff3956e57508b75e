"""A layer's projection and scan in one function (``ops/fused_layer.py``) by the GPU kernels, against two operators."""

import pytest
import torch
import torch.nn.functional as F

from gpu_kernels import DEVICE, IGNORED, INTERPRETED
from multistable import BMRU
from multistable.layers import bmru
from multistable.ops import fused_layer
from tolerances import assert_close, assert_same_bits

pytestmark = IGNORED


def run(rnn, x, hx, options):
    """Output, last state and the gradients of input, first state and parameters."""
    leaves = [y.clone().requires_grad_() for y in (x, hx) if y is not None]
    output, h_n = rnn(*leaves, **options)
    weights = [torch.linspace(1, 9, y.numel(), device=DEVICE).reshape(y.shape).cos().to(y.dtype) for y in (output, h_n)]
    grads = torch.autograd.grad((output, h_n), [*leaves, *rnn.parameters()], weights)
    return (output.detach(), h_n.detach()), grads


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    "given", ["nothing", "state", "reset", "lengths", "no_bias", "both_ways", "no_sequences", "alpha"]
)
def test_matches_two_operators(monkeypatch, given, dtype):
    """The same bits forward; backward the products are the same, in another order for the matrix."""
    B, T, D, N = 0 if given == "no_sequences" else 3, 11, 5, 6
    options = {"bias": given != "no_bias", "bidirectional": given == "both_ways", "batch_first": given == "lengths"}
    rnn = BMRU(D, N, backend="triton", device=DEVICE, dtype=dtype, **options)
    if given == "alpha":  # not rounded, nor its gradient
        rnn.alpha_l0 = torch.nn.Parameter(torch.linspace(0.1, 1.3, N, device=DEVICE))
    x = torch.randn(*((B, T) if given == "lengths" else (T, B)), D, device=DEVICE, dtype=dtype)
    hx = torch.randn(1, B, N, device=DEVICE, dtype=dtype) if given == "state" else None
    calls = {"reset": torch.rand(T, B, device=DEVICE) < 0.2} if given == "reset" else {}
    calls |= {"lengths": torch.tensor([11, 1, 7])} if given == "lengths" else {}
    results = []
    for backend in ("triton", None):
        monkeypatch.setattr(bmru, "fused_backend", lambda *_, chosen=backend: chosen)
        results.append(run(rnn, x, hx, calls))
    (states, grads), (expected, expected_grads) = results
    for actual, wanted in zip(states, expected, strict=True):
        assert_same_bits(actual, wanted)
    for actual, wanted in zip(grads, expected_grads, strict=True):
        assert actual.dtype == wanted.dtype
        assert_close(actual, wanted)


def test_no_second_derivative():
    x = torch.randn(2, 5, 3, device=DEVICE, requires_grad=True)
    weight, alpha = torch.randn(8, 3, device=DEVICE), torch.ones(4, device=DEVICE)
    options = {"alpha_surr": 1.0, "reset": None, "valid": None, "reverse": False, "time_major": False}
    h, _ = fused_layer.project_and_scan(x, weight, None, alpha, None, backend="triton", **options)
    (grad,) = torch.autograd.grad(h.sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="no second derivative"):
        grad.sum().backward()


@pytest.mark.skipif(INTERPRETED, reason="on a CPU small layers do not use the function")
def test_used_with_gradients():
    """Not without them, under autocast, compiled, or where dtypes differ."""
    x, weight = torch.randn(2, 5, 3, device=DEVICE), torch.randn(8, 3, device=DEVICE)
    assert fused_layer.fused_backend(x, weight, "auto") == "triton"
    assert fused_layer.fused_backend(x, weight, "portable") is None
    assert fused_layer.fused_backend(x.bfloat16(), weight, "auto") is None
    with torch.autocast("cuda"):
        assert fused_layer.fused_backend(x, weight, "auto") is None
    with torch.no_grad():
        assert fused_layer.fused_backend(x, weight, "auto") is None
    compiled = torch.compile(lambda: F.relu(x) if fused_layer.fused_backend(x, weight, "auto") is None else x)
    assert torch.equal(compiled(), F.relu(x))
