"""Steps, the largest of several scores, their surrogate derivatives, and the adapter for surrogates of others."""

import math

import pytest
import torch
from torch import nn

from backends import DTYPES
from multistable.ops import latch_scan
from multistable.surrogate import adapt, derivative, heaviside, largest, primitive, sign

every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)
every_slope = pytest.mark.parametrize("alpha_surr", [0.25, 1.0, 3.0])
STEPS = {"heaviside": (heaviside, 1.0, 0.0), "sign": (sign, 2.0, -1.0)}
every_step = pytest.mark.parametrize(("step", "height", "low"), STEPS.values(), ids=STEPS)


def points():
    """From -1e4 to 1e4, dense around 0."""
    positive = torch.logspace(-8, 4, 997, dtype=torch.float64)
    return torch.cat([-positive.flip(0), torch.zeros(1).double(), positive, torch.linspace(-3, 3, 601).double()])


def gradient(function, x):
    x = x.clone().requires_grad_()
    return torch.autograd.grad(function(x).sum(), x)[0]


@every_slope
@every_step
def test_derivative_matches_the_primitive(step, height, low, alpha_surr):
    x = points()
    expected = height * gradient(lambda x: primitive(x, alpha_surr), x)
    actual = gradient(lambda x: step(x, alpha_surr), x)
    assert expected.isfinite().all()
    torch.testing.assert_close(actual, expected, rtol=1e-12, atol=0)
    torch.testing.assert_close(height * derivative(x, alpha_surr), expected, rtol=1e-12, atol=0)


@every_slope
def test_primitive_matches_the_papers_equation(alpha_surr):
    """atan(alpha_surr pi x) / (alpha_surr pi) + 1/2, one point at a time with the math library."""
    x = points()[::37]
    scale = alpha_surr * math.pi
    expected = [math.atan(scale * v) / scale + 0.5 for v in x.tolist()]
    torch.testing.assert_close(primitive(x, alpha_surr), torch.tensor(expected).double(), rtol=1e-6, atol=0)
    assert primitive(torch.zeros(1), alpha_surr).item() == 0.5


@every_step
def test_straight_through(step, height, low):
    x = points()
    assert torch.equal(gradient(lambda x: step(x, 0.0), x), torch.full_like(x, height))
    assert torch.equal(gradient(lambda x: primitive(x, 0.0), x), torch.ones_like(x))
    torch.testing.assert_close(primitive(x, 0.0), primitive(x.double(), 1e-9).to(x.dtype))


@every_step
@every_dtype
def test_values_and_dtype(step, height, low, dtype):
    tiny = torch.finfo(dtype).tiny
    x = torch.tensor([-math.inf, -2.0, -tiny, -0.0, 0.0, tiny, 2.0, math.inf, math.nan], dtype=dtype)
    y = step(x)
    assert y.dtype == dtype
    assert y[:-1].tolist() == [low, low, low, 1.0, 1.0, 1.0, 1.0, 1.0]
    assert y[-1].isnan()


@every_step
@every_dtype
def test_gradient_is_finite_and_keeps_the_dtype(step, height, low, dtype):
    x = points().to(dtype)
    grad = gradient(step, x)
    assert grad.dtype == dtype
    assert grad.isfinite().all()
    assert (grad >= 0).all()
    assert grad.max() == height


def test_upstream_gradient_is_multiplied():
    x = torch.tensor([0.5, -0.25], dtype=torch.float64, requires_grad=True)
    (grad,) = torch.autograd.grad(heaviside(x), x, torch.tensor([3.0, -2.0]).double())
    expected = [3 / (1 + (math.pi * 0.5) ** 2), -2 / (1 + (math.pi * 0.25) ** 2)]
    assert grad.tolist() == pytest.approx(expected, rel=1e-12)


class SnntorchATan(torch.autograd.Function):
    """Like snntorch's: H(0) = 0, derivative alpha/2 / (1 + (pi/2 alpha x)^2)."""

    @staticmethod
    def forward(ctx, x, alpha):
        ctx.save_for_backward(x)
        ctx.alpha = alpha
        return (x > 0).to(x.dtype)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return ctx.alpha / 2 / (1 + (math.pi / 2 * ctx.alpha * x) ** 2) * grad, None


def snntorch_atan(alpha=2.0):
    """A factory that returns a function, as ``snntorch.surrogate.atan`` does."""
    return lambda x: SnntorchATan.apply(x, alpha)


class SpikingjellySigmoid(nn.Module):
    """Like spikingjelly's: a module with ``alpha`` and ``spiking``, H(0) = 1."""

    def __init__(self, alpha=4.0):
        super().__init__()
        self.alpha, self.spiking = alpha, True

    def forward(self, x):
        smooth = torch.sigmoid(self.alpha * x)
        return (x >= 0).to(x) + smooth - smooth.detach() if self.spiking else smooth


FOREIGN = {
    "snntorch": (snntorch_atan(2.0), lambda x: 1 / (1 + (math.pi * x) ** 2)),
    "spikingjelly": (SpikingjellySigmoid(4.0), lambda x: 4 * torch.sigmoid(4 * x) * torch.sigmoid(-4 * x)),
}
every_foreign = pytest.mark.parametrize(("spike", "slope"), FOREIGN.values(), ids=FOREIGN)


