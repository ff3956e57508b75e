"""Equilibria and bifurcation diagrams against known roots, iteration and closed forms. In float64."""

import math
from dataclasses import replace

import pytest
import torch

from multistable import ClockedRNN
from multistable.dynamics import (
    ConvergenceError,
    Field,
    bifurcation_diagram,
    brc,
    equilibria,
    linear,
    nbrc,
    simplified_brc,
)
from multistable.dynamics.hysteresis import folds


def test_all_roots_of_a_polynomial():
    """h - (h - r_0)(h - r_1)... has exactly the equilibria r_k, some of them closer together than the grid points."""
    known = torch.tensor([-0.8, -0.2, -0.199, 0.3, 0.9], dtype=torch.float64)
    field = Field(lambda h, x: h - 0.1 * math.prod(h - r for r in known.tolist()) + 0 * x)
    found = equilibria(field, torch.zeros(2, dtype=torch.float64))
    assert found.count.tolist() == [5, 5]
    torch.testing.assert_close(found.h, known.expand(2, 5), rtol=0, atol=1e-9)
    assert found.stable.tolist() == [[True, False, True, False, True]] * 2
    assert found.converged.all()
    assert found.residual.max() < 1e-12


def test_residuals_are_below_1e_12():
    torch.manual_seed(0)
    x, beta = 2 * torch.randn(20_000, dtype=torch.float64), torch.empty(20_000, dtype=torch.float64).uniform_(-3, 5)
    beta[:2000] = 1e-6 * torch.randn(2000, dtype=torch.float64)
    x[:1000] = 1e-9 * torch.randn(1000, dtype=torch.float64)
    found = equilibria(simplified_brc(), x, beta, strict=False)
    real = ~found.h.isnan()
    assert found.residual[real].max() < 1e-12
    assert torch.equal(found.converged, real)
    _, x_c = folds(beta)
    clear = (x.abs() - x_c).abs() > 1e-12
    assert torch.equal((found.count == 3)[clear], (x.abs() < x_c)[clear])


def without_turns(field: Field) -> Field:
    """The same field without known extrema, so that they must be searched for on the grid."""
    return replace(field, turns=None)


@pytest.mark.parametrize("field", [simplified_brc(), without_turns(simplified_brc(0.3))], ids=["known", "searched"])
@pytest.mark.parametrize("beta", [1.0, 1e-1, 1e-2, 1e-3, 1e-4, 1e-6, 1e-8])
def test_both_folds_in_one_cell_of_the_grid(field, beta):
    """The roots are within sqrt(3 beta) of each other, and F between them is as small as 0.4 beta^1.5."""
    torch.manual_seed(0)
    beta = torch.full((2000,), beta, dtype=torch.float64)
    h_c, x_c = folds(beta)
    x = x_c * torch.empty(2000, dtype=torch.float64).uniform_(-1.5, 1.5)
    found = equilibria(field, x, beta)
    clear = (x.abs() - x_c).abs() > 1e-14  # any nearer, F between two roots is below rounding
    assert clear.double().mean() > 0.95
    assert torch.equal(found.count[clear], torch.where(x.abs() < x_c, 3, 1)[clear])
    real = ~found.h.isnan()
    assert found.residual[real].max() < 1e-12
    assert (found.residual / h_c[:, None])[real].max() < 1e-15  # an absolute 1e-12 says little about roots near 1e-4
    three = clear & (found.count == 3)
    assert found.stable[three].all(dim=0).tolist() == [True, False, True]
    assert (found.h[three].diff(dim=-1) > 0).all()


def test_a_narrow_dip_of_the_slope_is_found():
    """The field is steep except in one grid cell, where a stable root lies between two unstable ones."""
    field = Field(lambda h, x: h - 1e-4 * h + h**3 + 0 * x, bounds=(-0.9, 0.9))
    found = equilibria(field, torch.zeros(1, dtype=torch.float64))
    torch.testing.assert_close(found.h, torch.tensor([[-0.01, 0, 0.01]], dtype=torch.float64), rtol=0, atol=1e-12)
    assert found.stable.tolist() == [[False, True, False]]


@pytest.mark.parametrize("beta", [50.0, 1000.0])
def test_known_turns_find_roots_closer_than_the_grid(beta):
    """Near its folds a steep field has a stable and an unstable root in one cell, and is flat at the grid points."""
    beta = torch.full((500,), beta, dtype=torch.float64)
    x = folds(beta)[1] * torch.linspace(-1.01, 1.01, 500, dtype=torch.float64)
    found = equilibria(simplified_brc(), x, beta)
    assert torch.equal(found.count, torch.where(x.abs() < folds(beta)[1], 3, 1))


