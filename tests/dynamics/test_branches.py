"""Scans over maps of branches: any number of branches, surrogate gradients, NaN. In float64."""

import importlib
import math
from functools import partial

import pytest
import torch

from multistable.dynamics import Field, brc, equilibria, simplified_brc
from multistable.dynamics.branches import branch_scan
from multistable.dynamics.hysteresis import folds, hysteresis_scan
from multistable.surrogate import derivative


def staircase(h, x):
    """Stable around -1, 0 and 1 for x = 0: an increasing map with three steps."""
    return 0.5 * (torch.tanh(8 * (h + x - 0.5)) + torch.tanh(8 * (h + x + 0.5)))


def test_three_branches_equal_iteration():
    torch.manual_seed(0)
    field = Field(staircase, bounds=(-1.01, 1.01))
    x, h0 = 0.3 * torch.randn(500, 15, 1, dtype=torch.float64), torch.randn(500, 1, dtype=torch.float64)
    h, compared, visited = h0.clone(), 0, set()
    solved = branch_scan(field, (x,), h0, max_branches=3)
    trusted = torch.ones(500, 1, dtype=torch.bool)
    for t in range(15):
        for _ in range(400):
            h = field(h, x[:, t])
        trusted &= (field(h, x[:, t]) - h).abs() < 1e-14
        assert (solved[:, t] - h).abs()[trusted].max() < 1e-9
        compared += int(trusted.sum())
        visited |= set(h[trusted].round().tolist())
    assert compared > 0.95 * 500 * 15
    assert visited == {-1.0, 0.0, 1.0}


def test_more_branches_than_a_map_can_have():
    with pytest.raises(ValueError, match="max_branches must be at most 16, got 17"):
        branch_scan(simplified_brc(), (torch.zeros(1, 2, 1), torch.ones(1, 2, 1)), max_branches=17)


def test_surrogate_of_two_branches_matches_a_latch():
    """A unit that stays between its folds keeps its bit, so the first comparison gets the credit of all later steps."""
    x, beta = torch.zeros(1, 50, 1, dtype=torch.float64), torch.full((1, 50, 1), 1.5, dtype=torch.float64)
    x.requires_grad_()
    h0 = torch.full((1, 1), 0.2, dtype=torch.float64)
    h = branch_scan(simplified_brc(), (x, beta), h0, alpha_surr=1.0)
    exact = branch_scan(simplified_brc(), (x, beta), h0)
    credit, alone = (torch.autograd.grad(states.sum(), x)[0] for states in (h, exact))
    gap = 2 * h[0, 0, 0].item()
    expected = 50 * gap / (1 + (math.pi * 0.2) ** 2) / 1.5  # the unstable root is -x / beta to first order
    assert (credit - alone)[0, 0, 0].item() == pytest.approx(expected, rel=0.1)


@pytest.mark.parametrize("side", [1.0, -1.0], ids=["up", "down"])
@pytest.mark.parametrize("weight", [0.0, 0.5])
def test_surrogate_where_the_input_removes_a_branch(side, weight):
    """A first input just beyond the fold moves the unit, which then holds; a smaller input would not have moved it."""
    beta = torch.full((1, 30, 1), 1.5, dtype=torch.float64)
    h_c, x_c = (float(v[0, 0, 0]) for v in folds(beta))
    x = torch.zeros(1, 30, 1, dtype=torch.float64)
    x[:, 0] = side * (x_c + 0.05)
    x.requires_grad_()
    h0 = torch.full((1, 1), -side, dtype=torch.float64)
    whole, exact = (
        branch_scan(simplified_brc(), (x, beta), h0, alpha_surr=alpha, n_grid=400)[0, :, 0] for alpha in (1.0, None)
    )
    written, held = (side * whole[t].item() for t in (0, -1))
    assert held > 0.9
    credit, alone = (torch.autograd.grad(h[-1] + weight * h[0], x)[0][0, 0, 0].item() for h in (whole, exact))

    slowest = (math.atanh(h_c) + x_c + 0.05) / 2.5  # |h| where df/dh = 1, so where f - h is smallest; f is h_c there
    surrogate = 1 / (1 + (math.pi * (slowest - h_c)) ** 2)
    expected = (2 * held + weight * (written + slowest)) * surrogate * (1 - h_c**2)
    # The next step compares the written state with the unstable root at zero, which adds its own share.
    gain = (1 - written**2) / (1 - 2.5 * (1 - written**2))
    expected += 2 * held * gain / (1 + (math.pi * written) ** 2)
    assert credit - alone == pytest.approx(expected, rel=0.01)