@every_foreign
def test_adapt_takes_the_derivative_and_keeps_our_forward(spike, slope):
    step, x = adapt(spike), torch.linspace(-3, 3, 121, dtype=torch.float64)
    assert torch.equal(step(x), heaviside(x))
    assert step(torch.tensor([0.0, -0.0])).tolist() == [1.0, 1.0]
    torch.testing.assert_close(gradient(step, x), slope(x), rtol=1e-12, atol=1e-15)


@every_foreign
def test_adapt_works_as_the_gate_of_a_latch(spike, slope):
    """The paper's unit with another surrogate: the gate comes from ``adapt``, the state from ``latch_scan``."""
    distance = torch.randn(2, 9, 3, dtype=torch.float64, requires_grad=True)
    value = torch.randn(2, 9, 3, dtype=torch.float64)
    h = latch_scan(adapt(spike)(distance), value)
    (grad,) = torch.autograd.grad(h[:, -1].sum(), distance)
    assert torch.equal(h, latch_scan(distance >= 0, value))
    before = torch.cat([torch.zeros(2, 1, 3).double(), h[:, :-1]], dim=1).detach()
    reached = torch.cat([(distance[:, 1:] < 0).flip(1).cumprod(1).flip(1), torch.ones(2, 1, 3)], dim=1)
    torch.testing.assert_close(grad, reached * (value - before) * slope(distance.detach()), rtol=1e-12, atol=1e-15)


def test_adapt_works_with_torch_func():
    step, x = adapt(lambda x: torch.sigmoid(4 * x)), torch.linspace(-2, 2, 9, dtype=torch.float64)
    slope = 4 * torch.sigmoid(4 * x) * torch.sigmoid(-4 * x)
    torch.testing.assert_close(torch.func.vmap(torch.func.grad(step))(x), slope, rtol=1e-12, atol=0)


def test_adapt_distinguishes_nan_from_infinity():
    step = adapt(torch.sigmoid)
    assert step(torch.tensor([-math.inf, math.inf])).tolist() == [0.0, 1.0]
    assert step(torch.tensor([math.nan])).isnan().all()


@every_dtype
def test_adapt_keeps_the_dtype(dtype):
    x = torch.randn(7).to(dtype)
    assert adapt(snntorch_atan())(x).dtype == dtype
    assert gradient(adapt(snntorch_atan()), x).dtype == dtype


@pytest.mark.parametrize("step", [heaviside, sign])
def test_forward_mode_is_that_of_the_surrogate(step):
    x, tangent = torch.linspace(-2, 2, 9, dtype=torch.float64), torch.randn(9, dtype=torch.float64)
    height = 1 if step is heaviside else 2
    _, forwards = torch.func.jvp(step, (x,), (tangent,))
    torch.testing.assert_close(forwards, tangent * height * derivative(x), rtol=1e-12, atol=0)


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # by the compiler
@pytest.mark.parametrize("step", [heaviside, sign])
def test_steps_compile_as_one_graph(step):
    """The compiler refuses functions with a ``jvp`` of their own."""
    x = torch.randn(5, requires_grad=True)
    y = torch.compile(step, fullgraph=True, backend="aot_eager")(x)
    y.sum().backward()
    assert torch.equal(y, step(x))
    torch.testing.assert_close(x.grad, (1 if step is heaviside else 2) * derivative(x.detach()))


@every_dtype
def test_largest_is_the_first_of_equal_scores_and_shows_nan(dtype):
    x = torch.tensor([[1.0, 3, 3], [2, -1, 0], [0, math.nan, 5]], dtype=dtype)
    assert torch.equal(largest(x)[:2], torch.tensor([[0.0, 1, 0], [1, 0, 0]], dtype=dtype))
    assert largest(x)[2].isnan().all()
    assert torch.equal(largest(x[:2], index=torch.tensor([1, 0], dtype=torch.uint8)), largest(x[:2]))


@pytest.mark.parametrize("M", [2, 3, 15, 16, 40])
def test_largest_has_the_gradient_of_a_softmax(M):
    """Also of scores whose exponentials overflow; below 16, our own way computes it on a CPU."""
    x, g = (torch.randn(50, M, dtype=torch.float64) for _ in range(2))
    x[0] *= 1e4
    actual, expected = (
        gradient(lambda x, f=f: f(x) * g, x) for f in (lambda x: largest(x, None), lambda x: x.softmax(-1))
    )
    torch.testing.assert_close(actual, expected, rtol=1e-12, atol=1e-15)


@every_slope
def test_largest_has_the_gradient_of_its_comparisons(alpha_surr):
    x, g = (torch.randn(50, 5, dtype=torch.float64) for _ in range(2))
    actual, i = gradient(lambda x: largest(x, alpha_surr) * g, x), x.argmax(-1, keepdim=True)
    expected = (g - g.gather(-1, i)) / (1 + (alpha_surr * math.pi * (x.gather(-1, i) - x)) ** 2)
    expected.scatter_(-1, i, 0)
    expected.scatter_(-1, i, -expected.sum(-1, keepdim=True))
    torch.testing.assert_close(actual, expected, rtol=1e-12, atol=1e-15)