def test_equilibria_match_the_limit_of_an_internal_clock():
    """From random states inside and outside the folds, compared where the clock itself converged: 98 % of them."""
    torch.manual_seed(0)
    n = 1200
    beta = torch.empty(n, dtype=torch.float64).uniform_(-1.8, 2)
    beta[: n // 6] = 1e-2 * torch.randn(n // 6, dtype=torch.float64)
    x = 1.2 * torch.randn(n, dtype=torch.float64)
    _, x_c = folds(beta)
    near = torch.arange(n) % 4 == 0  # just inside or outside the folds
    x[near] = (torch.sign(x) * x_c * (1 + 10 ** torch.empty(n).uniform_(-5, -1) * torch.sign(torch.randn(n))))[near]
    h_prev = torch.empty(n, dtype=torch.float64).uniform_(-1.5, 1.5)
    field = simplified_brc(c=0.5)
    cell, limit = (ClockedRNN(field, 1, 1, n_clock=clock, dtype=torch.float64) for clock in (30_000, math.inf))
    with torch.no_grad():
        h = cell.tick(h_prev, x, beta)
        solved = limit.scan([x[:, None, None], beta[:, None, None]], h_prev[:, None])[:, 0, 0]
        rest = (field(h, x, beta) - h).abs() / (1 - field.slope(h, x, beta)).abs()
    converged = rest < 1e-10
    share = float(converged.double().mean())
    print(f"share of clocks that converged: {share:.4f}")
    assert share > 0.98
    assert (h - solved).abs()[converged].max() < 1e-9


def test_exactly_at_a_fold_the_unit_writes():
    beta = torch.tensor([0.3, 1.5, 4.0], dtype=torch.float64)
    _, x_c = folds(beta)
    for side in (1.0, -1.0):
        found = equilibria(simplified_brc(), side * x_c, beta)
        assert found.count.tolist() == [1, 1, 1]
        assert (found.h[:, 0] * side > 0).all()
        inside = equilibria(simplified_brc(), side * x_c * (1 - 1e-9), beta)
        assert inside.count.tolist() == [3, 3, 3]


def test_a_root_that_does_not_converge_is_reported():
    jump = Field(lambda h, x: torch.where(h < x, 1.0, -1.0) + 0 * h)  # F jumps across zero at h = x: no root there
    x = torch.tensor([0.3], dtype=torch.float64)
    with pytest.raises(ConvergenceError, match="1 of 1 roots did not converge"):
        equilibria(jump, x)
    assert not equilibria(jump, x, strict=False).converged.any()


def test_bad_arguments_raise():
    with pytest.raises(ValueError, match="couples its units"):
        equilibria(nbrc(), torch.zeros(1))
    with pytest.raises(ValueError, match="args must be the field's drives and constants, x, beta, got 1"):
        equilibria(simplified_brc(), torch.zeros(1))
    with pytest.raises(ValueError, match=r"xs must be a line of values, \[X\], got list"):
        bifurcation_diagram(simplified_brc(), [0.0, 1.0], 1.0)
    with pytest.raises(ValueError, match="bounds must be a finite interval"):
        equilibria(linear(), torch.zeros(1), torch.zeros(1))
    with pytest.raises(ValueError, match="must not make the field NaN"):
        equilibria(simplified_brc(), torch.tensor([math.nan]), torch.zeros(1))
    with pytest.raises(ValueError, match="xs must be a line"):
        bifurcation_diagram(simplified_brc(), torch.zeros(2, 2), 1.0)


def test_a_root_that_iteration_overshoots_is_not_stable():
    """beta = -3 at x = 0: the slope is -2 and iterates jump from side to side; damped by 0.1, the slope is 0.7."""
    x, beta = torch.zeros(1, dtype=torch.float64), torch.full((1,), -3.0, dtype=torch.float64)
    plain, slow = equilibria(simplified_brc(), x, beta), equilibria(simplified_brc(0.1), x, beta)
    assert plain.slope.item() == pytest.approx(-2)
    assert slow.slope.item() == pytest.approx(0.7)
    assert (plain.stable.item(), slow.stable.item()) == (False, True)


def test_arguments_may_be_numbers():
    x = torch.linspace(-1, 1, 5)
    found, known = equilibria(simplified_brc(), x, 1.5), equilibria(simplified_brc(), x, torch.tensor(1.5))
    assert torch.equal(found.h.nan_to_num(9.0), known.h.nan_to_num(9.0))
    assert equilibria(simplified_brc(), 0.0, 1.5).h.shape == (3,)


def test_empty_input():
    assert equilibria(simplified_brc(), torch.zeros(0, 3), torch.zeros(3)).count.shape == (0, 3)


def brc_regimes(b_a: float, w_a: float = 0.0, xs=None) -> list[int]:
    xs = torch.linspace(-1, 1, 2001, dtype=torch.float64) if xs is None else xs
    return [count for _, _, count in bifurcation_diagram(brc(), xs, b_a, 0.0, w_a, 0.0).regimes]


def test_brc_is_monostable_singular_bistable():
    assert brc_regimes(-1.0) == [1]
    assert brc_regimes(1.0) == [1, 2, 1]
    # Singular: at b_a = 0 the slope reaches 1 at x = h = 0, and there is one equilibrium everywhere.
    found = equilibria(brc(), *(torch.tensor([v], dtype=torch.float64) for v in (0.0, 0.0, 0.0, 0.0, 0.0)))
    assert found.count.tolist() == [1]
    assert found.slope.item() == pytest.approx(1, abs=1e-12)
    assert not found.stable.any()
    assert bifurcation_diagram(brc(), torch.linspace(-1, 1, 2001), 0.0, 0.0, 0.0, 0.0).h.shape[1] == 1


def test_brc_without_feedback_on_a_matches_the_simplified_one():
    torch.manual_seed(0)
    x, b_a, u_c = torch.randn(3, 500, dtype=torch.float64)
    zero = torch.zeros((), dtype=torch.float64)
    full, simple = equilibria(brc(), x, b_a, u_c, zero, zero), equilibria(simplified_brc(), x, torch.tanh(b_a))
    assert torch.equal(full.count, simple.count)
    torch.testing.assert_close(full.h, simple.h, rtol=0, atol=1e-10, equal_nan=True)


@pytest.mark.parametrize("w_a", [-0.5, 0.5])
def test_w_a_moves_the_folds_without_removing_them(w_a):
    xs = torch.linspace(-1.5, 1.5, 3001, dtype=torch.float64)
    plain, moved = (bifurcation_diagram(brc(), xs, 1.0, 0.0, w, 0.0).regimes for w in (0.0, w_a))
    assert [count for *_, count in moved] == [1, 2, 1]
    assert abs(moved[1][0] - plain[1][0]) > 0.01
    assert abs(moved[1][1] - plain[1][1]) > 0.01