def test_credit_follows_the_maps_of_branches():
    """Through h0 alone: each unstable root of the first step gets the loss above it minus the loss below it.

    The loss of a branch is that of all steps if the unit starts on it, including every kind of write.
    """
    torch.manual_seed(0)
    field, B, T = Field(staircase, bounds=(-1.01, 1.01)), 200, 12
    x, weights = 0.25 * torch.randn(B, T, 1, dtype=torch.float64), torch.randn(B, T, 1, dtype=torch.float64)
    x[:, 0] = 0  # three branches at the first step: -1, 0 and 1
    starts = [torch.full((B, 1), value, dtype=torch.float64) for value in (-1.0, 0.0, 1.0)]
    losses = [(weights * branch_scan(field, (x,), h0, max_branches=3)).sum(1) for h0 in starts]
    assert len({tuple(loss.flatten().tolist()) for loss in losses}) == 3
    h0 = torch.empty(B, 1, dtype=torch.float64).uniform_(-1, 1).requires_grad_()
    h = branch_scan(field, (x,), h0, max_branches=3, alpha_surr=1.0)
    (grad,) = torch.autograd.grad(h, h0, weights)
    unstable = equilibria(field, torch.zeros(1, dtype=torch.float64)).h[0, 1::2]
    expected = sum(
        (above - below) * derivative(h0.detach() - u, 1.0)
        for below, above, u in zip(losses, losses[1:], unstable, strict=False)
    )
    torch.testing.assert_close(grad, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("scan", [hysteresis_scan, partial(branch_scan, simplified_brc())], ids=["exact", "general"])
def test_a_reset_forgets_the_branch(scan):
    """A unit on the lower branch that is reset to zero moves to the upper one if x is positive, and stays there."""
    x, beta = torch.full((1, 8, 1), 0.1, dtype=torch.float64), torch.full((1, 8, 1), 1.5, dtype=torch.float64)
    h0, reset = torch.full((1, 1), -1.0, dtype=torch.float64), (torch.arange(8) == 5)[None]
    args = ((x, beta),) if isinstance(scan, partial) else (x, beta)
    assert (scan(*args, h0)[0, :, 0] > 0).tolist() == [False] * 8
    assert (scan(*args, h0, reset=reset)[0, :, 0] > 0).tolist() == [False] * 5 + [True] * 3


@pytest.mark.parametrize("scan", [hysteresis_scan, partial(branch_scan, simplified_brc())], ids=["exact", "general"])
def test_no_credit_passes_a_reset(scan):
    """The second input moves a unit off the lower branch, where the third would have kept it but for the reset."""
    x = torch.tensor([-2.0, 1.0, 0.1, 0.1], dtype=torch.float64).view(1, 4, 1).requires_grad_()
    beta, reset = torch.full((1, 4, 1), 1.5, dtype=torch.float64), (torch.arange(4) == 2)[None]
    args = ((x, beta),) if isinstance(scan, partial) else (x, beta)
    kept, cut = (
        torch.autograd.grad(scan(*args, reset=marks, alpha_surr=1.0)[:, 2:].sum(), x)[0].flatten()
        for marks in (None, reset)
    )
    assert kept[1]  # the first is overwritten by the second
    assert not cut[:2].any()
    assert cut[2:].all()


@pytest.mark.parametrize(
    ("bounds", "unstable"),
    [((0.0, 1.0), 0.0), ((-1.0, 0.0), 0.0), ((-1.0, 1.0), 0.0)],
    ids=["lower", "upper", "inside"],
)
def test_an_unstable_equilibrium_on_a_bound_is_not_a_branch(bounds, unstable):
    """``h + x h (1 - h^2)`` flows from 0 to the stable +-1. On (0, 1) the lowest root is unstable, on (-1, 0) the
    highest one; if 0 were taken for stable, all states between would end there."""
    field = Field(lambda h, x: h + x * h * (1 - h**2), bounds=bounds)
    rate = 0.1 + 0.4 * torch.rand(1, 6, 200).double()
    start = bounds[0] + (bounds[1] - bounds[0]) * (0.01 + 0.98 * torch.rand(1, 200).double())
    h = branch_scan(field, (rate,), start)
    torch.testing.assert_close(h, start.sign()[:, None].expand_as(h), rtol=0, atol=1e-9)
    slow = start
    for _ in range(2000):
        slow = field(slow, rate[:, 0])
    torch.testing.assert_close(h[:, 0], slow, rtol=0, atol=1e-9)
    assert not (h == unstable).any()


@pytest.mark.parametrize("alpha_surr", [None, 1.0])
def test_nan_lasts_until_a_single_branch_and_stays_in_its_unit(alpha_surr):
    x = torch.tensor([0.0, math.nan, 0.0, 0.0, -3.0, 0.0]).double().reshape(1, 6, 1)
    x = torch.cat([x, x.nan_to_num(0.5)], dim=2).requires_grad_()
    h = branch_scan(simplified_brc(), (x, torch.tensor(1.5).double()), alpha_surr=alpha_surr)
    assert h[0, :, 0].isnan().tolist() == [False, True, True, True, False, False]
    assert h[0, 5, 0] < -0.9
    assert h[..., 1].isfinite().all()
    (grad,) = torch.autograd.grad(h.sum(), x)
    assert grad[0, 1, 0].isnan()
    assert grad[..., 1].isfinite().all()
    start = torch.tensor([[math.nan, 0.1]]).double()
    begun = branch_scan(simplified_brc(), (x.detach()[:, 2:], torch.tensor(1.5).double()), start, alpha_surr=alpha_surr)
    assert begun.isnan()[0].tolist() == [[True, False], [True, False], [False, False], [False, False]]


def test_chunks_of_elements_change_nothing(monkeypatch):
    """Neither the roots nor the states and gradients computed from them."""
    x, beta = (2 * torch.randn(2, 15, 3, dtype=torch.float64) for _ in range(2))
    found = []
    for size in (1 << 15, 7):
        for name in ("equilibria", "branches"):  # by name: a function of the same name hides the module
            monkeypatch.setattr(importlib.import_module(f"multistable.dynamics.{name}"), "_CHUNK", size)
        leaf = x.clone().requires_grad_()
        h = branch_scan(simplified_brc(), (leaf, beta), alpha_surr=1.0)
        (grad,) = torch.autograd.grad(h.square().sum(), leaf)
        found.append((equilibria(simplified_brc(), x, beta).h.nan_to_num(9.0), h, grad))
    for whole, parts in zip(*found, strict=True):
        torch.testing.assert_close(whole, parts, rtol=1e-12, atol=1e-12)


def test_bad_arguments_raise():
    x = torch.zeros(1, 2, 1)
    with pytest.raises(ValueError, match="field has 3 stable branches, max_branches is 2"):
        branch_scan(Field(staircase, bounds=(-1.01, 1.01)), (x,))
    with pytest.raises(ValueError, match=r"must map its bounds \(-1.0, 1.0\) into themselves"):
        branch_scan(Field(lambda h, x: h + 3 + x), (x,))
    with pytest.raises(ValueError, match="into themselves, but some element leaves them"):
        branch_scan(Field(lambda h, x: h + 0.1 * h + x), (x,))  # one equilibrium, which repels
    with pytest.raises(ValueError, match="n_grid must be a positive integer, got 0"):
        branch_scan(brc(), (x,) * 5, n_grid=0)
