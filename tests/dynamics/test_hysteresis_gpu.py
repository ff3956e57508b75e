"""The exact units on a GPU give the same numbers as on the CPU, in parallel over time, without synchronising."""

import pytest
import torch

from multistable import MRU, HysteresisMRU
from multistable.dynamics import simplified_brc
from multistable.dynamics.hysteresis import folds, hysteresis_scan
from tolerances import assert_close

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")


def arguments(dtype: torch.dtype, B: int = 5, T: int = 700, N: int = 33) -> dict[str, torch.Tensor]:
    """Arguments on the CPU: x and beta of both signs, states off the branches, a few resets."""
    torch.manual_seed(0)
    x, beta = torch.randn(B, T, N, dtype=torch.float64), 0.5 + torch.randn(B, T, N, dtype=torch.float64)
    h0 = torch.randn(B, N, dtype=torch.float64)
    return {"x": x.to(dtype), "beta": beta.to(dtype), "h0": h0.to(dtype), "reset": torch.rand(B, T) < 0.01}


def on_gpu(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: tensor.cuda() for name, tensor in tensors.items()}


def with_gradients(tensors: dict[str, torch.Tensor]) -> list[torch.Tensor]:
    leaves = {name: tensors[name].clone().requires_grad_() for name in ("x", "beta", "h0")}
    h = hysteresis_scan(**tensors | leaves)
    weights = torch.linspace(-1, 2, h.numel(), dtype=h.dtype, device=h.device).reshape(h.shape)
    return [h.detach(), *torch.autograd.grad((h * weights).sum(), list(leaves.values()))]


def bits(h: torch.Tensor, tensors: dict[str, torch.Tensor]) -> torch.Tensor:
    """The branch where there are two, False elsewhere."""
    return (h.cpu() >= 0) & (tensors["x"].abs() < folds(tensors["beta"])[1])


def test_float64_matches_the_cpu_and_takes_the_same_branches():
    tensors = arguments(torch.float64)
    expected, actual = with_gradients(tensors), with_gradients(on_gpu(tensors))
    assert torch.equal(bits(actual[0], tensors), bits(expected[0], tensors))
    for name, gpu, cpu in zip(("h", "grad of x", "grad of beta", "grad of h0"), actual, expected, strict=True):
        assert_close(gpu.cpu(), cpu, name)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_lower_precision_matches_the_cpu(dtype):
    """A tie may round either way, and a flipped bit stays flipped: rare, and excluded when values are compared."""
    tensors = arguments(dtype)
    expected, actual = (hysteresis_scan(**each) for each in (tensors, on_gpu(tensors)))
    same = bits(actual, tensors) == bits(expected, tensors)
    print(f"share of branches that differ: {1 - same.double().mean().item():.1e}")
    assert same.double().mean() > 0.999
    assert_close(actual.cpu()[same], expected[same])


@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
def test_nothing_synchronises():
    tensors = on_gpu(arguments(torch.float32))
    with_gradients(tensors)  # compiles the kernels
    torch.cuda.set_sync_debug_mode("error")
    try:
        with_gradients(tensors)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.filterwarnings("ignore:The AccumulateGrad node's stream")
def test_a_cuda_graph_captures_forward_and_backward():
    torch.manual_seed(0)
    rnn, x = HysteresisMRU(8, 16, 2, batch_first=True, device="cuda"), torch.randn(4, 100, 8, device="cuda")

    def step() -> list[torch.Tensor]:
        output, h_n = rnn(x)
        return [output, *torch.autograd.grad(output.square().sum() + h_n.sum(), list(rnn.parameters()))]

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step()
    x.copy_(torch.randn_like(x))
    graph.replay()
    for replayed, eager in zip(captured, step(), strict=True):
        assert_close(replayed, eager)


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # raised when dynamo traces it
def test_compiled_equals_eager():
    torch.manual_seed(0)
    rnn = HysteresisMRU(8, 16, batch_first=True, device="cuda", dtype=torch.float64)
    x = torch.randn(4, 100, 8, device="cuda", dtype=torch.float64)
    results = []
    for layer in (rnn, torch.compile(rnn, fullgraph=True)):
        output, _ = layer(x)
        results.append([output, *torch.autograd.grad(output.square().sum(), list(rnn.parameters()))])
    for compiled, eager in zip(*reversed(results), strict=True):
        assert_close(compiled, eager)


def milliseconds(T: int, N: int = 64, repeats: int = 7) -> float:
    """Time of the fastest of several forward and backward passes over one sequence."""
    x, beta = (torch.randn(1, T, N, device="cuda", requires_grad=True) for _ in range(2))
    weights, times = torch.randn(1, T, N, device="cuda"), []
    for _ in range(2 + repeats):
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        torch.autograd.grad(hysteresis_scan(x, beta), (x, beta), weights)
        stop.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(stop))
    return min(times[2:])


def test_time_per_step_falls_with_length():
    """A loop over time costs the same per step at any length; parallel work gets cheaper per step."""
    short, long = (milliseconds(T) / T for T in (2**10, 2**16))
    print(f"per step: {1e3 * short:.3f} us at T = 2^10, {1e3 * long:.3f} us at T = 2^16")
    assert long < short / 4


def test_general_unit_matches_the_cpu():
    torch.manual_seed(0)
    rnn = MRU(simplified_brc(0.1), 3, 5, batch_first=True, dtype=torch.float64)
    x = 2 * torch.randn(4, 60, 3, dtype=torch.float64)
    results = []
    for device in ("cpu", "cuda"):
        output, _ = rnn.to(device)(x.to(device))
        results.append([output.cpu(), *(g.cpu() for g in torch.autograd.grad(output.sum(), list(rnn.parameters())))])
    for cpu, gpu in zip(*results, strict=True):
        torch.testing.assert_close(gpu, cpu, rtol=1e-9, atol=1e-9)
