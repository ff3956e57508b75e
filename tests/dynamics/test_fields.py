"""Fields: slopes, closed forms of the linear field, pickling, and bad arguments."""

import math
import pickle

import pytest
import torch

import tolerances
from multistable import MRU, ClockedRNN
from multistable.dynamics import FIELDS, Field, Linear, brc, damped, equilibria, linear, simplified_brc


@pytest.mark.parametrize("field", [simplified_brc(), simplified_brc(0.3), linear(), damped(simplified_brc(), 0.2)])
def test_hand_written_slopes_match_autograd(field):
    torch.manual_seed(0)
    h, x, other = torch.randn(3, 50, dtype=torch.float64)
    by_autograd = Field(field.function, field.constants).slope(h, x, other)
    torch.testing.assert_close(field.slope(h, x, other), by_autograd, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("field", [*(make() for make in FIELDS.values()), damped(simplified_brc(0.5), 0.2)])
def test_a_pickled_field_is_unchanged(field):
    torch.manual_seed(0)
    copied = pickle.loads(pickle.dumps(field))
    h = torch.rand(4, 4)
    args = [torch.randn(4, 4) for _ in range(len(field.drives) + len(field.constants))]
    assert torch.equal(copied(h, *args), field(h, *args))
    assert (copied.drives, copied.constants, copied.bounds) == (field.drives, field.constants, field.bounds)
    if not field.coupled:
        assert torch.equal(copied.slope(h, *args), field.slope(h, *args))
    if field.turns is not None:
        assert torch.equal(copied.turns(*args).nan_to_num(9), field.turns(*args).nan_to_num(9))
    if not field.coupled and field.bounds[0] > -math.inf:
        assert torch.equal(damped(copied, 0.3)(h, *args), damped(field, 0.3)(h, *args))


def assert_close(actual, expected):
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("a", [1.0, 0.9, -1.0, 0.0])
def test_iterating_a_linear_field_gives_the_geometric_sum(a):
    """Also where 1 - a is zero, and with its gradient: 1 + a + a^2 has the slope 1 + 2 a."""
    a = torch.tensor(a, dtype=torch.float64, requires_grad=True)
    p, q = Linear.iterated(3, a)
    assert_close(p, a**3)
    assert_close(q, 1 + a + a**2)
    assert_close(torch.autograd.grad(q, a)[0], 1 + 2 * a)


@pytest.mark.parametrize("n", [1, 2, 3, 1000])
@pytest.mark.parametrize("gap", [10.0**k for k in range(-7, 0)])
def test_the_geometric_sum_is_accurate_near_one(n, gap):
    """In float32, (1 - a^n) / (1 - a) would be off by 5e-5 at a = 0.9999, n = 2."""
    a = torch.tensor(1 - gap)
    _, q = Linear.iterated(n, a)
    tolerances.assert_close(q, (a.double() ** torch.arange(n)).sum())


def test_bad_arguments_raise():
    with pytest.raises(ValueError, match="drives must name the arguments"):
        Field(lambda h, x: h, drives={"u": 0.0})
    with pytest.raises(ValueError, match="constants must be the last arguments"):
        Field(lambda h, a, x: h, constants={"a": 0.0})


@pytest.mark.parametrize("wrong", ["brc", brc], ids=["name", "not_called"])
@pytest.mark.parametrize(
    "use",
    [
        lambda field: MRU(field, 3, 4),
        lambda field: ClockedRNN(field, 3, 4),
        lambda field: damped(field, 0.5),
        lambda field: equilibria(field, torch.zeros(1)),
    ],
    ids=["MRU", "ClockedRNN", "damped", "equilibria"],
)
def test_anything_but_a_field_raises(use, wrong):
    with pytest.raises(TypeError, match=r"field must be a Field, such as simplified_brc\(\), got "):
        use(wrong)
