"""Dtypes of the layer: bf16 autocast and parameters of another precision."""

import pytest
import torch
from torch import nn

from backends import DTYPES, FAST
from multistable import BMRU, BMRUCell

every_fast_backend = pytest.mark.parametrize("backend", FAST)


@every_fast_backend
def test_autocast_keeps_the_dtype_of_the_projection(backend):
    rnn = BMRU(3, 5, num_layers=2, bidirectional=True, backend=backend)
    x, h0 = torch.randn(7, 4, 3, requires_grad=True), torch.randn(4, 4, 5, requires_grad=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output, h_n = rnn(x, h0)
    assert output.dtype == h_n.dtype == torch.bfloat16
    (output.float().sum() + h_n.float().square().sum()).backward()
    for name, tensor in [*rnn.named_parameters(), ("x", x), ("h0", h0)]:
        assert tensor.grad is not None, name
        assert tensor.grad.dtype == torch.float32, name
        assert tensor.grad.isfinite().all(), name


def test_autocast_rounds_alpha_and_h0_once():
    rnn = BMRU(3, 5)
    nn.init.constant_(rnn.alpha_l0, 0.7)
    h0 = torch.full((1, 4, 5), 0.3)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output, _ = rnn(torch.randn(7, 4, 3), h0)
    levels = torch.tensor([0.3, 0.7, -0.7]).bfloat16()
    assert torch.isin(output, levels).all()


@every_fast_backend
def test_autocast_accumulates_the_gradient_of_alpha_in_float32(backend):
    """4096 writes of the same sign: a bfloat16 sum would stop at 256."""
    rnn = BMRU(1, 1, backend=backend)
    with torch.no_grad():
        rnn.weight_ih_l0.zero_()
        rnn.bias_ih_l0.copy_(torch.tensor([1.0, 0.0]))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output, _ = rnn(torch.zeros(4096, 1, 1))
    output.sum().backward()
    assert rnn.alpha_l0.grad.item() == 4096.0


@every_fast_backend
def test_autocast_trains(backend):
    """Hold the sign of the first input over twenty steps."""
    rnn = BMRU(2, 8, batch_first=True, backend=backend)
    head = nn.Linear(8, 1)
    optimiser = torch.optim.Adam([*rnn.parameters(), *head.parameters()], lr=2e-2)
    losses = []
    for _ in range(80):
        x = torch.zeros(64, 20, 2)
        x[:, 0, 0] = torch.randn(64).sign()
        x[:, 0, 1] = 1.0
        with torch.autocast("cpu", dtype=torch.bfloat16):
            guess = head(rnn(x)[0][:, -1]).float().squeeze(-1)
        loss = nn.functional.mse_loss(guess, x[:, 0, 0])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < 0.2 < losses[0]


@every_fast_backend
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_layer_of_any_dtype(backend, dtype):
    rnn = BMRU(3, 5, num_layers=2, bidirectional=True, backend=backend).to(dtype)
    x = torch.randn(7, 4, 3).to(dtype).requires_grad_()
    output, h_n = rnn(x, lengths=torch.tensor([7, 3, 0, 5]))
    assert output.dtype == h_n.dtype == dtype
    (output.sum() + h_n.sum()).backward()
    assert all(p.grad is not None and p.grad.dtype == dtype for p in [*rnn.parameters(), x])
    if dtype != torch.float64:
        assert torch.isin(output, torch.tensor([-1.0, 0.0, 1.0], dtype=dtype)).all()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_step_and_cell_of_any_dtype(dtype):
    rnn, cell = BMRU(3, 5, num_layers=2, dtype=dtype), BMRUCell(3, 5, dtype=dtype)
    x = torch.randn(4, 3).to(dtype)
    output, state = rnn.step(x)
    assert output.dtype == state.dtype == cell(x).dtype == dtype


def test_step_under_autocast_is_the_dtype_of_forward():
    rnn, x = BMRU(3, 5), torch.randn(1, 4, 3)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output, state = rnn.step(x[0])
        expected, expected_n = rnn(x)
    assert output.dtype == state.dtype == expected.dtype == torch.bfloat16
    assert torch.equal(state, expected_n)
    assert torch.equal(output, expected[0])
