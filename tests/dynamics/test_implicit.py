"""Implicit gradients against unrolling and finite differences. In float64."""

import pytest
import torch

from multistable.dynamics import brc, equilibria, implicit, simplified_brc
from multistable.dynamics.hysteresis import folds


@pytest.mark.parametrize("field", [simplified_brc(0.5), brc()], ids=["simplified_brc", "brc"])
def test_implicit_gradient_matches_unrolling_and_finite_differences(field):
    torch.manual_seed(0)
    count = len(field.drives) + len(field.constants)
    args = [0.7 * torch.randn(60, dtype=torch.float64) for _ in range(count)]
    found = equilibria(field, *args)
    args = [x.requires_grad_() for x in args]
    for root in range(found.h.shape[1]):
        usable = found.stable[:, root] & (found.slope[:, root] < 0.97)
        start = found.h[usable, root]
        grads = torch.autograd.grad(implicit(field, start, *(x[usable] for x in args)).sum(), args)
        here, h = [x[usable] for x in args], start
        for _ in range(600):
            h = field(h, *here)
        unrolled = torch.autograd.grad(h.sum(), args)
        for k, (grad, other) in enumerate(zip(grads, unrolled, strict=True)):
            torch.testing.assert_close(grad, other, rtol=1e-6, atol=1e-6)
            shifted = []
            for sign in (1, -1):
                moved = [x.detach() + sign * 1e-5 * (i == k) for i, x in enumerate(here)]
                h = start
                for _ in range(600):
                    h = field(h, *moved)
                shifted.append(h)
            differences = (shifted[0] - shifted[1]) / 2e-5
            torch.testing.assert_close(grad[usable], differences, rtol=1e-6, atol=1e-6)


def test_gain_is_bounded_at_a_fold():
    beta = torch.tensor([1.5], dtype=torch.float64, requires_grad=True)
    h_c, x_c = folds(beta.detach())
    x = (-x_c).requires_grad_()
    (unbounded,) = torch.autograd.grad(implicit(simplified_brc(), h_c, x, beta), x)
    (bounded,) = torch.autograd.grad(implicit(simplified_brc(), h_c, x, beta, max_gain=10), x)
    assert unbounded.abs() > 1e6
    assert bounded.abs() <= 10 * (1 - h_c.item() ** 2) + 1e-12


def test_only_the_arguments_get_a_gradient():
    h, x, beta = (torch.tensor(0.5, dtype=torch.float64, requires_grad=True) for _ in range(3))
    to_h, to_x = torch.autograd.grad(implicit(simplified_brc(), h, x, beta), (h, x), allow_unused=True)
    assert to_h is None
    assert to_x is not None


def test_the_value_at_a_fold_is_finite():
    """df/dh is exactly 1 there, so the gain is infinite; times a difference of zero it would give NaN."""
    h, x, beta = (torch.zeros((), dtype=torch.float64) for _ in range(3))
    assert simplified_brc().slope(h, x, beta) == 1
    assert implicit(simplified_brc(), h, x, beta) == 0
