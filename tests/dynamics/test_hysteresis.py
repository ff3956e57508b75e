"""The exact hysteresis scan: branches and gradients. In float64 unless stated."""

import math

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from multistable import ops, surrogate
from multistable.dynamics import simplified_brc
from multistable.dynamics.branches import branch_scan
from multistable.dynamics.hysteresis import folds, hysteresis_scan, roots

DAMPED = simplified_brc(c=0.1)


def iterate(x: torch.Tensor, beta: torch.Tensor, h0: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Iterate the damped map from h_{t-1} until it rests, step by step: states ``[B, T]`` and which to trust.

    A step is trusted if its residual shows convergence and the step before it is trusted or was overwritten.
    """
    h, trusted, states, flags = h0.clone(), torch.ones(len(h0), dtype=torch.bool), [], []
    for t in range(x.shape[1]):
        active, (xt, bt) = torch.arange(len(h)), (x[:, t], beta[:, t])
        for _ in range(60):
            y, xa, ba = h[active], xt[active], bt[active]
            for _ in range(50):
                y = DAMPED(y, xa, ba)
            h[active] = y
            active = active[(DAMPED(y, xa, ba) - y).abs() > 1e-15]
        rest = (DAMPED(h, xt, bt) - h).abs() / (1 - DAMPED.slope(h, xt, bt)).abs()
        trusted = (rest < 1e-10) & (trusted | (xt.abs() > folds(bt)[1]))
        states.append(h.clone())
        flags.append(trusted)
    return torch.stack(states, dim=1), torch.stack(flags, dim=1)


def test_parallel_equals_iteration():
    """beta changes sign over time. Branches must agree exactly, values to 1e-9. 99.96 % of the steps converge."""
    torch.manual_seed(0)
    B, T = 2_000, 12
    x, beta = torch.randn(B, T, dtype=torch.float64), torch.empty(B, T, dtype=torch.float64).uniform_(-1.8, 2)
    h0 = torch.empty(B, dtype=torch.float64).uniform_(-1.2, 1.2)
    expected, trusted = iterate(x, beta, h0)
    share = float(trusted.double().mean())
    print(f"share of steps whose iteration converged: {share:.4f}")
    assert share > 0.999
    args = x[..., None], beta[..., None]
    bistable = (x.abs() < folds(beta)[1]) & trusted
    assert bistable.double().mean() > 0.1
    for h in (hysteresis_scan(*args, h0[:, None]), branch_scan(DAMPED, args, h0[:, None])):
        assert torch.equal((h[..., 0] > 0)[bistable], (expected > 0)[bistable])
        assert (h[..., 0] - expected).abs()[trusted].max() < 1e-9


def test_a_changing_beta_moves_states_inside_the_bistable_region():
    """A threshold on x is not enough: the state 0.45 at beta = -0.5 may lie above or below the next unstable root."""
    x = torch.tensor([0.3, -0.2, 0.1, -0.5], dtype=torch.float64).reshape(1, 4, 1)
    beta = torch.tensor([-0.5, 1.5, -0.9, 1.5], dtype=torch.float64).reshape(1, 4, 1)
    h = hysteresis_scan(x, beta)[0, :, 0]
    assert (x.abs() < folds(beta)[1]).flatten().tolist() == [False, True, False, True]
    assert (h > 0).tolist() == [True, True, True, False]


def test_constant_beta_recovers_the_bmru():
    torch.manual_seed(0)
    B, T, N = 20, 500, 30
    x, beta = torch.randn(B, T, N, dtype=torch.float64), torch.empty(N, dtype=torch.float64).uniform_(0.05, 4)
    start = torch.where(torch.rand(B, N) < 0.5, 1.0, -1.0).double()  # outside the folds, so on a branch
    beta = beta.expand(B, T, N)
    bits = hysteresis_scan(x, beta, start) > 0
    states = ops.bmru_scan(x, folds(beta)[1], torch.ones(N, dtype=torch.float64), start)
    assert torch.equal(bits, states > 0)
    assert 0.1 < (x.abs() < folds(beta)[1]).double().mean() < 0.9


def test_ties_go_up_and_folds_write():
    beta = torch.full((1, 1, 1), 1.5, dtype=torch.float64)
    zero = torch.zeros(1, 1, 1, dtype=torch.float64)
    assert hysteresis_scan(zero, beta) > 0.9  # h0 = 0 is the unstable root
    assert hysteresis_scan(-zero, beta) > 0.9
    assert branch_scan(simplified_brc(), (zero, beta)) > 0.9
    x_c = folds(beta)[1]
    for side in (1.0, -1.0):
        against = torch.full((1, 1), -side, dtype=torch.float64)
        assert hysteresis_scan(side * x_c, beta, against) * side > 0.9
        assert hysteresis_scan(side * x_c * (1 - 1e-12), beta, against) * side < 0


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_steps_and_chunks_give_the_same_bits(dtype):
    torch.manual_seed(0)
    x, beta, h0 = torch.randn(3, 50, 7), torch.randn(3, 50, 7) + 0.5, torch.randn(3, 7)
    x, beta, h0 = (v.to(dtype) for v in (x, beta, h0))
    reset = torch.rand(3, 50) < 0.05
    whole, h = hysteresis_scan(x, beta, h0, reset=reset), h0
    assert whole.dtype == dtype
    for part in (slice(0, 1), slice(1, 20), slice(20, 50)):
        piece = hysteresis_scan(x[:, part], beta[:, part], h, reset=reset[:, part])
        assert torch.equal(piece, whole[:, part])
        h = piece[:, -1]


@pytest.fixture(params=[1, 2])
def threads(request):
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def test_tiles_and_threads_change_nothing(monkeypatch, threads):
    torch.manual_seed(0)
    x, beta = (torch.randn(3, 40, 5, dtype=torch.float64, requires_grad=True) for _ in range(2))
    weights = torch.randn(3, 40, 5, dtype=torch.float64)
    whole = hysteresis_scan(x, beta)
    expected = torch.autograd.grad(whole, (x, beta), weights)
    monkeypatch.setattr("multistable.dynamics.hysteresis_tiles._TILE", {"cpu": 35})
    cut = hysteresis_scan(x, beta)
    assert torch.equal(cut, whole)
    for grad, other in zip(torch.autograd.grad(cut, (x, beta), weights), expected, strict=True):
        assert torch.equal(grad, other)
    with torch.inference_mode():  # other threads may not change its tensors
        assert torch.equal(hysteresis_scan(x, beta), whole)


def test_no_operation_is_repeated_for_each_timestep(monkeypatch):
    """Unless the work is cut into tiles to save memory, every length takes the same number of operations."""

    class Count(TorchDispatchMode):
        operations = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            self.operations += 1
            return func(*args, **(kwargs or {}))

    monkeypatch.setattr("multistable.dynamics.hysteresis_tiles._TILE", {})
    hysteresis_scan(*torch.randn(2, 2, 16, 3, requires_grad=True)).sum().backward()  # loads the compiled kernels
    counts = []
    for T in (16, 1024):
        x, beta = (torch.randn(2, T, 3, requires_grad=True) for _ in range(2))
        with Count() as count:
            hysteresis_scan(x, beta).sum().backward()
        counts.append(count.operations)
    assert counts[0] == counts[1]
    assert counts[0] > 50


def test_nan_lasts_until_it_is_overwritten():
    x = torch.tensor([0.0, math.nan, 0.0, 0.0, -3.0, 0.0]).reshape(1, 6, 1)
    h = hysteresis_scan(x, torch.full_like(x, 1.5)).flatten()
    assert h.isnan().tolist() == [False, True, True, True, False, False]
    assert h[5] < -0.9
    assert torch.equal(hysteresis_scan(torch.full((1, 1, 1), math.inf), torch.ones(1, 1, 1)), torch.ones(1, 1, 1))


def smooth_case() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Arguments away from the folds, where a small change does not change the branch."""
    torch.manual_seed(1)
    x, beta = torch.randn(4, 8, 3, dtype=torch.float64), torch.empty(4, 8, 3, dtype=torch.float64).uniform_(-1.8, 2)
    x = torch.where((x.abs() - folds(beta)[1]).abs() < 0.05, x + 0.2 * x.sign(), x)
    return x.requires_grad_(), beta.requires_grad_(), torch.randn(4, 3, dtype=torch.float64)


def test_exact_gradient_matches_finite_differences():
    x, beta, h0 = smooth_case()
    exact = {"alpha_surr": None, "max_gain": math.inf}
    assert torch.autograd.gradcheck(lambda x, beta: hysteresis_scan(x, beta, h0, **exact), (x, beta), atol=1e-6)


def test_exact_gradients_of_both_units_agree():
    x, beta, h0 = smooth_case()
    weights = torch.randn_like(x)
    for max_gain in (math.inf, 0.5):
        # MRU bounds 1 / (1 - df/dh) of the field with c = 1, HysteresisMRU bounds the same times 1 - h^2.
        mine = hysteresis_scan(x, beta, h0, alpha_surr=None, max_gain=max_gain)
        other = branch_scan(DAMPED, (x, beta), h0)
        mine, other = (torch.autograd.grad(h, (x, beta), weights) for h in (mine, other))
        for grad, reference in zip(mine, other, strict=True):
            if max_gain == math.inf:
                torch.testing.assert_close(grad, reference, rtol=1e-8, atol=1e-10)
            else:
                assert (grad.abs() <= max_gain * weights.abs() + 1e-12).all()


@pytest.mark.parametrize("alpha_surr", [0.0, 1.0, 3.0])
def test_surrogate_matches_a_bmru_with_threshold_x_c(alpha_surr):
    """For constant beta: the gradient of the bits, each weighted by the gap between the branches."""
    torch.manual_seed(0)
    x = torch.randn(3, 30, 5, dtype=torch.float64, requires_grad=True)
    beta = torch.empty(5, dtype=torch.float64).uniform_(0.1, 3).expand(3, 30, 5).clone().requires_grad_()
    h0 = torch.where(torch.rand(3, 5) < 0.5, 1.0, -1.0).double()
    weights = torch.randn(3, 30, 5, dtype=torch.float64)
    total, exact = (
        torch.autograd.grad(hysteresis_scan(x, beta, h0, alpha_surr=choice), (x, beta), weights)
        for choice in (alpha_surr, None)
    )
    _, x_c = folds(beta)
    gap = torch.sub(*roots(x.detach(), beta.detach()))
    write = surrogate.heaviside(x.abs() - x_c, alpha_surr)
    bits = ops.latch_scan(write, surrogate.heaviside(x, alpha_surr), (h0 > 0).double(), backend="reference")
    expected = torch.autograd.grad(bits, (x, beta), weights * gap)
    for grad, value, other in zip(total, exact, expected, strict=True):
        torch.testing.assert_close(grad - value, other, rtol=1e-9, atol=1e-10)


def test_the_gradient_of_a_kept_bit_does_not_fade():
    x, beta = torch.zeros(1, 5000, 1, dtype=torch.float64), torch.full((1, 5000, 1), 1.5, dtype=torch.float64)
    x[:, 0] = 2.0
    grads = []
    for T in (10, 5000):
        first = x[:, :T].clone().requires_grad_()
        grads.append(torch.autograd.grad(hysteresis_scan(first, beta[:, :T])[0, -1, 0], first)[0][0, 0, 0])
    assert grads[0] == grads[1]
    assert grads[0] > 0


@pytest.mark.parametrize("side", [1.0, -1.0])
def test_without_a_held_state_the_gate_has_no_gradient(side):
    """At the first step without h0, and after a reset, the bit is written regardless of the threshold."""
    x = torch.full((1, 9, 1), 0.3, dtype=torch.float64)
    x[:, :4] *= side  # the bit before the reset equals the one after it, or its opposite
    x, beta = x.requires_grad_(), torch.full((1, 9, 1), 1.5, dtype=torch.float64, requires_grad=True)
    reset = (torch.arange(9) == 4)[None]
    with_choice, exact = (
        torch.autograd.grad(hysteresis_scan(x, beta, reset=reset, alpha_surr=alpha).sum(), (x, beta))
        for alpha in (1.0, None)
    )
    gap = torch.sub(*roots(x.detach(), beta.detach()))[0, 0, 0].item()
    by_choice = [(whole - alone)[0, :, 0] for whole, alone in zip(with_choice, exact, strict=True)]
    assert by_choice[1][[0, 4]].tolist() == [0.0, 0.0]
    for step, held in ((0, 4), (4, 5)):  # the sign of x decides here, for as many steps as the bit is held
        expected = held * gap * surrogate.derivative(x.detach(), 1.0)[0, 0, 0].item()
        assert by_choice[0][step].item() == pytest.approx(expected, rel=1e-12)


def test_initial_state_gets_a_gradient():
    h0 = torch.tensor([[0.3]], dtype=torch.float64, requires_grad=True)
    x, beta = torch.zeros(1, 4, 1, dtype=torch.float64), torch.full((1, 4, 1), 1.5, dtype=torch.float64)
    for h in (hysteresis_scan(x, beta, h0), branch_scan(simplified_brc(), (x, beta), h0, alpha_surr=1.0)):
        (grad,) = torch.autograd.grad(h[0, -1, 0], h0)
        gap = torch.sub(*roots(x[0, 0], beta[0, 0])).item()
        assert grad.item() == pytest.approx(gap / (1 + (math.pi * 0.3) ** 2), rel=1e-9)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"beta": torch.zeros(2, 3, 3)}, r"beta must have shape \[2, 3, 4\] \(that of x\), got \[2, 3, 3\]"),
        ({"beta": torch.zeros(2, 3, 4).double()}, "beta must have x's dtype torch.float32, got torch.float64"),
        ({"x": torch.zeros(2, 3, 4).int()}, "x must be floating point, got torch.int32"),
        ({"x": torch.zeros(3, 4)}, r"x must have shape \[B, T, N\], got \[3, 4\]"),
        ({"h0": torch.zeros(3, 4)}, r"h0 must have shape \[2, 4\]"),
        ({"reset": torch.zeros(2, 3)}, "reset must be boolean, got torch.float32"),
        ({"alpha_surr": -1.0}, "alpha_surr must not be negative, got -1"),
        ({"max_gain": 0.0}, "max_gain must be positive, got 0"),
        ({"backend": "fast"}, "backend must be 'auto' or one of"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_bad_arguments_are_named(changes, message):
    arguments = {"x": torch.zeros(2, 3, 4), "beta": torch.zeros(2, 3, 4)} | changes
    with pytest.raises((TypeError, ValueError), match=message):
        hysteresis_scan(**arguments)
