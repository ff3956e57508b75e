"""The roots of the exact bistable unit: they converge for all arguments, and are those of the general solver."""

import math

import pytest
import torch

from multistable.dynamics import equilibria, simplified_brc
from multistable.dynamics.hysteresis import folds, roots


def random_points(n: int) -> tuple[torch.Tensor, torch.Tensor]:
    """x and beta of all magnitudes: a third near beta = 0, a third near a fold, some at the bend x = -beta."""
    torch.manual_seed(0)
    beta = 3 * torch.randn(n, dtype=torch.float64)
    beta[: n // 3] = torch.randn(n // 3, dtype=torch.float64) * 10 ** torch.empty(n // 3).uniform_(-8, 0)
    scale = 10 ** torch.empty(n, dtype=torch.float64).uniform_(-8, 1.5)
    x = torch.randn(n, dtype=torch.float64) * scale
    near = torch.arange(n) % 3 == 0
    x[near] = (x.sign() * folds(beta)[1] + x)[near]
    corner = torch.arange(n) % 10 == 1
    beta[corner] = -(10 ** torch.empty(n, dtype=torch.float64).uniform_(0, 6))[corner]
    x[corner] = (-beta + 5 * torch.randn(n, dtype=torch.float64))[corner]
    return x, beta


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_roots_converge_everywhere(dtype):
    """From tiny to huge arguments: no NaN, which would mark a root that did not converge, and residuals of rounding."""
    x, beta = (v.to(dtype) for v in random_points(600_000))
    upper, lower = roots(x, beta)
    for h in (upper, lower):
        assert not h.isnan().any()
        rest = (h.double() - torch.tanh(x.double() + (beta.double() + 1) * h.double())).abs()
        assert (rest / (1 + beta.double().abs())).max() < 4 * torch.finfo(dtype).eps
    h_c, x_c = folds(beta)
    two = x.abs() < x_c
    assert (upper[two] >= h_c[two] - torch.finfo(dtype).eps).all()
    assert (lower[two] <= -h_c[two] + torch.finfo(dtype).eps).all()
    assert torch.equal(upper[~two], lower[~two])


def test_roots_match_the_general_solver():
    x, beta = random_points(30_000)
    keep = (x.abs() - folds(beta)[1]).abs() > 1e-9
    x, beta = x[keep], beta[keep]
    found = equilibria(simplified_brc(), x, beta)
    upper, lower = roots(x, beta)
    highest = found.h.nan_to_num(-math.inf).amax(-1)
    for mine, other in ((upper, highest), (lower, found.h[:, 0])):
        conditioned = (
            (beta + 1) * (1 - mine**2) - 1
        ).abs() > 1e-4  # elsewhere the root itself is only known to sqrt(eps)
        assert conditioned.double().mean() > 0.9
        assert (mine - other).abs()[conditioned].max() < 1e-10
