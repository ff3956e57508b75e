"""One long sequence is cut into parts of time on the CPU: the parts must not show."""

import pytest
import torch

from multistable.ops import bmru_scan, cpu

SHAPE = 1, 2048, 40  # above the size from which several threads work


@pytest.fixture(autouse=True)
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def gradients(inputs: list[torch.Tensor], reset: torch.Tensor | None, grad: torch.Tensor, backend: str) -> tuple:
    leaves = [x.clone().requires_grad_() for x in inputs]
    h = bmru_scan(*leaves, reset=reset, backend=backend)
    return h.detach(), torch.autograd.grad(h, leaves, grad)


@pytest.mark.parametrize("with_reset", [False, True])
@pytest.mark.parametrize("write_rate", [0.0, 0.001, 0.5])
def test_parts_of_time_do_not_show(write_rate: float, with_reset: bool) -> None:
    """Units that write seldom or never carry their state, and its gradient, across many parts."""
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
