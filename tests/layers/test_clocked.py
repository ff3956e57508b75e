"""The clock of ``ClockedRNN``: one tick, one clock per unit, and the closed forms of linear fields."""

import math

import pytest
import torch

from multistable import ClockedRNN
from multistable.dynamics import Field, brc, linear, nbrc, simplified_brc
from multistable.dynamics.branches import branch_scan

D, N = 3, 4


def batch(directions: int = 1, T: int = 9):
    torch.manual_seed(1)
    x = 2 * torch.randn(3, T, D, dtype=torch.float64)
    return x, torch.randn(2 * directions, 3, N, dtype=torch.float64)


def assert_close(actual, expected):
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-12)


def test_one_tick_matches_the_plain_cell():
    torch.manual_seed(0)
    cell = ClockedRNN(simplified_brc(0.3), D, N, batch_first=True, dtype=torch.float64)
    x, h = batch()[0], torch.zeros(3, N, dtype=torch.float64)
    output, _ = cell(x)
    for t in range(x.shape[1]):
        u, beta = torch.nn.functional.linear(x[:, t], cell.weight_ih_l0, cell.bias_ih_l0).chunk(2, dim=-1)
        h = 0.7 * h + 0.3 * torch.tanh(u + (beta + 1) * h)
        assert_close(output[:, t], h)


def test_each_unit_has_its_own_clock():
    x, h0 = batch()[0], torch.randn(1, 3, N, dtype=torch.float64)
    clocks = [1, 2, 5, 9]
    make = lambda n: ClockedRNN(brc(), D, N, batch_first=True, n_clock=n, dtype=torch.float64)  # noqa: E731
    mixed = make(clocks)
    output, _ = mixed(x, h0)
    for unit, n in enumerate(clocks):
        single = make(n)
        single.load_state_dict(mixed.state_dict())
        assert_close(single(x, h0)[0][..., unit], output[..., unit])


@pytest.mark.parametrize("n_clock", [1, 5, [1, 2, 5, 9]])
def test_linear_closed_form_matches_the_loop(n_clock):
    closed = ClockedRNN(linear(), D, N, batch_first=True, n_clock=n_clock, dtype=torch.float64)
    with torch.no_grad():
        closed.a_l0.copy_(torch.tensor([0.9, -0.5, 1.0, 0.0]))
    loop = ClockedRNN(
        Field(linear().function, {"a": 0.9}), D, N, batch_first=True, n_clock=n_clock, dtype=torch.float64
    )
    loop.load_state_dict(closed.state_dict())
    x, h0 = batch()[0], torch.randn(1, 3, N, dtype=torch.float64)
    outputs = [cell(x, h0)[0] for cell in (closed, loop)]
    assert_close(*outputs)
    for output in outputs:
        output.sum().backward()
    finite = closed.a_l0.detach() != 1  # there the closed form is the limit, without its gradient
    assert_close(closed.a_l0.grad[finite], loop.a_l0.grad[finite])
    assert_close(closed.weight_ih_l0.grad, loop.weight_ih_l0.grad)


def test_linear_limit():
    limit = ClockedRNN(linear(0.8), D, N, batch_first=True, n_clock=math.inf, dtype=torch.float64)
    long = ClockedRNN(linear(0.8), D, N, batch_first=True, n_clock=300, dtype=torch.float64)
    long.load_state_dict(limit.state_dict())
    assert_close(limit(batch()[0])[0], long(batch()[0])[0])
    with torch.no_grad():
        limit.a_l0[1] = 1.5  # no limit: NaN
    assert limit(batch()[0])[0].isnan().any(dim=(0, 1)).tolist() == [False, True, False, False]


def test_a_clocked_cell_trains():
    torch.manual_seed(0)
    cell, out = ClockedRNN(simplified_brc(0.5), 1, 8, batch_first=True, n_clock=4), torch.nn.Linear(8, 1)
    optimiser = torch.optim.Adam([*cell.parameters(), *out.parameters()], lr=0.03)
    x = torch.zeros(2, 15, 1)
    x[0, 0], x[1, 0] = 1.0, -1.0
    losses = []
    for _ in range(60):
        loss = (out(cell(x)[0][:, -1]) - x[:, 0]).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < 0.05 * losses[0]


def test_linear_decay_is_not_rounded_to_half_precision():
    """With a = 0.999 the state decays to 0.368 in 1000 steps; in bfloat16 0.999 rounds to 1, and it would not decay."""
    cell = ClockedRNN(linear(0.999), D, N, batch_first=True)
    h0 = torch.ones(1, 1, N)
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        cell.bias_ih_l0.zero_()
        h = cell(torch.zeros(1, 1000, D), h0)[0]
    assert h.dtype == torch.bfloat16
    torch.testing.assert_close(h[0, -1].float(), torch.full((N,), 0.999**1000), rtol=0.01, atol=0)


def test_a_decreasing_field_has_the_limit_of_a_slow_clock():
    """beta down to -8: undamped iterates jump over the root; with c = 0.05 the map increases for beta above -20."""
    torch.manual_seed(0)
    x, beta = 3 * torch.randn(2, 8, 15, dtype=torch.float64), 4 * torch.randn(2, 8, 15, dtype=torch.float64)
    assert beta.min() < -8
    h = branch_scan(simplified_brc(), (x, beta))
    clock = ClockedRNN(simplified_brc(0.05), 1, 15, n_clock=3000).scan([x, beta], None)
    assert (h - clock).abs().max() <= 1e-9


def test_the_loop_compiles_as_one_graph():
    torch.compiler.reset()
    cell, (x, h0) = ClockedRNN(nbrc(), D, N, 2, batch_first=True, n_clock=2, dtype=torch.float64), batch(T=3)
    reset = torch.tensor([[False, True, False]]).expand(3, 3)
    compiled = torch.compile(cell, fullgraph=True, backend="aot_eager")
    assert_close(compiled(x, h0, reset=reset)[0], cell(x, h0, reset=reset)[0])
    torch.compiler.reset()


def test_bad_arguments_raise():
    with pytest.raises(ValueError, match=r"n_clock must be positive integers, .* got None"):
        ClockedRNN(brc(), D, N, n_clock=None)
    with pytest.raises(ValueError, match=r"n_clock must be positive integers, .* got True"):
        ClockedRNN(brc(), D, N, n_clock=True)
    with pytest.raises(ValueError, match="n_clock must be positive integers"):
        ClockedRNN(brc(), D, N, n_clock=0)
    with pytest.raises(ValueError, match="n_clock must be one number or 4"):
        ClockedRNN(brc(), D, N, n_clock=[1, 2])
    with pytest.raises(ValueError, match="n_clock must be finite"):
        ClockedRNN(nbrc(), D, N, n_clock=math.inf)
    with pytest.raises(ValueError, match="max_branches must be a positive integer, got 0"):
        ClockedRNN(brc(), D, N, max_branches=0)
    with pytest.raises(ValueError, match="max_branches must be at most 16, got 17"):
        ClockedRNN(brc(), D, N, max_branches=17)
