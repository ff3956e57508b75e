"""``MRU``: its options reach the scan, and bad ones raise."""

import pytest
import torch

from multistable import MRU
from multistable.dynamics import brc, linear, nbrc, simplified_brc
from multistable.dynamics.branches import branch_scan

D, N = 3, 4


@pytest.mark.parametrize("options", [{}, {"alpha_surr": None}, {"max_gain": 0.3}, {"alpha_surr": 3.0}])
def test_options_reach_the_scan(options):
    torch.manual_seed(0)
    cell = MRU(brc(), D, N, batch_first=True, dtype=torch.float64, **options)
    x = 2 * torch.randn(3, 9, D, dtype=torch.float64)
    parameters = list(cell.parameters())
    proj = torch.nn.functional.linear(x, cell.weight_ih_l0, cell.bias_ih_l0)
    args = [*proj.chunk(3, dim=-1), cell.w_a_l0, cell.w_c_l0]
    direct = branch_scan(brc(), args, **{"alpha_surr": 1.0, "max_gain": 10.0} | options)
    plain = branch_scan(brc(), args, alpha_surr=1.0, max_gain=10.0)
    mine, expected, other = (
        torch.autograd.grad(h.sum(), parameters, retain_graph=True)[0] for h in (cell(x)[0], direct, plain)
    )
    torch.testing.assert_close(mine, expected, rtol=0, atol=1e-12)
    assert torch.equal(mine, other) == (not options)


def test_mru_accepts_any_input_of_the_simplified_brc():
    torch.manual_seed(0)
    cell, x = MRU(simplified_brc(), D, N, batch_first=True), 10 * torch.randn(2, 30, D)
    assert (x @ cell.weight_ih_l0[N:].mT + cell.bias_ih_l0[N:]).min() < -3
    assert cell(x)[0].isfinite().all()


def test_bad_arguments_raise():
    with pytest.raises(ValueError, match="max_gain must be positive, got 'much'"):
        MRU(brc(), D, N, max_gain="much")
    with pytest.raises(ValueError, match="field must be pointwise"):
        MRU(nbrc(), D, N)
    with pytest.raises(ValueError, match="field must be nonlinear"):
        MRU(linear(), D, N)
    with pytest.raises(ValueError, match="max_branches must be a positive integer, got 0"):
        MRU(brc(), D, N, max_branches=0)
    with pytest.raises(ValueError, match="max_branches must be at most 16, got 17"):
        MRU(brc(), D, N, max_branches=17)
    with pytest.raises(ValueError, match="n_grid must be a positive integer, got 0"):
        MRU(brc(), D, N, n_grid=0)
